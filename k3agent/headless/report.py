"""What the result says of a run that did not come to a good end: what happened, what is left, what to do."""

from __future__ import annotations

from k3agent.agent.callhooks import HOOK_DENIES
from k3agent.agent.options import Receipt
from k3agent.agent.policies import LIMIT
from k3agent.events import TurnOutcome
from k3agent.providers.base import Profile

_HEADS = {
    TurnOutcome.CHECKS_FAILED: "Not accepted",
    TurnOutcome.MAX_TURNS: "Stopped",
    TurnOutcome.MAX_TOKENS: "Stopped",
    TurnOutcome.MAX_BUDGET: "Stopped",
    TurnOutcome.MAX_TIME: "Stopped",
    TurnOutcome.MAX_DISK: "Stopped",
    TurnOutcome.INTERRUPTED: "Interrupted",
}
_RESUMABLE = {*_HEADS, TurnOutcome.PROVIDER}
_SMALL = (
    "The embedded model is small: ask for one small step with the names of files in it, or use a larger"
    " model (k3agent models shows them)."
)
_MAX_FILES = 20
_MAX_COMMAND = 120


def report(
    outcome: TurnOutcome,
    detail: str,
    receipt: Receipt,
    *,
    session_id: str,
    profile: Profile | None,
    permission_mode: str = "",
) -> str:
    """Whole sentences. `session_id` is '' and `profile` None where no session was begun."""
    what = detail or outcome.value
    end = "" if what.endswith(("?", "!")) else "."
    sentences = [f"{_HEADS.get(outcome, 'Not finished')}: {what.rstrip('.')}{end}"]
    if not session_id:
        return sentences[0]
    if receipt.denials and outcome is TurnOutcome.PERMISSION:
        sentences.append(_denied(receipt, permission_mode))
    if "Changed: " not in detail and "No file was changed" not in detail:
        files = shown_files(receipt.files_changed)
        nothing = "No file was changed by edits." if receipt.files_note else "No file was changed."
        sentences.append(f"Changed: {files}." if files else nothing)
    if receipt.files_note:
        sentences.append(f"What commands changed cannot be told: {receipt.files_note}.")
    command = failed_command(receipt)
    if command:
        sentences.append(f"{command[:1].upper()}{command[1:]}.")
    # An error is the work of an endpoint, a disk or k3agent, whatever the model can do.
    is_models_end = outcome in {TurnOutcome.EXECUTION, TurnOutcome.MAX_TURNS} and detail not in receipt.errors
    if receipt.denials and outcome is TurnOutcome.PERMISSION and permission_mode == "plan":
        # a command comes last: what follows it would be taken for a part of it
        sentences.append(f"To let it work: k3agent run --resume {session_id} --permission-mode auto")
    elif outcome is TurnOutcome.MAX_TURNS and detail.startswith(LIMIT):
        # What the user has set has stopped it, whatever the model can do.
        sentences.append(f"To go on: k3agent run --resume {session_id} --max-turns N, with a larger N")
    elif profile is Profile.COMPACT and is_models_end:
        sentences.append(_SMALL)
    elif outcome in _RESUMABLE:
        sentences.append(f"To go on: k3agent run --resume {session_id}")
    return " ".join(sentences)


def _denied(receipt: Receipt, permission_mode: str) -> str:
    last = receipt.denials[-1]
    what = f"Denied: {last['summary']} ({last['reason']})."
    # No rule of permissions overrules a hook: its own words say what is wanted.
    is_final = permission_mode == "plan" or last["reason"].startswith(HOOK_DENIES)
    return what if is_final else f"{what} Allow it with --allow."


def failed_command(receipt: Receipt) -> str:
    """`last command failed: pytest (exit code 1)`, or '' when the last one succeeded or there was none."""
    last = receipt.last_command
    if last is None or last["exit_code"] == 0:
        return ""
    command = " ".join(str(last["command"]).split())
    if len(command) > _MAX_COMMAND:
        command = command[: _MAX_COMMAND - 1] + "…"
    return f"last command failed: {command} (exit code {last['exit_code']})"


def shown_files(files: list[str]) -> str:
    """The files in one line; of very many the first ones and their number."""
    more = len(files) - _MAX_FILES
    return ", ".join(files[:_MAX_FILES]) + (f" and {more} more" if more > 0 else "")
