"""What the result says of a run that did not come to a good end."""

from __future__ import annotations

import pytest

from k3agent.agent.options import Receipt
from k3agent.events import TurnOutcome
from k3agent.headless.formats import End
from k3agent.headless.report import report
from k3agent.providers.base import Profile


def said(outcome: TurnOutcome, detail: str = "why", profile: Profile = Profile.FULL, **receipt: list) -> str:
    return report(outcome, detail, Receipt(**receipt), session_id="s1", profile=profile)


def test_files_and_the_way_on_are_named() -> None:
    text = said(TurnOutcome.MAX_TURNS, "the limit of 3 model calls is reached", files_changed=["a", "b"])
    assert text == (
        "Stopped: the limit of 3 model calls is reached. Changed: a, b. To go on: k3agent run --resume s1"
    )
    assert "No file was changed" in said(TurnOutcome.PROVIDER)


def test_a_denial_is_named_with_the_flag_that_lifts_it() -> None:
    denial = {"call_id": "c", "tool": "shell", "summary": "git push", "reason": "it publishes commits"}
    text = said(TurnOutcome.PERMISSION, denials=[denial])
    assert "git push (it publishes commits)" in text and "--allow" in text


def test_the_small_model_is_called_small() -> None:
    assert "embedded model is small" in said(TurnOutcome.EXECUTION, profile=Profile.COMPACT)
    assert "small" not in said(TurnOutcome.EXECUTION)


def test_before_a_session_there_is_nothing_to_resume() -> None:
    text = report(TurnOutcome.PROVIDER, "no key.", Receipt(), session_id="", profile=None)
    assert text == "Not finished: no key."


@pytest.mark.parametrize("outcome", list(TurnOutcome))
def test_the_line_is_whole_for_every_outcome(outcome: TurnOutcome) -> None:
    end = End(outcome=outcome, exit_code=1, answer="Half.", report="Stopped: why.")
    assert end.line["subtype"] == outcome.value
    assert end.line["result"] == "Half.\n\nStopped: why."
    assert {
        "is_error", "result", "structured_output", "session_id", "num_turns", "duration_ms",
        "duration_api_ms",
        "total_cost_usd", "usage", "cache_hit_rate", "checks", "permission_denials", "files_changed", "tools",
        "errors", "exit_code",
    } <= set(end.line)  # fmt: skip
