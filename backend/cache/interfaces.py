"""What the cache asks of its surroundings: tensors behind the numbers, sequences that use them."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

from k3agent.backend.cache.radix import Checkpoint, RadixNode

Exactness = Literal["idle", "always", "off"]
Buffer = bytes | bytearray | memoryview
"""One page or one state as host memory; only the storage knows what is in it."""


class Storage(Protocol):
    """The tensors behind the numbers."""

    page_bytes: int
    state_bytes: int

    def copy_page(self, src_page: int, dst_page: int) -> None: ...
    def copy_state(self, src_slot: int, dst_slot: int) -> None: ...
    def zero_state(self, slot: int) -> None: ...
    def poison_state(self, slot: int) -> None:
        """Make every use of the slot's content visible; only debug runs call it."""
        ...


@runtime_checkable
class TieredStorage(Storage, Protocol):
    """A storage whose pages and states can leave the device and come back: what host and disk need."""

    def read_page(self, page: int) -> Buffer:
        """A buffer whose content is there once `settled` says so; it may be written back before that."""
        ...

    def read_pages(self, pages: Sequence[int]) -> list[Buffer]:
        """Several at once, which a GPU does faster. They may share memory."""
        ...

    def write_pages(self, pages: Sequence[int], data: Sequence[Buffer]) -> None: ...
    def read_state(self, slot: int) -> Buffer: ...
    def write_state(self, slot: int, data: Buffer) -> None: ...
    def settled(self) -> Callable[[], None]:
        """What waits, on any thread, until everything that was read so far is there."""
        ...


class Tenant(Protocol):
    """What the cache reads and writes of a sequence. Fresh: no pages, `state_slot` and `node` None."""

    token_ids: list[int]
    num_computed: int
    num_exact: int
    """Leading tokens computed by prefill on the grid: raised by the engine after a chunk that began there."""
    page_ids: list[int]
    state_slot: int | None
    node: RadixNode | None
    resumed_from: Checkpoint | None
