"""The policy on a small agent trace: near the oracle without limits, and better by the lineage rule."""

import pytest

from k3agent.backend.cache import resident
from k3agent.backend.cache.simulate import UNLIMITED, main, simulate
from k3agent.backend.cache.trace import Trace, TraceSettings

SMALL = TraceSettings(
    sessions=3,
    turns=14,
    subagent_turns=(3, 8),
    system=6_000,
    first=(1_500, 2_500),
    result_most=4_000,
    compact_at=25_000,
    summary=1_000,
)


def test_the_trace_only_grows_between_its_events() -> None:
    last: list[int] = []
    asked: list[int] = []
    for request in Trace(3, TraceSettings(sessions=1, turns=12, fresh_subagent=0, forked_subagent=0)):
        if request.kind == "plain":
            assert request.prompt[: len(last)] == last
        if request.kind == "retry":
            assert request.prompt == asked
        asked, last = request.prompt, request.prompt + request.answer


def test_without_limits_little_but_the_grid_is_lost() -> None:
    done = simulate(UNLIMITED, range(2), SMALL)
    oracle = sum(done.oracle) / len(done.oracle)
    # half a grid step a turn, and the shared text once more until a state stands at its end
    assert oracle < done.mean < oracle + 256 + 200
    assert done.of_oracle > 0.97


def test_class_a_alone_costs_more_than_with_idle_work() -> None:
    idle = simulate(UNLIMITED, range(2), SMALL)
    lazy = simulate(UNLIMITED, range(2), SMALL, exactness="always", idle_chance=0.0)
    assert idle.idle_tokens > 0
    assert lazy.idle_tokens == 0
    assert lazy.mean > idle.mean + 300


def test_decode_made_states_are_used_while_the_engine_has_no_time() -> None:
    busy = simulate(UNLIMITED, range(2), SMALL, idle_chance=0.0)
    assert busy.mean <= simulate(UNLIMITED, range(2), SMALL).mean


def test_lineage_beats_recency_when_slots_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = simulate(16, range(2), SMALL)
    monkeypatch.setattr(resident, "SUPERSEDED_CHANCE", 1.0)
    recency = simulate(16, range(2), SMALL)
    assert lineage.mean < recency.mean
    assert lineage.of_oracle > 0.9


def test_with_64_checkpoints_no_more_is_recomputed_than_the_design_allows() -> None:
    done = simulate(64, range(1))
    assert done.mean <= 4_086
    assert done.of_oracle >= 0.967


def test_the_command_prints_a_row_per_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--slots", "8", "--seeds", "1", "--sessions", "1", "--kinds"]) == 0
    assert "of oracle" in capsys.readouterr().out
