"""Episodes as token ids with loss weights, rendered exactly as the server renders a conversation; and
texts for the tokenizer.

`stream` is what training workers read; `texts` is what the tokenizer is trained on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from k3agent.backend.chat.template import Writer, render, render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.training.emphasis import answer_weights
from k3agent.backend.training.episodes.player import LONG, SECOND_SHARE, Episode, Player
from k3agent.backend.training.episodes.session import Message
from k3agent.prompts.loader import load
from k3agent.tools.edit import EditTool
from k3agent.tools.glob import GlobTool
from k3agent.tools.grep import GrepTool
from k3agent.tools.read import ReadTool
from k3agent.tools.shell import ShellTool
from k3agent.tools.specs import spec
from k3agent.tools.trial import TrialTool
from k3agent.tools.write import WriteTool

NANO = Path(__file__).resolve().parent.parent / "weights" / "nano"
TOOLS = (ReadTool, WriteTool, EditTool, GrepTool, GlobTool, ShellTool, TrialTool)
MAX_TOKENS = 4096
MAX_LONG_TOKENS = 16_384
"""Of an episode of the last stage, in which files, outputs and conversations are long."""
RESULT_WEIGHT = 0.05
"""Loss weight of what tools and users say: a little of it teaches the texture of code."""


@dataclass(frozen=True, slots=True)
class EncodedEpisode:
    """One training document."""

    token_ids: np.ndarray
    loss_weight: np.ndarray


def system_text() -> str:
    """The system prompt of the compact profile."""
    return load("system/compact")


def tool_declarations() -> list[Message]:
    """The tools as the compact profile declares them.

    Providers tidy schemas before they send them; these are tidy already (a test compares the bytes).
    """
    specs = [spec(tool(), compact=True) for tool in TOOLS]  # pyright: ignore[reportArgumentType]
    return [
        {
            "type": "function",
            "function": {
                "name": item.name,
                "description": item.description,
                "parameters": item.parameters,
            },
        }
        for item in specs
    ]


class Encoder:
    """Renders transcripts; the constant beginning is rendered once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        head = [{"role": "system", "content": system_text()}]
        self.prefix = render(
            tokenizer, head, tool_declarations(), effort="low", add_generation_prefix=False
        ).token_ids
        writer = Writer(tokenizer)
        writer.open("message", role="assistant")
        writer.open("think")
        self.stub = writer.ids

    def encode(self, episode: Episode) -> EncodedEpisode:
        """Ids and weights of an episode."""
        ids = list(self.prefix)
        weights = [0.0] * len(ids)
        for index, message in enumerate(episode.messages):
            if message["role"] == "assistant":
                ids += self.stub
                weights += [0.0] * len(self.stub)
                own = render_assistant(self.tokenizer, message)
                is_first = index > 0 and episode.messages[index - 1]["role"] == "user"
                if index in episode.unlearned:
                    weights += [0.0] * len(own)
                else:
                    weights += answer_weights(self.tokenizer, message, own, is_first)
            else:
                writer = Writer(self.tokenizer)
                if message["role"] == "tool":
                    writer.message(
                        [message["content"]],
                        role="tool",
                        tool=message["tool_call_id"].split(":")[0],
                        index="1",
                    )
                else:
                    writer.message([message["content"]], role="user")
                own = writer.ids
                weights += [RESULT_WEIGHT] * len(own)
            ids += own
        return EncodedEpisode(np.array(ids, np.uint16), np.array(weights, np.float32))

    def fitting(self, episode: Episode, limit: int) -> EncodedEpisode | None:
        """The episode without the last tasks where it is too long; None where one task is."""
        while len((encoded := self.encode(episode)).token_ids) > limit:
            if len(episode.starts) < 2:
                return None
            episode = episode.without_last()
        return encoded


def stream(
    seed: int,
    worker: int,
    *,
    stage: int | str = 2,
    folder: Path = NANO,
    held_out: bool = False,
    second_share: float = SECOND_SHARE,
) -> Iterator[EncodedEpisode]:
    """Training documents without end: stage 0 short and simple, 1 broad, 2 everything and several tasks, 3
    long files and outputs, long conversations, and conversations made short.

    From stage 1 on `second_share` of the sessions are of the second edition's families.
    """
    encoder = Encoder(Tokenizer.from_dir(folder))
    player = Player(seed, worker * 10 + int(stage), held_out=held_out, second_share=second_share)
    player.box.start()
    try:
        for episode in player.episodes(int(stage)):
            encoded = encoder.fitting(episode, MAX_LONG_TOKENS if int(stage) == LONG else MAX_TOKENS)
            if encoded is not None:
                yield encoded
    finally:
        player.close()


def texts(seed: int) -> Iterator[str]:
    """Pieces of text as the template cuts them, for training the tokenizer; the constant beginning
    comes once in a while.
    """
    player = Player(seed, 0)
    head = [system_text(), json.dumps(tool_declarations(), sort_keys=True, separators=(",", ":"))]
    try:
        for number, episode in enumerate(player.episodes(2)):
            if number % 50 == 0:
                yield from head
            for message in episode.messages:
                yield message["content"]
                if message["role"] == "assistant":
                    yield message["reasoning_content"]
                    for call in message.get("tool_calls", ()):
                        for value in json.loads(call["function"]["arguments"]).values():
                            yield value if isinstance(value, str) else json.dumps(value)
    finally:
        player.close()
