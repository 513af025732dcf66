"""PagePool: who holds which page of MLA latents. Numbers only; the tensors lie with the model."""

from k3agent.backend.errors import CacheFullError


class PagePool:
    """`num_pages` pages with reference counts; a page is free when nobody holds it.

    The tree is a holder like any other, but which pages it holds is known: those that nobody else holds
    are what eviction could free.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise CacheFullError(f"a cache of {num_pages} pages holds nothing; give it more bytes")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages
        self._in_tree = [0] * num_pages
        self.num_idle = 0
        """Pages that only the tree holds."""
        self.num_in_tree = 0
        """Pages that the tree holds; a short page and the longer one it grew into are one page there."""

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

    def retain(self, page: int, by_tree: bool = False) -> None:
        """One more holder of a page that is held already."""
        holders, in_tree = self._held(page), self._in_tree[page]
        if in_tree == holders and not by_tree:
            self.num_idle -= 1
        self._holders[page] = holders + 1
        if by_tree:
            self._in_tree[page] = in_tree + 1
            self.num_in_tree += in_tree == 0

    def release(self, page: int, by_tree: bool = False) -> None:
        """One holder less; the last one frees the page."""
        holders, in_tree = self._held(page) - 1, self._in_tree[page]
        if by_tree:
            in_tree -= 1
            self._in_tree[page] = in_tree
            self.num_in_tree -= in_tree == 0
            self.num_idle -= holders == 0
        elif in_tree and in_tree == holders:
            self.num_idle += 1
        self._holders[page] = holders
        if holders == 0:
            self._free.append(page)

    def _held(self, page: int) -> int:
        holders = self._holders[page]
        if holders <= 0:
            raise AssertionError(f"page {page} is free: it was released once too often")
        return holders

    def num_holders(self, page: int) -> int:
        return self._holders[page]
