"""InexactPaths: ended turns whose end is only known as decode made it, for the idle canonicaliser."""

from collections import OrderedDict

from k3agent.backend.cache.radix import Checkpoint, RadixNode

MAX_PATHS = 256


class InexactPaths:
    """By the node at the last grid point of a turn; the most recently ended turn is served first."""

    def __init__(self) -> None:
        self._paths: OrderedDict[RadixNode, list[Checkpoint]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, floor: RadixNode, checkpoint: Checkpoint | None) -> None:
        """A turn ended past `floor`; `checkpoint` is its class-B state, if that was filed."""
        checkpoints = self._paths.setdefault(floor, [])
        self._paths.move_to_end(floor)
        if checkpoint is not None and checkpoint not in checkpoints:
            checkpoints.append(checkpoint)
        if len(self._paths) > MAX_PATHS:
            self._paths.popitem(last=False)

    def newest(self) -> list[int] | None:
        """The token ids up to the grid point of the most recently ended turn, or None."""
        if not self._paths:
            return None
        node: RadixNode | None = next(reversed(self._paths))
        pages: list[tuple[int, ...]] = []
        while node is not None:
            pages.append(node.token_ids)
            node = node.parent
        return [token for page in reversed(pages) for token in page]

    def remove(self, floor: RadixNode) -> list[Checkpoint]:
        """Forget a path; returns its class-B checkpoints, of which some may have been evicted."""
        return self._paths.pop(floor, [])
