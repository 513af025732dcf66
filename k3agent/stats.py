"""Figures over sessions, from what the store recorded of model calls, tool calls, turns and decisions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from k3agent.store.records import CallState
from k3agent.store.sessions import SessionStore
from k3agent.types import Origin, SessionId, Usage

GOOD_REQUESTS = {"ok", "interrupted", "compaction", "warm"}


def figures(store: SessionStore, cwd: Path | None) -> dict[str, int | float]:
    """Sums over all sessions, or those of one folder with their subagents, wherever these work. Input tokens
    are split into fresh and cached.
    """
    rows = store.shown_sessions(cwd, with_subagents=True)
    if cwd is not None:
        own = {row.id for row in rows}
        tree = {one for row in rows for one in store.subtree(row.id)} - own
        rows += [row for row in store.list_sessions() if row.id in tree]
    usage, cost_usd = Usage(), 0.0
    counts: Counter[str] = Counter()
    states: Counter[CallState] = Counter()
    for row in rows:
        for request in store.requests(row.id):
            usage, cost_usd = usage + (request.usage or Usage()), cost_usd + (request.cost_usd or 0.0)
            counts["unmeasured"] += request.usage is None
            counts["requests"] += 1
            counts["thrown"] += request.outcome not in GOOD_REQUESTS
            counts["retries"] += request.retries
        states.update(call.state for call in store.calls(row.id))
        counts += _turns(store, row.id)
    num_calls = states.total()
    return {
        "sessions": len(rows),
        "turns": counts["turns"],
        "turns_without_success": counts["failed"],
        "turns_with_failing_checks": counts["checks"],
        "restarts": counts["restarts"],
        "human_corrections": counts["corrections"],
        "model_calls": counts["requests"],
        "model_calls_retried": counts["retries"],
        "answers_thrown_away": counts["thrown"],
        "model_calls_without_usage": counts["unmeasured"],
        "fresh_input_tokens": usage.input_tokens - usage.cached_tokens,
        "cached_input_tokens": usage.cached_tokens,
        "cache_hit_rate": round(usage.cached_tokens / usage.input_tokens, 4) if usage.input_tokens else 0.0,
        "reasoning_tokens": usage.reasoning_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": round(cost_usd, 6),
        "tool_calls_tried": num_calls,
        "tool_calls_valid": num_calls - states[CallState.INVALID],
        "tool_calls_succeeded": states[CallState.DONE],
        "tool_calls_failed": states[CallState.FAILED],
        "tool_calls_interrupted": states[CallState.INTERRUPTED],
        "tool_calls_denied": states[CallState.DENIED],
        "tool_calls_refused_as_repeats": states[CallState.REFUSED],
    }


def _turns(store: SessionStore, session_id: SessionId) -> Counter[str]:
    """How turns went. A correction is a person's no to a call, or words said into a running turn."""
    turns = store.turns(session_id)
    asked = {turn.message_id for turn in turns}
    said = [
        message
        for message in store.messages(session_id)
        if message.origin is Origin.HUMAN and message.id not in asked
    ]
    denied = [row for row in store.decisions(session_id) if row.by == "user" and row.action == "deny"]
    return Counter(
        turns=len(turns),
        failed=sum(turn.outcome not in (None, "success") for turn in turns),
        checks=sum(turn.outcome == "checks_failed" for turn in turns),
        restarts=sum(turn.restarts for turn in turns),
        corrections=len(said) + len(denied),
    )
