"""Runs inside vLLM's own environment: its kimi_k3 parsers on texts from standard input, one JSON line each.

No server and no model: the parsers work on the text of an answer, and of the tokenizer they want only the
pieces of the markers.
"""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

MARKERS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
PIECES = re.compile("|".join(map(re.escape, MARKERS)) + "|.", re.DOTALL)


class Pieces:
    """As much of a tokenizer as the parsers ask for: markers are one token, all else one a character."""

    def __init__(self) -> None:
        self._ids = {marker: number for number, marker in enumerate(MARKERS)}

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self._ids.get(piece, 1000 + ord(piece[0])) for piece in PIECES.findall(text)]


def main() -> None:
    from vllm.reasoning.kimi_k3_reasoning_parser import (  # type: ignore[import-not-found]
        KimiK3ReasoningParser,
    )
    from vllm.tool_parsers.kimi_k3_tool_parser import KimiK3ToolParser  # type: ignore[import-not-found]

    request = SimpleNamespace(tools=[{}], tool_choice="auto", include_reasoning=True)
    for line in sys.stdin:
        text = json.loads(line)
        reasoning, rest = KimiK3ReasoningParser(Pieces()).extract_reasoning(text, request)
        found = KimiK3ToolParser(Pieces()).extract_tool_calls(rest or "", request)
        calls = [(call.function.name, call.function.arguments) for call in found.tool_calls]
        print(json.dumps({"reasoning": reasoning, "content": found.content, "calls": calls}), flush=True)


if __name__ == "__main__":
    main()
