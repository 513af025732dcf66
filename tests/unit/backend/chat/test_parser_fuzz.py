"""The output parser on random token streams: it never raises, loses no whole call, and cuts do not matter.

`K3AGENT_FUZZ_STREAMS` sets the number of streams; the slow test takes 100,000.
"""

import itertools
import json
import os
import random
from pathlib import Path

import pytest
from support.tiny_tokenizer import write_tiny_tokenizer

from k3agent.backend.chat.parser import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    OutputParser,
    ReasoningDelta,
    ReasoningWasText,
    TextDelta,
)
from k3agent.backend.chat.template import render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer

MARKERS = ("<|open|>", "<|close|>", "<|sep|>")
WORDS = ("think", "response", "tools", "call", "argument", "json", "message", "foo", "")
ATTRIBUTES = (
    ' tool="f"',
    ' tool="',
    ' index="1"',
    ' key="k"',
    ' key="k" type="number"',
    ' type="object"',
    '="',
)
TEXTS = (
    "1",
    "true",
    '{"a": [',
    "}",
    "[" * 60,
    '"',
    "\\",
    "é🦀",
    "\x00",
    " ",
    "\n",
    "<|open|>think<|sep|>",
    "&quot;",
)
SEEDS_PER_CASE = 2_500


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Tokenizer.from_dir(folder)


