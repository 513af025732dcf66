"""PagePool: who holds which page of MLA latents. Numbers only; the tensors lie with the model."""

from k3agent.backend.errors import CacheFullError


class PagePool:
    """`num_pages` pages with reference counts; a page is free when nobody holds it."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise CacheFullError(f"a cache of {num_pages} pages holds nothing; give it more bytes")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int | None:
        """A page with one holder, or None when all are held. Its content is whatever was there before."""
        if not self._free:
            return None
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def retain(self, page: int) -> None:
        """One more holder of a page that is held already."""
        assert self._holders[page] > 0, f"page {page} is free"
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder less; the last one frees the page."""
        assert self._holders[page] > 0, f"page {page} is free"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            self._free.append(page)

    def num_holders(self, page: int) -> int:
        return self._holders[page]
