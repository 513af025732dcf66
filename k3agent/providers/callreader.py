"""Tool calls out of fragments that come in any order.

Fragments are joined by `index`, without it by the order of named headers; ids are made unique; a call is
announced once its name is known.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from k3agent.types import CallDelta

_NUMBERED = re.compile(r"(.*:)(\d+)\Z", re.DOTALL)


def whole_text(value: Any) -> str:
    """A name or an id as UTF-8 can hold it (JSON can name half a character); '' for what is no text."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:16]}"


def distinct_id(wanted: str, taken: set[str]) -> str:
    """`wanted`, or the nearest id that is not taken: `read:0` counts on to `read:1`, others get a suffix."""
    if wanted not in taken:
        return wanted
    match = _NUMBERED.match(wanted)
    stem, number = (match.group(1), int(match.group(2))) if match else (f"{wanted}-", 1)
    while f"{stem}{number}" in taken:
        number += 1
    return f"{stem}{number}"


@dataclass(slots=True)
class OpenCall:
    """A call in progress. `raw_id` is the server's word, `id` ours, set once the call is announced."""

    number: int
    raw_id: str = ""
    id: str = ""
    name: str = ""
    waiting: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)


class CallReader:
    """`taken` are the ids of the session so far; `to_raw_name` undoes the mapping of names."""

    def __init__(self, taken: set[str], to_raw_name: Callable[[str], str]) -> None:
        self._taken = taken
        self._to_raw_name = to_raw_name
        self._calls: list[OpenCall] = []
        self._by_index: dict[int, OpenCall] = {}

    @property
    def calls(self) -> list[OpenCall]:
        return self._calls

    def feed(self, fragment: dict[str, Any]) -> list[CallDelta]:
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        name, raw_id = whole_text(function.get("name")), whole_text(fragment.get("id"))
        call = self._find(fragment.get("index"), raw_id, name)
        if raw_id and not call.raw_id:
            call.raw_id = raw_id
        if name and not call.name:
            call.name = self._to_raw_name(name)
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            # Some servers send the object itself instead of its text.
            arguments = json.dumps(arguments, ensure_ascii=False)
        return self._step(call, arguments if isinstance(arguments, str) else "")

    def finish(self) -> list[CallDelta]:
        """Announce what never got a name, so that the model can be told."""
        out: list[CallDelta] = []
        for call in self._calls:
            if not call.id:
                call.name = call.name or "unnamed"
                out.extend(self._step(call, ""))
        return out

    def add(self, name: str, arguments: str) -> list[CallDelta]:
        """A whole call that was found in the text."""
        call = self._open(None)
        call.name = self._to_raw_name(name)
        return self._step(call, arguments)

    def _find(self, index: Any, raw_id: str, name: str) -> OpenCall:
        last = self._calls[-1] if self._calls else None
        if isinstance(index, int) and not isinstance(index, bool):
            call = self._by_index.get(index)
            # Some servers number every call 0; another id with another name is another call.
            is_other = call is not None and bool(raw_id and call.raw_id and raw_id != call.raw_id and name)
            return self._open(index) if call is None or is_other else call
        if raw_id:
            known = next((call for call in self._calls if call.raw_id == raw_id), None)
            if known is not None and not (name and known.name):
                return known
        if last is None or (name and last.name) or (raw_id and last.raw_id and raw_id != last.raw_id):
            return self._open(None)
        return last

    def _open(self, index: int | None) -> OpenCall:
        call = OpenCall(number=len(self._calls))
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _step(self, call: OpenCall, arguments: str) -> list[CallDelta]:
        if not call.name:
            call.waiting.append(arguments)
            return []
        out: list[CallDelta] = []
        if not call.id:
            call.id = distinct_id(call.raw_id or new_call_id(), self._taken)
            self._taken.add(call.id)
            text = "".join(call.waiting) + arguments
            out.append(CallDelta(index=call.number, id=call.id, name=call.name, arguments=text))
            call.arguments.append(text)
        elif arguments:
            out.append(CallDelta(index=call.number, arguments=arguments))
            call.arguments.append(arguments)
        return out
