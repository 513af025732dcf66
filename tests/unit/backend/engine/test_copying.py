"""Copying from the given text: words by their pieces, their ends, nothing where none is asked."""

import json
from collections.abc import Sequence as Several
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from k3agent.backend.chat.template import Writer  # noqa: E402  # after the skip
from k3agent.backend.chat.tokenizer import Tokenizer  # noqa: E402
from k3agent.backend.engine.copying import Copied, Copying, Strengths  # noqa: E402
from k3agent.backend.engine.engine import Engine  # noqa: E402
from k3agent.backend.engine.grammar import OneOf  # noqa: E402
from k3agent.backend.engine.messages import Add, EngineSettings, Finished, Generated, SamplingParams  # noqa: E402
from k3agent.backend.engine.runner import Runner  # noqa: E402
from k3agent.backend.engine.sampler import Choice, Sampler  # noqa: E402
from k3agent.backend.errors import ModelFilesError  # noqa: E402
from k3agent.backend.training.encode import NANO  # noqa: E402
from k3agent.backend.training.export import COPYING  # noqa: E402

WORDS_ONLY = Strengths(word=3.0)
END = -1
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    """Its pieces are single bytes, but for the words of the markup."""
    return Tokenizer.from_dir(tiny_dir)


class Talk:
    """A conversation up to an answer that is being written."""

    def __init__(self, tokenizer: Tokenizer, strengths: Strengths = WORDS_ONLY) -> None:
        self.tokenizer = tokenizer
        self.writer = Writer(tokenizer)
        self.rule = Copying(strengths, tokenizer, tokenizer.vocab_size)

    def message(self, role: str, text: str) -> "Talk":
        self.writer.message([text], role=role)
        return self

    def answer(self, text: str, tag: str = "think") -> Copied:
        self.writer.open("message", role="assistant")
        self.writer.open(tag)
        self.writer.text(text)
        return self.rule.begin(self.writer.ids)

    def raised(self, text: str) -> dict[str, float]:
        """What is raised behind `text`; END as an empty string."""
        found = self.answer(text).raised()
        return {"" if i == END else self.tokenizer.decode([i]): value for i, value in found.items()}


# --- words


def test_pieces_so_far_point_to_the_words_that_begin_so(tokenizer: Tokenizer) -> None:
    def talk() -> Talk:
        return Talk(tokenizer).message("user", "Open contract.py, not the content.")

    assert talk().raised("It is cont") == {"r": 3.0, "e": 3.0}
    assert talk().raised("It is contr") == {"a": 3.0}
    assert talk().raised("It is contract") == {"": 3.0}
    assert talk().raised("It is ") == talk().raised("It is (") == {}
    assert talk().raised("It is conv") == {}, "no given word begins so"
    assert talk().raised("It is ontr") == {}, "the beginning counts, not any part"


def test_a_word_may_end_where_a_longer_one_goes_on(tokenizer: Tokenizer) -> None:
    talk = Talk(tokenizer).message("tool", "def load_all(): return load(x)")
    assert talk.raised("call load") == {"_": 3.0, "": 3.0}


def test_only_users_and_tools_give_words(tokenizer: Tokenizer) -> None:
    for role, is_given in (("user", True), ("tool", True), ("system", False), ("assistant", False)):
        assert bool(Talk(tokenizer).message(role, "console").raised("con")) is is_given
    assert Talk(tokenizer).raised("console con") == {}, "a slip of this answer is no precedent"


def test_markup_is_neither_given_nor_raised(tokenizer: Tokenizer) -> None:
    talk = Talk(tokenizer).message("user", "x")
    assert talk.raised("mess") == {}, "the tags around the request are not its text"
    talk = Talk(tokenizer).message("user", "xyz")
    copied = talk.answer("")
    copied.read([tokenizer.special("<|close|>"), *tokenizer.encode("think"), tokenizer.special("<|sep|>")])
    copied.read([tokenizer.special("<|open|>"), *tokenizer.encode("xy")])
    assert copied.raised() == {}, "inside a tag"
    copied.read([tokenizer.special("<|sep|>"), *tokenizer.encode("xy")])
    assert copied.raised() == {tokenizer.encode("z")[0]: 3.0}


def test_text_without_messages_is_left_alone(tokenizer: Tokenizer) -> None:
    copied = Copying(WORDS_ONLY, tokenizer, tokenizer.vocab_size).begin(
        tokenizer.encode("contract " * 5 + "cont")
    )
    assert copied.raised() == {}


# --- what becomes of logits


def test_a_word_end_raises_all_that_is_no_word(tokenizer: Tokenizer) -> None:
    talk = Talk(tokenizer).message("user", "contract")
    logits = torch.randn(tokenizer.vocab_size)
    change = talk.answer("contract").apply(logits) - logits
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.token_bytes(token_id)
        is_word = piece.replace(b"_", b"a").isalnum() or (piece != b"" and min(piece) >= 128)
        is_raised = tokenizer.is_special(token_id) or not is_word
        assert change[token_id] == pytest.approx(3.0 if is_raised else 0.0, abs=1e-5)


def test_a_model_that_is_sure_says_a_new_word(tokenizer: Tokenizer) -> None:
    copied = Talk(tokenizer).message("user", "contract").answer("cont")
    (new,), (known,) = tokenizer.encode("e"), tokenizer.encode("r")
    logits = torch.zeros(tokenizer.vocab_size)
    logits[new] = 2.0
    assert int(copied.apply(logits).argmax()) == known
    logits[new] = 4.0
    assert int(copied.apply(logits).argmax()) == new


