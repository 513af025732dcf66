"""What the result says of a run that did not come to a good end: what happened, what is left, what to do."""

from __future__ import annotations

from k3agent.agent.options import Receipt
from k3agent.events import TurnOutcome
from k3agent.providers.base import Profile

_HEADS = {
    TurnOutcome.CHECKS_FAILED: "Not accepted",
    TurnOutcome.MAX_TURNS: "Stopped",
    TurnOutcome.MAX_TOKENS: "Stopped",
    TurnOutcome.MAX_BUDGET: "Stopped",
    TurnOutcome.MAX_TIME: "Stopped",
    TurnOutcome.INTERRUPTED: "Interrupted",
}
_RESUMABLE = {*_HEADS, TurnOutcome.PROVIDER}
_SMALL = (
    "The embedded model is small: ask for one small step with the names of files in it, or use a larger"
    " model (k3agent models shows them)."
)


def report(
    outcome: TurnOutcome, detail: str, receipt: Receipt, *, session_id: str, profile: Profile | None
) -> str:
    """Whole sentences. `session_id` is '' and `profile` None where no session was begun."""
    what = detail or outcome.value
    sentences = [f"{_HEADS.get(outcome, 'Not finished')}: {what.rstrip('.')}."]
    if not session_id:
        return sentences[0]
    if receipt.denials and outcome is TurnOutcome.PERMISSION:
        last = receipt.denials[-1]
        sentences.append(f"Denied: {last['summary']} ({last['reason']}). Allow it with --allow.")
    if "Changed: " not in detail and "No file was changed" not in detail:
        files = ", ".join(receipt.files_changed)
        sentences.append(f"Changed: {files}." if files else "No file was changed by edits.")
    if profile is Profile.COMPACT and outcome in {TurnOutcome.EXECUTION, TurnOutcome.MAX_TURNS}:
        sentences.append(_SMALL)
    elif outcome in _RESUMABLE:
        sentences.append(f"To go on: k3agent run --resume {session_id}")
    return " ".join(sentences)