class Streams:
    """Makes streams of pieces: tags whole and torn, text, single tokens, and now and then a whole call."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._random = random.Random(seed)
        self._tokenizer = tokenizer
        self._marker = [tokenizer.special(name) for name in MARKERS]
        self._ends = [tokenizer.special(name) for name in ("<|end_of_msg|>", "[EOS]")]
        self._encoded = {text: tokenizer.encode(text) for text in (*WORDS, *ATTRIBUTES, *TEXTS)}

    def stream(self) -> tuple[list[int], list[tuple[str, str]]]:
        """Token ids, and name and arguments of each well-formed call among them."""
        choose = self._random
        ids: list[int] = []
        calls: list[tuple[str, str]] = []
        for _ in range(choose.randrange(1, 14)):
            kind = choose.random()
            if kind < 0.35:
                ids += self._tag()
            elif kind < 0.5:
                ids.append(choose.choice(self._marker))
            elif kind < 0.6:
                ids += self._encoded[choose.choice(ATTRIBUTES)]
            elif kind < 0.8:
                ids += self._encoded[choose.choice(TEXTS)]
            elif kind < 0.9:
                ids.append(choose.randrange(self._tokenizer.vocab_size))
            elif kind < 0.97:
                piece, call = self._call()
                ids += piece
                calls.append(call)
            else:
                ids.append(choose.choice(self._ends))
        # what stands behind the end is not part of the answer
        end = next((i for i, token in enumerate(ids) if token in self._ends), None)
        return ids, calls if end is None else []

    def _tag(self) -> list[int]:
        choose, (opening, closing, sep) = self._random, self._marker
        ids = [choose.choice((opening, closing)), *self._encoded[choose.choice(WORDS)]]
        if choose.random() < 0.3:
            ids += self._encoded[choose.choice(ATTRIBUTES)]
        return [*ids, sep]

    def _call(self) -> tuple[list[int], tuple[str, str]]:
        choose = self._random
        values = (1, -2.5, True, None, "text", "<|close|>", '"', [1, {"a": "é"}], {"k": []}, "")
        arguments = {f"k{n}": choose.choice(values) for n in range(choose.randrange(3))}
        text = json.dumps(arguments, ensure_ascii=False)
        name = choose.choice(("read", "a&b", 'q"'))
        message = {"content": "", "tool_calls": [{"function": {"name": name, "arguments": text}}]}
        ids = render_assistant(self._tokenizer, message)
        opening, _, _ = self._marker
        head = [opening, *self._tokenizer.encode("call")]
        start = next(i for i in range(len(ids)) if ids[i : i + len(head)] == head)
        closed = [self._marker[1], *self._tokenizer.encode("call"), self._marker[2]]
        stop = next(i for i in range(start, len(ids)) if ids[i : i + len(closed)] == closed) + len(closed)
        return ids[start:stop], (name, text)


def parse(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int], channel: str
) -> tuple[OutputParser, list[Event]]:
    numbers = itertools.count()
    parser = OutputParser(tokenizer, channel, new_call_id=lambda: f"c{next(numbers)}")  # type: ignore[arg-type]
    events: list[Event] = []
    for begin, end in itertools.pairwise([0, *cuts, len(ids)]):
        events += parser.feed(ids[begin:end])
    return parser, events + parser.finish()


def replayed(events: list[Event]) -> tuple[str, str, list[list[str]], int]:
    """What a client makes of the events: reasoning, text, calls, and how many calls ended."""
    reasoning, text, calls, num_ended = "", "", [], 0
    for event in events:
        match event:
            case ReasoningDelta(piece):
                reasoning += piece
            case TextDelta(piece):
                text += piece
            case ReasoningWasText(piece):
                reasoning, text = reasoning.removesuffix(piece), text + piece
            case CallStarted(index=index, name=name):
                assert index == len(calls)
                calls.append([name, ""])
            case ArgumentsDelta(index=index, text=piece):
                assert index == len(calls) - 1
                calls[index][1] += piece
            case CallEnded():
                num_ended += 1
    return reasoning, text, calls, num_ended


def check(
    tokenizer: Tokenizer, ids: list[int], calls: list[tuple[str, str]], cuts: list[int], channel: str
) -> None:
    whole, events = parse(tokenizer, ids, [], channel)
    message = whole.message()
    reasoning, text, made, num_ended = replayed(events)
    assert (reasoning, text) == (whole.reasoning, whole.text)
    assert [tuple(call) for call in made] == [(c.name, c.arguments) for c in whole.calls]
    assert num_ended == sum(call.is_complete for call in whole.calls)
    cut, cut_events = parse(tokenizer, ids, cuts, channel)
    assert cut.message() == message and replayed(cut_events) == replayed(events)
    assert (cut.damage, cut.is_ended, cut.is_call_open) == (whole.damage, whole.is_ended, whole.is_call_open)
    found = [(c.name, c.arguments) for c in whole.calls if c.is_complete]
    rest = iter(found)
    for call in calls:
        assert call in rest, f"the call {call} is lost; found {found}"


def run(tokenizer: Tokenizer, count: int, seed: int) -> None:
    streams = Streams(tokenizer, seed)
    choose = random.Random(seed + 1)
    for number in range(count):
        ids, calls = streams.stream()
        if number % 50 == 0:
            all_cuts = [[i] for i in range(len(ids) + 1)]
        else:
            all_cuts = [sorted(choose.choices(range(len(ids) + 1), k=choose.randrange(1, 6)))]
        for cuts in all_cuts:
            try:
                check(tokenizer, ids, calls, cuts, choose.choice(("think", "response")))
            except Exception as error:
                text = tokenizer.decode(ids)
                raise AssertionError(
                    f"seed {seed}, stream {number}, cuts {cuts}: {text!r}: {error}"
                ) from error


@pytest.mark.parametrize("seed", range(2))
def test_random_streams(tiny: Tokenizer, seed: int) -> None:
    run(tiny, int(os.environ.get("K3AGENT_FUZZ_STREAMS", SEEDS_PER_CASE)), seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_100_000_random_streams(tiny: Tokenizer) -> None:
    run(tiny, 100_000, 1000)


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 10_000, '{"a":' * 50_000, "1e999999", "NaN", "-"])
def test_extreme_values_become_strings(tiny: Tokenizer, value: str) -> None:
    """What JSON readers choke on stays a string, so that the arguments are one valid object."""
    opening, closing, sep = (tiny.special(name) for name in MARKERS)
    ids = [
        opening,
        *tiny.encode('call tool="f"'),
        sep,
        opening,
        *tiny.encode('argument key="k" type="number"'),
        sep,
    ]
    ids += [*tiny.encode(value), closing, *tiny.encode("argument"), sep, closing, *tiny.encode("call"), sep]
    parser, _ = parse(tiny, ids, [], "response")
    assert parser.calls[0].is_complete
    found = json.loads(parser.calls[0].arguments)["k"]
    assert found == value or found == float("inf")


def test_the_rank_file_of_the_release_too() -> None:
    folder = Path(__file__).resolve().parents[4].parent / "shared" / "fixtures" / "kimi-tokenizer"
    if not folder.exists():
        pytest.skip("the fixtures folder is not beside the repository")
    run(Tokenizer.from_dir(folder), 300, 7)