def test_the_sampler_raises_in_free_text_only(tokenizer: Tokenizer) -> None:
    copied = Talk(tokenizer).message("user", "contract").answer("cont")
    (new,), (known,) = tokenizer.encode("e"), tokenizer.encode("r")
    logits = torch.zeros(tokenizer.vocab_size)
    logits[new] = 2.0
    params = SamplingParams(temperature=0, logprobs=1)
    choice = Choice(params, [], tokenizer.vocab_size, CPU, copied)
    assert not choice.is_plain
    chosen = Sampler(CPU).sample(logits.clone(), choice)
    assert chosen.token_id == known
    assert chosen.logprobs is not None and chosen.logprobs.top[0][0] == new, "they stay the model's own"
    assert Sampler(CPU).sample(logits.clone(), choice, OneOf(frozenset((new, known)))).token_id == new
    choice.took(tokenizer.encode("ract"))
    assert copied.raised() == {END: 3.0}


# --- laws

pieces = st.sampled_from(["ab", "a", "b", "_", " ", ".", "é", "1"])
texts = st.lists(pieces, max_size=30).map("".join)


@given(given=texts, own=texts, logits=st.lists(st.floats(-30, 30, width=32), min_size=320, max_size=320))
def test_with_strength_0_logits_are_untouched(
    tokenizer: Tokenizer, given: str, own: str, logits: list[float]
) -> None:
    row = torch.tensor(logits)
    before = row.clone()
    got = Talk(tokenizer, Strengths()).message("user", given).answer(own).apply(row)
    assert got is row and torch.equal(row, before)


def slow(words: Several[str], own: str) -> dict[str, float]:
    """The rule for words as the module's docstring tells it, of texts without images and markup."""
    begun = own[len(own.rstrip("abé1_")) :]
    if not begun:
        return {}
    follows = {word.encode()[len(begun.encode()) :][:1] for word in words if word.startswith(begun)}
    return dict.fromkeys((f.decode("latin-1") for f in follows), 3.0)


@given(user=texts, tool=texts, own=texts)
def test_it_agrees_with_the_definition(tokenizer: Tokenizer, user: str, tool: str, own: str) -> None:
    given = [word for text in (user, tool) for word in text.replace(".", " ").split()]
    talk = Talk(tokenizer).message("user", user).message("assistant", "abb aab").message("tool", tool)
    found = talk.answer(own).raised()
    got = {"" if i == END else tokenizer.token_bytes(i).decode("latin-1"): v for i, v in found.items()}
    assert got == slow(given, own)


@given(given=texts, own=texts, cut=st.integers(0, 200))
def test_what_was_read_counts_not_how_it_came(tokenizer: Tokenizer, given: str, own: str, cut: int) -> None:
    talk = Talk(tokenizer).message("user", given)
    whole = talk.answer(own)
    ids = talk.writer.ids
    parts = talk.rule.begin(ids[:cut])
    for token_id in ids[cut:]:
        parts.raised()
        parts.read([token_id])
    assert parts.raised() == whole.raised()


# --- the folder


def test_a_folder_says_whether_and_how_much(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def read(config: Any) -> Copying | None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return Copying.from_dir(tmp_path, tokenizer, tokenizer.vocab_size)

    assert read({"text_config": {}}) is None
    assert read({"k3agent": {}}) is read({"k3agent": {"copying": {"word": 0}}}) is None
    made = read({"k3agent": {"copying": {"word": 3.5}}})
    assert made is not None and made.strengths == Strengths(word=3.5)
    for wrong in (5, {"words": 3}, {"word": "3"}, {"word": -1}, {"word": True}, {"word": 1e9}, []):
        with pytest.raises(ModelFilesError, match=r"config\.json: k3agent\.copying is .*word"):
            read({"k3agent": {"copying": wrong}})


def test_nano_asks_for_it() -> None:
    if not (NANO / "config.json").is_file():
        pytest.skip("the embedded model is not here")
    assert Strengths.from_dir(NANO) == Strengths(**COPYING)


# --- the engine


def answers(folder: Path, prompt: list[int], **settings: Any) -> tuple[list[list[int]], int, int]:
    """Greedy and seeded answers of an engine on a folder, and how many guesses were right and wrong."""
    options = EngineSettings(
        model_dir=str(folder), threads=1, cache_bytes=8 << 20, max_model_len=2048, **settings
    )
    engine = Engine(Runner.load(options)[0], Tokenizer.from_dir(folder), options)
    found: list[list[int]] = []
    num_right = num_wrong = 0
    for number, more in enumerate(({"temperature": 0.0}, {"temperature": 0.7, "seed": 5})):
        params = SamplingParams(max_tokens=150, ignore_eos=True, **more)
        engine.add(Add(request_id=str(number), token_ids=prompt, params=params))
        found.append([])
        while engine.has_work:
            for report in engine.step():
                found[-1] += report.token_ids if isinstance(report, Generated) else []
                if isinstance(report, Finished):
                    num_right += report.num_accepted
                    num_wrong += report.num_draft - report.num_accepted
    return found, num_right, num_wrong


def test_answers_are_the_same_with_and_without_guesses(
    tiny_dir: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for file in tiny_dir.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    config = json.loads((tiny_dir / "config.json").read_text())
    config["k3agent"] = {"copying": {"word": 10}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    talk = Talk(tokenizer).message("user", "Rename contract_item in stock/contracts.py to content_item. " * 3)
    talk.answer("Rename contract")
    prompt = talk.writer.ids
    without, _, _ = answers(tmp_path, prompt, speculation="off")
    guessed, num_right, num_wrong = answers(tmp_path, prompt, speculation="prompt-lookup")
    assert guessed == without and num_right > 5 and num_wrong > 5
    plain, _, _ = answers(tiny_dir, prompt, speculation="off")
    assert plain != without, "the answers would be the same without any copying"
