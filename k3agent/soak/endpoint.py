"""The model of the kill harness, as a process that can be killed: `python -m k3agent.soak.endpoint`.

It keeps nothing: which answer comes next is read from the request itself, so a new process goes on where a
killed one stopped. Each request is appended to a file, and told on standard output as it comes and as its
answer has gone out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import overload

from k3agent.prompts.loader import load
from k3agent.providers.scripted import ScriptedServer, Step
from k3agent.soak.task import MARKER, Script
from k3agent.types import JsonObject

_MARKER = re.compile(MARKER.format(r"(\d+)"))
ASK = -1


def position(body: JsonObject) -> int:
    """The number of the answer that this request asks for; ASK for the summary of a compaction."""
    messages = body["messages"]
    if _text(messages[-1]).strip() == load("compaction/ask").strip():
        return ASK
    said = [_MARKER.findall(_text(message)) for message in messages if message["role"] != "tool"]
    numbers = [int(number) for found in said for number in found]
    return max(numbers, default=-1) + 1


def _text(message: JsonObject) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content)
    return f"{content}{message.get('reasoning_content') or ''}"


class Answers(Sequence[Callable[[JsonObject], Step]]):
    """The script as an endless list: every request is answered by what stands in it."""

    def __init__(self, script: Script, log: Path) -> None:
        self._script = script
        self._log = log

    def __len__(self) -> int:
        return sys.maxsize

    @overload
    def __getitem__(self, index: int) -> Callable[[JsonObject], Step]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Callable[[JsonObject], Step]]: ...
    def __getitem__(
        self, index: int | slice
    ) -> Callable[[JsonObject], Step] | Sequence[Callable[[JsonObject], Step]]:
        return [self._answer] if isinstance(index, slice) else self._answer

    def __iter__(self) -> Iterator[Callable[[JsonObject], Step]]:
        while True:
            yield self._answer

    def _answer(self, body: JsonObject) -> Step:
        number = position(body)
        line = json.dumps({"position": number, "body": body}, ensure_ascii=False)
        with self._log.open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")
        print(f"{number} asked", flush=True)
        if number == ASK:
            done = max(map(int, _MARKER.findall(line)), default=-1)
            return Step(text=f"Everything up to {MARKER.format(done)} is done.")
        return self._script.step(number)


class TellingServer(ScriptedServer):
    """Also tells when an answer has gone out as a whole: from then on the agent acts on it."""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bool:
        is_whole = await super()._answer(reader, writer, body)
        if is_whole:
            print(f"{position(json.loads(body))} sent", flush=True)
        return is_whole


async def _serve(answers: Answers, port: int) -> None:
    server = TellingServer(answers)
    await server.start(port)
    print(server.url, flush=True)
    await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="k3agent.soak.endpoint", description=__doc__)
    parser.add_argument("log", type=Path, help="file that gets every request")
    parser.add_argument("--chapters", type=int, required=True, help="length of the task")
    parser.add_argument("--port", type=int, default=0, help="port; 0 picks one")
    options = parser.parse_args(argv)
    asyncio.run(_serve(Answers(Script(options.chapters), options.log), options.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
