"""nano's tokenizer: its pieces, exact round trips, and that the rank file gives what was trained."""

from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.training import tokenizer_training as training

ROOT = Path(__file__).parents[4]
NUM_RANKS = 600
COMPILED = regex.compile(training.PATTERN)


def texts() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in sorted((ROOT / "backend").rglob("*.py"))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, object]:
    folder = tmp_path_factory.mktemp("tokenizer")
    ranks, library = training.train(texts(), NUM_RANKS)
    training.write(folder, ranks)
    return Tokenizer.from_dir(folder), library


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("parseHTTPReply2x", ["parse", "HTTP", "Reply", "2", "x"]),
        ("max_retries = 10", ["max", "_", "retries", " ", "=", " ", "1", "0"]),
        ("a\n\n    b", ["a", "\n\n    ", "b"]),
        ("if x:\r\n\ty", ["if", " ", "x", ":", "\r\n\t", "y"]),
        ("12\t    x", ["1", "2", "\t", "    ", "x"]),
        ("==('", ["=", "=", "(", "'"]),
        ("naïve 中文 é", ["naïve", " ", "中文", " ", "é"]),
    ],
)
def test_pieces(text: str, pieces: list[str]) -> None:
    assert COMPILED.findall(text) == pieces


@given(st.text())
def test_pieces_lose_nothing(text: str) -> None:
    assert "".join(COMPILED.findall(text)) == text


def test_rank_file_gives_the_trained_segmentation(trained: tuple[Tokenizer, object]) -> None:
    tokenizer, library = trained
    same = total = 0
    for text in texts():
        mine, theirs = tokenizer.encode(text), library.encode(text).ids  # pyright: ignore[reportAttributeAccessIssue]
        total += 1
        same += mine == theirs
    # The library merges only pairs it has listed, tiktoken any two tokens that form a third: rarely, they
    # differ.
    assert same >= 0.9 * total


def test_round_trip_and_identifiers(trained: tuple[Tokenizer, object]) -> None:
    tokenizer, _ = trained
    for text in [*texts()[:5], "tab\tend \u2028 \x00 \N{GRINNING FACE}", "e\u0301"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    name = tokenizer.encode("load_modelConfig2")
    for context in ("x = {}(1)", '"{}"', "    {}:", "a.{},b"):
        before, after = context.split("{}")
        ids = tokenizer.encode(context.format("load_modelConfig2"))
        assert ids == [*tokenizer.encode(before), *name, *tokenizer.encode(after)]


def test_special_tokens_are_the_last_ids(trained: tuple[Tokenizer, object]) -> None:
    tokenizer, _ = trained
    assert tokenizer.vocab_size == 4096
    assert tokenizer.special("[BOS]") == 4080
    assert tokenizer.special("<|open|>") == 4083
    assert tokenizer.special("[PAD]") == 4091


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="only"):
        training.train(["a b c"], 5000)
