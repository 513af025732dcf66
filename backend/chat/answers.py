"""Remembers the ids that were really sampled for each answer: tokens, not text.

A sampled answer may spell its text with other tokens than the tokenizer would. Rendering it from the message
then gives other ids, and the next request misses the prefix cache. So the ids are kept under a hash of the
prompt and of the rendered answer, and put back when the client returns the message; also when it returns it
without the reasoning or without blanks around the text, as many do. A file keeps them for the next server,
whose disk cache would miss otherwise. What comes back in any other form is logged with the first token that
differs.
"""

import hashlib
import logging
import os
import struct
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from k3agent.backend.chat.template import Json, Substitute, render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_MAX_LATEST = 256
"""Prompts whose answers are looked after, and how many answers of each."""
_MAX_SAID = 4
_MAGIC = b"K3A1"
_KEY_BYTES = 16
_ID_BYTES = array("I").itemsize
_HEAD = struct.Struct(f"<4sII{_KEY_BYTES}s")
"""Magic, bytes of the ids, checksum of key and ids, key; the ids follow."""


class SampledAnswers:
    """A bounded map, least recently used answers leave first. `max_ids` bounds the sum of the kept ids.

    With a `file`, what is remembered is also appended there, and what is there is known from the start.
    """

    def __init__(self, tokenizer: Tokenizer, max_ids: int = 2_000_000, file: Path | None = None) -> None:
        self._tokenizer = tokenizer
        self._max_ids = max_ids
        self._num_bytes = 0
        self.num_changed = 0
        """Answers that came back in a form that nobody had sampled."""
        self._latest: OrderedDict[bytes, list[bytes]] = OrderedDict()
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._salt = hashlib.blake2b(tokenizer.decode_bytes(range(tokenizer.vocab_size)), digest_size=16)
        self._file = file
        if file is not None:
            self._load(file)

    def remember(
        self, prompt_ids: Sequence[int], message: Json, sampled_ids: Sequence[int], thinking: bool = True
    ) -> None:
        """Keep `sampled_ids` for each form of `message` that rendering would give other ids for."""
        sampled = array("I", sampled_ids).tobytes()
        if len(sampled_ids) > self._max_ids:
            return
        prompt = _extend(self._hash(), prompt_ids)
        self._note(prompt.digest(), sampled)
        keys: set[bytes] = set()
        for form in _forms(message):
            rendered = render_assistant(self._tokenizer, form, thinking)
            key = _extend(prompt.copy(), rendered).digest()
            if array("I", rendered).tobytes() == sampled or key in keys:
                continue
            keys.add(key)
            self._keep(key, sampled)
            if self._file is not None:
                self._append(self._file, _record(key, sampled))

    def substitute(self) -> Substitute:
        """A look-up for one call of `render`; it hashes the growing prompt only once."""
        prefix = self._hash()
        num_hashed = 0

        def look_up(before: list[int], rendered: list[int]) -> list[int] | None:
            nonlocal num_hashed
            if not self._answers and not self._latest:
                return None
            _extend(prefix, before[num_hashed:])
            num_hashed = len(before)
            key = _extend(prefix.copy(), rendered).digest()
            sampled = self._answers.get(key)
            if sampled is None:
                self._tell_change(prefix.digest(), rendered)
                return None
            self._answers.move_to_end(key)
            return array("I", sampled).tolist()

        return look_up

    def _note(self, prompt: bytes, sampled: bytes) -> None:
        """Remember what was said to a prompt, to see whether it comes back."""
        said = self._latest.setdefault(prompt, [])
        said.append(sampled)
        del said[:-_MAX_SAID]
        self._latest.move_to_end(prompt)
        while len(self._latest) > _MAX_LATEST:
            self._latest.popitem(last=False)

    def _tell_change(self, prompt: bytes, rendered: Sequence[int]) -> None:
        """Log where an answer that came back is not the one that was sampled."""
        said = [array("I", ids).tolist() for ids in self._latest.get(prompt, ())]
        if not said or list(rendered) in said:
            return
        place, ids = max((_num_common(ids, rendered), ids) for ids in said)
        self.num_changed += 1
        was, is_now = (self._tokenizer.decode(part[place : place + 8]) for part in (ids, list(rendered)))
        log.warning(
            "an answer of %d tokens came back changed: from token %d on it was %r and is %r; what follows is"
            " computed again",
            len(ids),
            place,
            was,
            is_now,
        )

    def _hash(self) -> "hashlib.blake2b":
        """Answers of another vocabulary are never found."""
        return hashlib.blake2b(digest_size=_KEY_BYTES, salt=self._salt.digest())

    def _keep(self, key: bytes, sampled: bytes) -> None:
        self._num_bytes += len(sampled) - len(self._answers.pop(key, b""))
        self._answers[key] = sampled
        while self._num_bytes > _ID_BYTES * self._max_ids:
            _key, old = self._answers.popitem(last=False)
            self._num_bytes -= len(old)

    # --- the file

    def _load(self, file: Path) -> None:
        """What cannot be read is left out; a file that is mostly old is written anew."""
        try:
            data = file.read_bytes() if file.is_file() else b""
            for key, ids in _records(data):
                self._keep(key, ids)
            kept = [_record(key, ids) for key, ids in self._answers.items()]
            if len(data) > 2 * sum(map(len, kept)):
                draft = file.with_name(f"{file.name}.{os.getpid()}")
                draft.unlink(missing_ok=True)
                self._append(draft, b"".join(kept))
                draft.replace(file)
        except OSError as error:
            log.warning("answers of earlier servers are not known: %s", error)

    def _append(self, file: Path, data: bytes) -> None:
        """In one write, so that servers that share the file do not mix their records."""
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._file = None
            log.warning("answers are not kept for later servers: %s", error)


def _forms(message: Json) -> Iterator[Json]:
    """The forms in which clients send an answer back: as it was, without the reasoning, trimmed."""
    bare = {**message, "reasoning_content": ""}
    for form in (message, bare) if message.get("reasoning_content") else (message,):
        yield form
        content = form.get("content")
        if isinstance(content, str) and content != content.strip():
            yield {**form, "content": content.strip()}


def _num_common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _record(key: bytes, ids: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, len(ids), zlib.crc32(key + ids), key) + ids


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Whole records; after a damaged one, the next that is whole."""
    place = 0
    while place + _HEAD.size <= len(data):
        magic, size, checksum, key = _HEAD.unpack_from(data, place)
        ids = data[place + _HEAD.size : place + _HEAD.size + size]
        if (magic, len(ids) % _ID_BYTES) == (_MAGIC, 0) and zlib.crc32(key + ids) == checksum:
            yield key, ids
            place += _HEAD.size + size
        else:
            place = data.find(_MAGIC, place + 1)
            if place < 0:
                return


def _extend(hasher: "hashlib.blake2b", ids: Sequence[int]) -> "hashlib.blake2b":
    hasher.update(array("I", ids).tobytes())
    return hasher
