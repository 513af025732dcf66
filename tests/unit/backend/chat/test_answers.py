"""Answers come back as the tokens that were sampled, in whatever form a client sends them, or it is told."""

import logging
from pathlib import Path
from typing import Any

import pytest
from support.tiny_tokenizer import write_tiny_tokenizer

from k3agent.backend.chat.answers import SampledAnswers
from k3agent.backend.chat.parser import OutputParser
from k3agent.backend.chat.template import render
from k3agent.backend.chat.tokenizer import Tokenizer

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tiny_tokenizer(tmp_path)
    return Tokenizer.from_dir(tmp_path)


def sampled(tokenizer: Tokenizer, thought: str, text: str) -> list[int]:
    """An answer spelled letter by letter, as no tokenizer would."""

    def letters(value: str) -> list[int]:
        return [i for byte in value.encode() for i in tokenizer.encode(chr(byte))]

    def tag(marker: str, name: str) -> list[int]:
        return [tokenizer.special(f"<|{marker}|>"), *tokenizer.encode(name), tokenizer.special("<|sep|>")]

    ids = [*letters(thought), *tag("close", "think"), *tag("open", "response"), *letters(text)]
    return [*ids, *tag("close", "response"), *tag("close", "message"), tokenizer.special("<|end_of_msg|>")]


def remembered(
    tokenizer: Tokenizer, thought: str, text: str
) -> tuple[SampledAnswers, list[int], dict[str, Any]]:
    """The store, the ids of prompt and answer, and the message as it was sent to the client."""
    answers = SampledAnswers(tokenizer)
    prompt = render(tokenizer, [USER]).token_ids
    ids = sampled(tokenizer, thought, text)
    parser = OutputParser(tokenizer)
    parser.feed(ids)
    message = parser.message()
    assert parser.is_ended
    answers.remember(prompt, message, ids)
    return answers, prompt + ids, message


def again(tokenizer: Tokenizer, answers: SampledAnswers, message: dict[str, Any]) -> list[int]:
    history = [USER, message, {"role": "user", "content": "more"}]
    return render(tokenizer, history, substitute=answers.substitute()).token_ids


@pytest.mark.parametrize("drops_reasoning", [False, True])
@pytest.mark.parametrize("trims", [False, True])
def test_t45_an_answer_comes_back_in_another_form(
    tokenizer: Tokenizer, drops_reasoning: bool, trims: bool
) -> None:
    answers, whole, message = remembered(tokenizer, "think about think", "\n the response \n")
    if drops_reasoning:
        del message["reasoning_content"]
    if trims:
        message["content"] = message["content"].strip()
    assert again(tokenizer, answers, message)[: len(whole)] == whole
    assert answers.num_changed == 0


def test_t45_a_change_is_told_with_its_first_token(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    answers, whole, message = remembered(tokenizer, "why", "the response")
    with caplog.at_level(logging.WARNING):
        ids = again(tokenizer, answers, {**message, "content": "the answer"})
    assert ids[: len(whole)] != whole
    assert answers.num_changed == 1
    assert "came back changed" in caplog.text and "answer" in caplog.text


def test_what_was_never_sampled_here_is_no_change(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    answers, _, message = remembered(tokenizer, "why", "the response")
    other = [{"role": "user", "content": "other"}, message]
    render(tokenizer, other, substitute=answers.substitute())
    assert answers.num_changed == 0 and not caplog.records


def test_t47_each_message_of_a_split_answer_is_looked_up_alone(tokenizer: Tokenizer) -> None:
    """A client that splits one answer in two sends what was never sampled: it is rendered as text."""
    answers, whole, message = remembered(tokenizer, "why", "the response")
    halves = [
        {**message, "content": "the "},
        {"role": "assistant", "content": "response", "reasoning_content": ""},
    ]
    split = render(tokenizer, [USER, *halves], substitute=answers.substitute()).token_ids
    plain = render(tokenizer, [USER, *halves]).token_ids
    assert split == plain and split[: len(whole)] != whole
    assert answers.num_changed == 1


def test_a_retry_is_no_change(tokenizer: Tokenizer) -> None:
    answers, whole, message = remembered(tokenizer, "why", "the response")
    prompt = render(tokenizer, [USER]).token_ids
    other = sampled(tokenizer, "so", "another")
    parser = OutputParser(tokenizer)
    parser.feed(other)
    answers.remember(prompt, parser.message(), other)
    assert again(tokenizer, answers, message)[: len(whole)] == whole
    assert again(tokenizer, answers, parser.message())[: len(prompt) + len(other)] == prompt + other
    assert answers.num_changed == 0
