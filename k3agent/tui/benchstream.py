"""One streamed answer in two ways: our transcript, and Textual's own streaming Markdown widget.

`python -m k3agent.tui.benchstream ours|textual` shows it in this terminal and ends with one line of JSON;
`python -m k3agent.tui.bench --only markdown` runs both in terminals of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown

from k3agent.tui.presenter import MAX_FPS
from k3agent.tui.theme import PALETTES
from k3agent.tui.widgets.answer import AnswerBlock
from k3agent.tui.widgets.transcript import Transcript

RATE = 500
TOKEN_CHARS = 4
PART = (
    "The loader reads `config.toml` first, then the environment. **Later layers win**, so flags beat files. "
    "See `load_settings` for the order and for what happens with unknown keys.\n\n"
    "* one item with *words*\n* another one\n\n"
    "```python\ndef load(path: str) -> dict[str, int]:\n    with open(path) as file:\n"
    "        return parse(file)\n```\n\n"
)


def pieces(num_tokens: int) -> list[str]:
    text = PART * (1 + num_tokens * TOKEN_CHARS // len(PART))
    return [text[at : at + TOKEN_CHARS] for at in range(0, num_tokens * TOKEN_CHARS, TOKEN_CHARS)]


class StreamApp(App[dict[str, float]]):
    """`kind` is ours or textual. The result are its costs."""

    CSS = "Transcript, VerticalScroll { height: 1fr; }"

    def __init__(self, kind: str, num_tokens: int) -> None:
        super().__init__()
        self._kind, self._pieces = kind, pieces(num_tokens)
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        if self._kind == "ours":
            self.transcript = Transcript(PALETTES["dark"])
            yield self.transcript
        else:
            with VerticalScroll() as self.scroll:
                self.markdown = Markdown()
                yield self.markdown

    def on_mount(self) -> None:
        self.run_worker(self._run())

    async def _run(self) -> None:
        await asyncio.sleep(0.5)
        cpu, began = time.process_time(), time.monotonic()
        fed = await (self._ours() if self._kind == "ours" else self._textual())
        over = time.monotonic()
        self.exit(
            {
                "cpu_s": time.process_time() - cpu,
                "lag_s": over - fed,
                "wall_s": over - began,
                "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )

    async def _feed(self, began: float, number: int) -> None:
        """Wait until piece `number` is due."""
        wait = began + number / RATE - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)

    async def _ours(self) -> float:
        """As the chat does it: gathered, drawn at most `MAX_FPS` times a second."""
        block = AnswerBlock(is_live=True)
        self.transcript.add(block)
        began = drawn = time.monotonic()
        for number, piece in enumerate(self._pieces):
            await self._feed(began, number)
            block.append(piece)
            if time.monotonic() - drawn >= 1 / MAX_FPS:
                drawn = time.monotonic()
                self._draw(block)
        fed = time.monotonic()
        block.finish()
        self._draw(block)
        await asyncio.sleep(0)
        return fed

    def _draw(self, block: AnswerBlock) -> None:
        block.changed()
        self.transcript.touch(block)
        self.transcript.settle()

    async def _textual(self) -> float:
        """As Textual's documentation advises: a stream that gathers, in a container that follows its end."""
        self.scroll.anchor()
        stream = Markdown.get_stream(self.markdown)
        began = time.monotonic()
        for number, piece in enumerate(self._pieces):
            await self._feed(began, number)
            await stream.write(piece)
        fed = time.monotonic()
        await stream.stop()
        return fed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m k3agent.tui.benchstream", description=__doc__)
    parser.add_argument("kind", choices=("ours", "textual"))
    parser.add_argument("--tokens", type=int, default=20_000)
    args = parser.parse_args()
    found = StreamApp(args.kind, args.tokens).run()
    print(f"figures: {json.dumps(found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
