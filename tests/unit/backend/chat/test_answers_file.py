"""Sampled answers outlive the process, whatever happened to their file."""

from pathlib import Path

import pytest
from support.tiny_tokenizer import write_tiny_tokenizer

from k3agent.backend.chat.answers import SampledAnswers
from k3agent.backend.chat.template import render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer

PROMPT = [1, 2, 3]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tiny_tokenizer(tmp_path)
    return Tokenizer.from_dir(tmp_path)


def message(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text, "reasoning_content": ""}


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """Other ids for the same answer: `think` letter by letter."""
    (merged,) = tokenizer.encode("think")
    ids = render_assistant(tokenizer, message(text))
    place = len(ids) - 1 - ids[::-1].index(merged)
    return [*ids[:place], *b"think", *ids[place + 1 :]]


def found(answers: SampledAnswers, tokenizer: Tokenizer, text: str) -> list[int] | None:
    return answers.substitute()(PROMPT, render_assistant(tokenizer, message(text)))


def test_the_next_process_knows_them(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "answers.bin"
    first = SampledAnswers(tokenizer, file=file)
    for text in ("I think", "You think"):
        first.remember(PROMPT, message(text), spelled(tokenizer, text))
    assert file.stat().st_mode & 0o077 == 0
    second = SampledAnswers(tokenizer, file=file)
    assert found(second, tokenizer, "I think") == spelled(tokenizer, "I think")
    assert found(second, tokenizer, "You think") == spelled(tokenizer, "You think")
    assert found(second, tokenizer, "They think") is None
    assert found(SampledAnswers(tokenizer), tokenizer, "I think") is None


@pytest.mark.parametrize("how", ["cut", "garbage in front", "flipped", "not ours"])
def test_what_is_damaged_is_left_out(tokenizer: Tokenizer, tmp_path: Path, how: str) -> None:
    file = tmp_path / "answers.bin"
    answers = SampledAnswers(tokenizer, file=file)
    for text in ("I think", "You think"):
        answers.remember(PROMPT, message(text), spelled(tokenizer, text))
    data = file.read_bytes()
    file.write_bytes(
        {
            "cut": data[:-3],
            "garbage in front": b"K3A1xyz" + data,
            "flipped": data[:30] + bytes([data[30] ^ 1]) + data[31:],
            "not ours": b"hello" * 100,
        }[how]
    )
    known = SampledAnswers(tokenizer, file=file)
    expected = {"cut": (True, False), "garbage in front": (True, True), "flipped": (False, True)}
    expected |= {"not ours": (False, False)}
    assert (
        found(known, tokenizer, "I think") is not None,
        found(known, tokenizer, "You think") is not None,
    ) == expected[how]
    known.remember(PROMPT, message("We think"), spelled(tokenizer, "We think"))
    assert found(SampledAnswers(tokenizer, file=file), tokenizer, "We think") is not None


def test_the_file_stays_small(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "answers.bin"
    size = len(spelled(tokenizer, "I think 59"))
    for number in range(60):
        text = f"I think {number}"
        answers = SampledAnswers(tokenizer, max_ids=3 * size, file=file)
        answers.remember(PROMPT, message(text), spelled(tokenizer, text))
    known = SampledAnswers(tokenizer, max_ids=3 * size, file=file)
    assert found(known, tokenizer, "I think 59") == spelled(tokenizer, "I think 59")
    assert found(known, tokenizer, "I think 9") is None
    assert file.stat().st_size < 8 * (4 * size + 28)


def test_another_vocabulary_finds_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "answers.bin"
    SampledAnswers(tokenizer, file=file).remember(PROMPT, message("I think"), spelled(tokenizer, "I think"))
    ranks = {tokenizer.token_bytes(i): i for i in range(300) if tokenizer.token_bytes(i)}
    ranks = {piece: rank for piece, rank in ranks.items() if piece not in (b"re", b"res")}
    other = Tokenizer(r"\p{L}+|[^\p{L}]", ranks, tokenizer.special_tokens)
    assert found(SampledAnswers(other, file=file), other, "I think") is None


def test_a_file_that_cannot_be_written_costs_only_the_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    answers = SampledAnswers(tokenizer, file=tmp_path / "nowhere" / "answers.bin")
    answers.remember(PROMPT, message("I think"), spelled(tokenizer, "I think"))
    assert found(answers, tokenizer, "I think") is not None
