"""What the model reads of a result: a word about circles, head and tail of what is too long, a fence around
words that speak to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3agent.agent.repetition import NOTICE_AT, REFUSE_AT, Repeats
from k3agent.providers.base import Profile
from k3agent.safety.fencing import fence_result, speaks_to_the_model
from k3agent.store.blobs import BlobStore
from k3agent.store.records import CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """A call that came back the same too often."""

    said: str
    count: int
    is_refused: bool

    @property
    def notice(self) -> str:
        return f"{self.said[:1].upper()}{self.said[1:]}."

    def answer(self, text: str, state: CallState, profile: Profile) -> tuple[str, CallState]:
        """The result `text` with what the model is told of the circle, and the call's state with it."""
        if self.is_refused:
            return (
                f"refused: this same call gave the same result {self.count} times."
                " Its result is above. Do something else, or report what you have.",
                CallState.REFUSED,
            )
        if profile is Profile.FULL:
            text += f"\n[k3agent: {self.said}]"
        return text, state


def circle_of(tool: str, repeats: Repeats) -> Circle | None:
    """The circle that the latest result of `tool` closes, when it has been round often enough."""
    count = max(repeats.same, repeats.failures)
    if count < NOTICE_AT:
        return None
    what = "call gave the same result" if repeats.same == count else "tool failed in the same way"
    said = f"the same {tool} {what} {count} times, and nothing changed in between"
    return Circle(said=said, count=count, is_refused=repeats.same >= REFUSE_AT)


def cut(text: str, limit: int, blobs: BlobStore) -> str:
    """A result that is too long keeps its head and tail; the whole goes into a file that can be read."""
    if len(text) <= limit:
        return text
    path = blobs.put(text.encode("utf-8", "replace"))
    head, tail = limit * 2 // 3, limit // 3
    note = f"\n[... {len(text) - head - tail} characters cut; full output: {path}]\n"
    return text[:head] + note + text[-tail:]


def fenced(text: str, tool: str, profile: Profile) -> str:
    """Words for a model, where nobody has said them to it. A small model would not know what that is."""
    # A skill is the user's own text, made for the model.
    if profile is not Profile.FULL or tool == "skill":
        return text
    why = speaks_to_the_model(text)
    return fence_result(text, tool, why) if why else text
