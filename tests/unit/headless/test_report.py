"""What the result says of a run that did not come to a good end."""

from __future__ import annotations

import pytest

from k3agent.agent.callhooks import HOOK_DENIES
from k3agent.agent.options import Receipt
from k3agent.events import TurnOutcome
from k3agent.headless.formats import LAST_WORDS, End
from k3agent.headless.report import failed_command, report, shown_files
from k3agent.providers.base import Profile


def said(outcome: TurnOutcome, detail: str = "why", profile: Profile = Profile.FULL, **receipt: list) -> str:
    return report(outcome, detail, Receipt(**receipt), session_id="s1", profile=profile)


def test_files_and_the_way_on_are_named() -> None:
    text = said(TurnOutcome.MAX_TURNS, "the limit of 3 model calls is reached", files_changed=["a", "b"])
    assert text == (
        "Stopped: the limit of 3 model calls is reached. Changed: a, b."
        " To go on: k3agent run --resume s1 --max-turns N, with a larger N"
    )
    assert "No file was changed" in said(TurnOutcome.PROVIDER)


def test_a_question_keeps_its_mark_as_the_end() -> None:
    assert said(TurnOutcome.EXECUTION, "unknown key. Did you mean model?").startswith(
        "Not finished: unknown key. Did you mean model? No file"
    )


def test_no_flag_lifts_what_a_hook_denies() -> None:
    denial = {"call_id": "c", "tool": "shell", "summary": "pytest", "reason": f"{HOOK_DENIES}: not today"}
    text = said(TurnOutcome.PERMISSION, denials=[denial])
    assert "not today" in text
    assert "--allow" not in text


def test_a_denial_is_named_with_the_flag_that_lifts_it() -> None:
    denial = {"call_id": "c", "tool": "shell", "summary": "git push", "reason": "it publishes commits"}
    text = said(TurnOutcome.PERMISSION, denials=[denial])
    assert "git push (it publishes commits)" in text and "--allow" in text


def test_the_small_model_is_called_small() -> None:
    assert "embedded model is small" in said(TurnOutcome.EXECUTION, profile=Profile.COMPACT)
    assert "small" not in said(TurnOutcome.EXECUTION)


def test_the_users_own_limit_is_no_fault_of_the_small_model() -> None:
    detail = "the limit of 1 model call (limits.max_turns in config.toml) is reached"
    text = said(TurnOutcome.MAX_TURNS, detail, Profile.COMPACT)
    assert "small" not in text and text.endswith("run --resume s1 --max-turns N, with a larger N")


def test_an_error_is_no_fault_of_the_small_model() -> None:
    text = said(TurnOutcome.EXECUTION, "the disk is full", Profile.COMPACT, errors=["the disk is full"])
    assert "small" not in text


def test_plan_mode_names_the_mode_that_works() -> None:
    denial = {"call_id": "c", "tool": "edit", "summary": "edit a.py", "reason": "plan mode changes nothing"}
    receipt = Receipt(denials=[denial])
    text = report(
        TurnOutcome.PERMISSION, "why", receipt, session_id="s1", profile=Profile.FULL, permission_mode="plan"
    )
    assert text.endswith("k3agent run --resume s1 --permission-mode auto") and "--allow" not in text


def test_a_failed_last_command_is_told() -> None:
    receipt = Receipt(last_command={"command": "pytest\n -q", "exit_code": 1})
    assert failed_command(receipt) == "last command failed: pytest -q (exit code 1)"
    assert failed_command(Receipt(last_command={"command": "true", "exit_code": 0})) == ""
    assert failed_command(Receipt()) == ""
    text = report(TurnOutcome.MAX_TURNS, "why", receipt, session_id="s1", profile=Profile.FULL)
    assert "Last command failed: pytest -q (exit code 1)." in text


def test_very_many_files_are_counted() -> None:
    assert shown_files([f"f{number}" for number in range(25)]).endswith("f19 and 5 more")


def test_before_a_session_there_is_nothing_to_resume() -> None:
    text = report(TurnOutcome.PROVIDER, "no key.", Receipt(), session_id="", profile=None)
    assert text == "Not finished: no key."


@pytest.mark.parametrize("outcome", list(TurnOutcome))
def test_the_line_is_whole_for_every_outcome(outcome: TurnOutcome) -> None:
    end = End(outcome=outcome, exit_code=1, last_words="All done!", report="Stopped: why.")
    assert end.line["subtype"] == outcome.value
    assert end.line["result"] == f"Stopped: why.\n\n{LAST_WORDS}\nAll done!"
    assert {
        "is_error", "result", "structured_output", "session_id", "num_turns", "duration_ms",
        "duration_api_ms",
        "total_cost_usd", "usage", "cache_hit_rate", "checks", "permission_denials", "files_changed", "tools",
        "errors", "exit_code",
    } <= set(end.line)  # fmt: skip
