"""What subagents may use and have used: turns, tokens and money are one account with their session's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from k3agent.agent.options import Limits, Receipt
from k3agent.agent.policies import LimitPolicy
from k3agent.agent.tasks import TaskNode
from k3agent.errors import ToolError
from k3agent.store.records import RequestRow
from k3agent.types import Usage

MIN_TURNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    turns: float = 0
    tokens: float = 0
    usd: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Account:
    """`before`: used in earlier lives of the process; `seen`: what has been booked of the receipt so far."""

    before: _Sum
    granted: _Sum | None = None
    used: _Sum = field(default_factory=_Sum)
    seen: Receipt = field(default_factory=Receipt)


class Purse:
    """Divides what the limits of the session leave among subagents, and books what they use as they go."""

    def __init__(self, limits: LimitPolicy, receipt: Receipt) -> None:
        self._limits = limits
        self._receipt = receipt
        self._open: dict[int, _Account] = {}

    def open(self, node: TaskNode, requests: Iterable[RequestRow]) -> None:
        """`requests`: the model calls that the subagent has made already, before a kill or a pause. Those
        that the endpoint failed are no steps.
        """
        rows = [row for row in requests if not row.outcome.startswith("failed")]
        usages = [row.usage or Usage() for row in rows]
        before = _Sum(
            turns=len(rows),
            tokens=sum(usage.input_tokens + usage.output_tokens for usage in usages),
            usd=sum(row.cost_usd or 0.0 for row in rows),
        )
        self._open[node.number] = _Account(before=before)

    def close(self, node: TaskNode) -> None:
        """What was granted and not used is there for others."""
        self._open.pop(node.number, None)

    def grant(self, node: TaskNode, num_waiting: int) -> Limits:
        """The limits of a subagent that starts now: its budget, and no more than its share of what is left
        for the `num_waiting` that have not started, itself included. Raises ToolError when that is nothing.
        """
        left = self._limits.for_subagents()
        account = self._open[node.number]
        number = max(1, num_waiting)
        turns = self._share("turns", node, left.max_turns, number)
        tokens = self._share("tokens", node, left.max_tokens, number)
        usd = self._share("usd", node, left.max_budget_usd, number)
        if turns < MIN_TURNS or tokens <= 0 or usd <= 0:
            raise ToolError(
                f"its budget is used up: {int(turns)} model calls, {int(tokens)} tokens, ${usd:.4f} are left"
            )
        account.granted = _Sum(turns=turns, tokens=tokens, usd=usd)
        return Limits(
            max_turns=int(turns),
            max_tokens=int(tokens),
            max_budget_usd=usd,
            max_time_s=left.max_time_s,
            max_disk_mb=None if left.max_disk_mb is None else left.max_disk_mb / number,
        )

    def _share(self, name: str, node: TaskNode, left: float | None, num_waiting: int) -> float:
        own = float(node.budget[name]) - getattr(self._open[node.number].before, name)
        if left is None:
            return own
        held = sum(
            max(0.0, getattr(account.granted, name) - getattr(account.used, name))
            for account in self._open.values()
            if account.granted is not None
        )
        return min(own, (left - held) / num_waiting)

    def account(self, node: TaskNode, receipt: Receipt) -> None:
        """Book what is new in a subagent's receipt into its node and into the session's receipt."""
        account = self._open[node.number]
        total, seen = self._receipt, account.seen
        step = receipt.usage - seen.usage
        usd = receipt.cost_usd - seen.cost_usd
        total.usage += step
        total.cost_usd += usd
        total.subagents_tokens += step.input_tokens + step.output_tokens
        total.subagents_usd += usd
        for name in ("num_turns", "num_unmeasured", "duration_api_s", "calls", "invalid", "failed"):
            now = getattr(receipt, name)
            setattr(total, name, getattr(total, name) + now - getattr(seen, name))
            setattr(seen, name, now)
        total.denials.extend(receipt.denials[len(seen.denials) :])
        seen.usage, seen.cost_usd, seen.denials = receipt.usage, receipt.cost_usd, list(receipt.denials)
        account.used = _Sum(
            turns=receipt.num_turns,
            tokens=receipt.usage.input_tokens + receipt.usage.output_tokens,
            usd=receipt.cost_usd,
        )
        node.num_turns = int(account.before.turns) + receipt.num_turns
        node.num_tokens = int(account.before.tokens + account.used.tokens)
        node.cost_usd = account.before.usd + receipt.cost_usd
