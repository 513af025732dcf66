"""The flat numbers that the server shows as metrics, read off the cache and the scheduler."""

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.engine.scheduler import Scheduler
from k3agent.backend.engine.sequence import Status


def levels(cache: HybridCache, scheduler: Scheduler) -> dict[str, float]:
    """Sums since the start and levels now, by name."""
    counters, ledger = cache.counters, cache.ledger()
    values: dict[str, float] = {
        "waiting_requests": len(scheduler.waiting),
        "running_requests": sum(s.status is not Status.ENDING for s in scheduler.running),
        "preempted_requests": scheduler.num_preempted,
        "queried_tokens": counters.queried_tokens,
        "free_pages": ledger.free_pages,
        "free_slots": ledger.free_slots,
        "tree_pages": ledger.tree_pages,
        "evicted_pages": counters.evicted_pages,
        "evicted_checkpoints": counters.evicted_checkpoints,
        "canonical_checkpoints": counters.replaced_inexact,
        "tier_bytes_device": ledger.device_bytes,
        "tier_bytes_host": ledger.host_bytes,
        "tier_bytes_disk": ledger.disk_bytes,
        "tier_bytes_staging": ledger.staging_bytes,
    }
    values |= {f"hit_tokens_{tier}": count for tier, count in counters.hit_tokens_by_tier.items()}
    values |= {f"lost_tokens_{cause}": count for cause, count in counters.lost_tokens.items()}
    values |= {f"checkpoint_bytes_{kind}": count for kind, count in ledger.checkpoint_bytes.items()}
    disk = cache.lower.disk if cache.lower is not None else None
    if disk is not None:
        values |= {
            "ignored_torn_entries": disk.counters.torn,
            "ignored_foreign_entries": disk.counters.foreign,
        }
        values |= {"evicted_files": disk.counters.evicted_files, "lost_writes": disk.counters.failed_writes}
    return {name: float(value) for name, value in values.items()}
