"""What the cache counts and owns: sums since the start, and the one ledger in bytes."""

from dataclasses import dataclass, field

TIERS = ("device", "host", "disk")
LOSS_CAUSES = ("no_state", "evicted", "off_grid", "never_seen")


@dataclass(slots=True)
class CacheCounters:
    """Sums since the start, in tokens, pages and checkpoints. Background work is not counted as requests."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    hit_tokens_by_tier: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    """By where the latents of the hit lay."""
    lost_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOSS_CAUSES, 0))
    """Prompt tokens that are computed again, by cause; `never_seen` has no earlier run to blame."""
    evicted_pages: int = 0
    evicted_checkpoints: int = 0
    filed_exact: int = 0
    filed_inexact: int = 0
    replaced_inexact: int = 0
    """Class-B checkpoints that the idle canonicaliser replaced by class A."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Every byte of the cache at this moment; `held + free` of pages and slots is always the pool."""

    page_bytes: int
    """Of one page."""
    slot_bytes: int
    """Of one state slot."""
    free_pages: int
    tree_pages: int
    """Pages in the tree, those shared with running sequences included."""
    private_pages: int
    """Pages that only running sequences hold."""
    free_slots: int
    running_slots: int
    exact_checkpoints: int
    inexact_checkpoints: int
    host_bytes: int = 0
    disk_bytes: int = 0
    staging_bytes: int = 0
    """Host copies that wait for the disk."""

    @property
    def device_bytes(self) -> int:
        """All that the pools own, held or free."""
        pages = self.free_pages + self.tree_pages + self.private_pages
        slots = self.free_slots + self.running_slots + self.exact_checkpoints + self.inexact_checkpoints
        return pages * self.page_bytes + slots * self.slot_bytes

    @property
    def checkpoint_bytes(self) -> dict[str, int]:
        """By class, on the device."""
        return {
            "exact": self.exact_checkpoints * self.slot_bytes,
            "inexact": self.inexact_checkpoints * self.slot_bytes,
        }
