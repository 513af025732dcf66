"""Audit of a HybridCache: every page, slot, lock and byte is explained by a holder. For tests and soaks."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from k3agent.backend.cache.counters import Ledger
from k3agent.backend.cache.interfaces import Tenant
from k3agent.backend.cache.radix import RadixNode
from k3agent.backend.cache.resident import Resident


class Locker(Protocol):
    """Who may hold a lock besides a sequence: a prefix not adopted yet."""

    node: RadixNode | None


def audit(resident: Resident, tenants: Sequence[Tenant], prefixes: Sequence[Locker], ledger: Ledger) -> None:
    """Raise AssertionError naming the first thing that does not add up. Walks the whole tree."""
    nodes = list(resident.tree.nodes())
    counted = resident.tree.num_nodes
    _require(counted == len(nodes), f"{counted} nodes counted, {len(nodes)} found")
    _audit_pages(resident, nodes, tenants)
    _audit_slots(resident, nodes, tenants)
    locks = Counter(id(tenant.node) for tenant in tenants if tenant.node is not None)
    locks.update(id(prefix.node) for prefix in prefixes if prefix.node is not None)
    for node in nodes:
        _require(node.num_locks == locks.pop(id(node), 0), f"{_name(node)} has {node.num_locks} locks")
        _audit_shape(resident, node)
    _require(not locks, "a sequence locks a node that left the tree")
    total = resident.pages.num_pages * ledger.page_bytes + resident.states.num_slots * ledger.slot_bytes
    _require(ledger.device_bytes == total, f"the ledger has {ledger.device_bytes} of {total} device bytes")


def _audit_pages(resident: Resident, nodes: list[RadixNode], tenants: Sequence[Tenant]) -> None:
    pool = resident.pages
    in_tree = [node.page_id for node in nodes if node.page_id is not None]
    held = Counter(page for tenant in tenants for page in tenant.page_ids)
    num_idle = sum(page not in held for page in set(in_tree))
    held.update(in_tree)
    for page in range(pool.num_pages):
        found = pool.num_holders(page)
        _require(found == held[page], f"page {page} counts {found} holders and has {held[page]}")
    _require(pool.num_free == pool.num_pages - len(+held), "the free pages do not add up")
    _require(pool.num_in_tree == len(set(in_tree)), "the pages in the tree do not add up")
    _require(pool.num_idle == num_idle, "the idle pages do not add up")


def _audit_slots(resident: Resident, nodes: list[RadixNode], tenants: Sequence[Tenant]) -> None:
    pool = resident.states
    filed = [c for node in nodes for c in node.checkpoints.values()]
    slots = [tenant.state_slot for tenant in tenants if tenant.state_slot is not None]
    slots += [c.slot for c in filed if c.slot is not None]
    _require(all(c.slot is not None for c in filed), "a checkpoint in the tree has no slot")
    _require(len(set(slots)) == len(slots), "a slot has two holders")
    _require(all(pool.is_held(slot) for slot in slots), "a slot in use is free")
    _require(len(slots) == pool.num_slots - pool.num_free, "the free slots do not add up")
    exact = sum(c.is_exact for c in filed)
    counted = (resident.num_exact, resident.num_inexact)
    _require(counted == (exact, len(filed) - exact), f"checkpoints by class: {counted}")


def _audit_shape(resident: Resident, node: RadixNode) -> None:
    parent = node.parent
    assert parent is not None
    _require(parent is resident.tree.root or parent.is_full, f"{_name(node)} hangs below a short page")
    _require(parent.children.get(node.token_ids) is node, f"{_name(node)} is not its parent's child")
    _require(node.order is None or node.order == sorted(node.children), f"{_name(node)} has no order")
    pinned = sum(child.is_pinned for child in node.children.values())
    _require(node.num_pinned == pinned, f"{_name(node)} counts {node.num_pinned} pinned children of {pinned}")
    is_pinned = node.page_id is not None or node.num_locks > 0 or pinned > 0
    _require(node.is_pinned == is_pinned, f"{_name(node)} does not know whether it is needed")
    can_leave = node.page_id is not None and node.num_locks == 0 and pinned == 0
    _require(resident.may_leave(node) == can_leave, f"{_name(node)} could leave: {can_leave}")
    for offset, checkpoint in node.checkpoints.items():
        _require(checkpoint.node is node and checkpoint.offset == offset, f"{_name(node)}: a strayed state")
        _require(1 <= offset <= len(node.token_ids), f"{_name(node)}: a state at {offset}")
        if offset < node.page_size:
            inner = (parent.inner or {}).get(node.token_ids[:offset])
            _require(inner is checkpoint, f"{_name(node)}: the state at {offset} cannot be found")
        if checkpoint.is_exact and resident.below is None:
            _audit_exact(node)


def _audit_exact(node: RadixNode) -> None:
    """Below a class-A state every page is exact. (A page that fell to a lower tier may have been computed
    anew since, off the grid; a match looks at the pages, too.)
    """
    current: RadixNode | None = node
    while current is not None and current.parent is not None:
        _require(current.is_exact, f"{_name(current)} is inexact below class A")
        current = current.parent


def _name(node: RadixNode) -> str:
    return f"the page at {node.start}..{node.end} ({node.key.hex()[:8]})"


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(f"the cache is inconsistent: {text}")
