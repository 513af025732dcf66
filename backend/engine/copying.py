"""Helps a small model to repeat unusual words exactly: raises what continues a word of the given text.

A model of few million parameters knows which file or name it means, and still loses its way among the pieces
of a word that it never saw in training. What users and tools said is the given text; the model's own words
are not, so that a slip does not become a precedent. Inside a word of the answer the pieces so far point to
words of the given text that begin so; the pieces that follow there, or the end of the word where one ends
there, are raised. Words alone: raising what follows a run of words made copies run past their end. The raise
is added to log-probabilities: a model that is sure of a new word can still say it. A folder whose config.json
has no `k3agent.copying` is sampled as it is.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.errors import ModelFilesError

_WORD = re.compile(rb"[A-Za-z0-9_\x80-\xff]+")
_GIVEN = re.compile(rb'message role="(user|tool)"')
_END = -1
"""In the place of a token: the word ends here."""


@dataclass(frozen=True, slots=True)
class Strengths:
    """What is added to the log-probabilities of tokens that copy."""

    word: float = 0.0
    """Continues the word that the pieces so far begin."""

    @classmethod
    def from_dir(cls, folder: str | Path) -> "Strengths":
        """Read `k3agent.copying` of a config.json; all are 0 where there is none."""
        file = Path(folder) / "config.json"
        raw: Any = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        own = raw.get("k3agent") or {}
        found = own.get("copying") if isinstance(own, dict) else own
        known = [f.name for f in fields(cls)]
        if found is None:
            return cls()
        is_plain = isinstance(found, dict) and found.keys() <= set(known)
        if not is_plain or not all(type(v) in (int, float) and 0 <= v <= 100 for v in found.values()):
            raise ModelFilesError(
                f"{file}: k3agent.copying is {found!r}, not numbers from 0 to 100 for {', '.join(known)}."
                " Correct it, or remove it to sample without."
            )
        return cls(**{name: float(value) for name, value in found.items()})

    @property
    def is_zero(self) -> bool:
        return not any(getattr(self, f.name) for f in fields(self))


class Copying:
    """What a model and its vocabulary need; one per engine."""

    def __init__(self, strengths: Strengths, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.strengths = strengths
        self.vocab_size = vocab_size
        self.openers = tokenizer.special("<|open|>"), tokenizer.special("<|close|>")
        self.sep = tokenizer.special("<|sep|>")
        self.decode = tokenizer.decode_bytes
        self.is_word = [
            not tokenizer.is_special(i) and _WORD.fullmatch(tokenizer.token_bytes(i)) is not None
            for i in range(tokenizer.vocab_size)
        ]
        self.is_word += [False] * (vocab_size - len(self.is_word))
        self.no_words = torch.tensor([0.0 if word else 1.0 for word in self.is_word])

    @classmethod
    def from_dir(cls, folder: str | Path, tokenizer: Tokenizer, vocab_size: int) -> "Copying | None":
        """None for a folder that does not ask for it."""
        strengths = Strengths.from_dir(folder)
        return None if strengths.is_zero else cls(strengths, tokenizer, vocab_size)

    def begin(self, prompt_ids: Iterable[int]) -> "Copied":
        """The copying of one answer."""
        copied = Copied(self)
        copied.read(prompt_ids)
        return copied


class Copied:
    """One prompt and its answer, read token by token. Guesses are not read before they are decided, so there
    is nothing to take back.
    """

    def __init__(self, rule: Copying) -> None:
        self._rule = rule
        self._is_given = False
        self._tag: list[int] | None = None
        """What was read of a tag whose marker came, until its end."""
        self._pieces: tuple[int, ...] = ()
        """Of the word that is being written."""
        self._words: dict[tuple[int, ...], set[int]] = {}
        """Beginnings of given words to the pieces that follow them."""

    def read(self, token_ids: Iterable[int]) -> None:
        """Take the next tokens of prompt or answer, which are decided."""
        for token_id in token_ids:
            self._read(token_id)

    def _read(self, token_id: int) -> None:
        rule = self._rule
        is_text = self._tag is None and token_id not in rule.openers
        if is_text and token_id < rule.vocab_size and rule.is_word[token_id]:
            if self._is_given:
                self._words.setdefault(self._pieces, set()).add(token_id)
            self._pieces += (token_id,)
        elif self._pieces:
            if self._is_given:
                self._words.setdefault(self._pieces, set()).add(_END)
            self._pieces = ()
        if not is_text:
            self._follow(token_id)

    def _follow(self, token_id: int) -> None:
        """Markup says whose text comes."""
        rule = self._rule
        if token_id in rule.openers:
            self._tag = [] if token_id == rule.openers[0] else [token_id]
        elif self._tag is not None and token_id == rule.sep:
            tag = rule.decode(self._tag)
            if tag.startswith(b"message"):
                self._is_given = _GIVEN.match(tag) is not None
            self._tag = None
        elif self._tag is not None:
            self._tag.append(token_id)

    def raised(self) -> dict[int, float]:
        """What is added for which next token; under -1, what is added for all that end the word."""
        if self._tag is not None or self._is_given or self._rule.strengths.is_zero:
            return {}
        return dict.fromkeys(
            self._words.get(self._pieces, ()) if self._pieces else (), self._rule.strengths.word
        )

    def apply(self, logits: Tensor) -> Tensor:
        """logits [V] of the next token, raised where it copies; the same tensor where nothing does."""
        found = self.raised()
        if not found:
            return logits
        end = found.pop(_END, 0.0)
        added = self._rule.no_words.to(logits) * end if end else torch.zeros_like(logits)
        ids = torch.tensor(list(found), dtype=torch.long, device=logits.device)
        added[ids] = torch.tensor(list(found.values()), dtype=logits.dtype, device=logits.device)
        return logits + added
