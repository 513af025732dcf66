"""Figures over sessions, from what the store recorded of each model call and tool call."""

from __future__ import annotations

from pathlib import Path

from k3agent.store.records import CallState
from k3agent.store.sessions import SessionStore
from k3agent.types import Usage


def figures(store: SessionStore, cwd: Path | None) -> dict[str, int | float]:
    """Sums over all sessions, or those of one folder. Input tokens are split into fresh and cached."""
    rows = store.list_sessions(cwd)
    usage, cost_usd, num_requests, num_thrown, num_unmeasured = Usage(), 0.0, 0, 0, 0
    states = dict.fromkeys(CallState, 0)
    for row in rows:
        for request in store.requests(row.id):
            usage, cost_usd = usage + (request.usage or Usage()), cost_usd + (request.cost_usd or 0.0)
            num_unmeasured += request.usage is None
            num_requests += 1
            num_thrown += request.outcome not in {"ok", "interrupted", "compaction"}
        for call in store.calls(row.id):
            states[call.state] += 1
    num_calls = sum(states.values())
    return {
        "sessions": len(rows),
        "model_calls": num_requests,
        "answers_thrown_away": num_thrown,
        "model_calls_without_usage": num_unmeasured,
        "fresh_input_tokens": usage.input_tokens - usage.cached_tokens,
        "cached_input_tokens": usage.cached_tokens,
        "cache_hit_rate": round(usage.cached_tokens / usage.input_tokens, 4) if usage.input_tokens else 0.0,
        "reasoning_tokens": usage.reasoning_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": round(cost_usd, 6),
        "tool_calls_tried": num_calls,
        "tool_calls_valid": num_calls - states[CallState.INVALID],
        "tool_calls_succeeded": states[CallState.DONE],
        "tool_calls_denied": states[CallState.DENIED],
        "tool_calls_refused_as_repeats": states[CallState.REFUSED],
    }
