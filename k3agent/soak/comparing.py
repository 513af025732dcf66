"""Two runs of the task side by side, and what every request of a run has to be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3agent.agent.resume import is_settled
from k3agent.soak.proof import ProofFailed
from k3agent.types import JsonObject

# A step, and what goes on in it.
Place = tuple[int, str]


@dataclass(slots=True, kw_only=True)
class Played:
    """What one run of the task left behind."""

    tree: dict[str, str]
    commits: str
    story: list[Any]
    next_request: JsonObject
    durations: dict[Place, float]
    num_compactions: int
    counts: Counter[str] = field(default_factory=Counter)


def tree_of(folder: Path) -> dict[str, str]:
    """Every file but git's own: its mode and its bytes."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] != ".git" and not path.is_dir():
            found[str(name)] = f"{path.stat().st_mode:o} {path.read_bytes().hex()}"
    return found


def check_requests(bodies: list[tuple[int, JsonObject]]) -> None:
    """What a strict server demands of every request, and the law of the growing prompt: what differs from the
    request before begins with another head, which only a compaction makes.
    """
    before: list[JsonObject] = []
    for position, body in bodies:
        messages: list[JsonObject] = body["messages"]
        waiting: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                if not waiting or message["tool_call_id"] != waiting.pop(0) or not message["content"]:
                    raise ProofFailed(f"a result without its call: {message}")
                continue
            if waiting:
                raise ProofFailed(f"calls without results: {waiting}")
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
        if waiting:
            raise ProofFailed(f"calls without results at the end: {waiting}")
        same = next(
            (at for at, pair in enumerate(zip(before, messages, strict=False)) if pair[0] != pair[1]), None
        )
        if same is not None and same > 1:
            raise ProofFailed(f"message {same} of a request differs from that of the request before")
        # The one for a summary goes on from a step; no step goes on from it.
        before = messages if position >= 0 else before


def differences(found: Played, wanted: Played) -> list[str]:
    """How a disturbed run differs from the undisturbed one, beyond what results of dead calls may say."""
    problems: list[str] = []
    if found.tree != wanted.tree:
        names = sorted(
            name
            for name in found.tree.keys() | wanted.tree.keys()
            if found.tree.get(name) != wanted.tree.get(name)
        )
        problems.append(f"files differ: {', '.join(names)}")
    if found.commits != wanted.commits:
        problems.append(f"commits differ: {found.commits!r} and {wanted.commits!r}")
    if len(found.story) != len(wanted.story):
        problems.append(f"{len(found.story)} messages, not {len(wanted.story)}")
    for at, (one, other) in enumerate(zip(found.story, wanted.story, strict=False)):
        if one[:5] != other[:5]:
            problems.append(f"message {at} differs: {_apart(str(one[:5]), str(other[:5]))}")
            break
        for text, whole in zip(one[5], other[5], strict=True):
            if text != whole and not is_settled(text):
                problems.append(f"a result of message {at} differs: {_apart(text, whole)}")
            found.counts["results of dead calls"] += text != whole
    problems += _request_differences(found.next_request, wanted.next_request)
    return problems


def _request_differences(found: JsonObject, wanted: JsonObject) -> list[str]:
    """The bodies of the next request, results of dead calls aside."""
    for field_name in found.keys() | wanted.keys():
        if field_name not in ("messages", "max_completion_tokens") and found.get(field_name) != wanted.get(
            field_name
        ):
            return [f"the next request differs in {field_name}"]
    one, other = found["messages"], wanted["messages"]
    if len(one) != len(other):
        return [f"the next request has {len(one)} messages, not {len(other)}"]
    for at, (message, whole) in enumerate(zip(one, other, strict=True)):
        if message != whole and not (message["role"] == "tool" and is_settled(str(message["content"]))):
            return [f"message {at} of the next request differs: {_apart(str(message), str(whole))}"]
    return []


def _apart(one: str, other: str) -> str:
    """Both texts from a little before the place where they part."""
    pairs = enumerate(zip(one, other, strict=False))
    at = max(0, next((at for at, (a, b) in pairs if a != b), min(len(one), len(other))) - 80)
    return f"{one[at : at + 300]!r} and {other[at : at + 300]!r}"
