"""Text and special tokens to ids and back: byte-level BPE from a tiktoken rank file.

Text never becomes a special token here: whoever wants a marker asks for it by name with `special`. That is
what keeps user text that spells a marker from being one.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import tiktoken

from k3agent.backend.errors import ModelFilesError

# Kimi's split pattern, one alternative per line; the set intersections keep Han out of the word classes.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
KIMI_FIRST_SPECIAL = 163_584
KIMI_VOCAB_SIZE = 163_840
_KIMI_NAMES = {
    163_584: "[BOS]",
    163_585: "[EOS]",
    163_586: "<|end_of_msg|>",
    163_587: "<|open|>",
    163_588: "<|close|>",
    163_589: "<|sep|>",
    163_590: "[start_header_id]",
    163_591: "[end_header_id]",
    163_593: "[EOT]",
    163_602: "<|media_begin|>",
    163_603: "<|media_content|>",
    163_604: "<|media_end|>",
    163_605: "<|media_pad|>",
    163_649: "<osagent_mode>",
    163_838: "[UNK]",
    163_839: "[PAD]",
}

_SLICE_CHARS = 400_000
_MAX_RUN = 25_000
_LONG_RUN = re.compile(rf"\s{{{_MAX_RUN + 1},}}|\S{{{_MAX_RUN + 1},}}")
_MEMO_LIMIT = 4096
_MEMO_CHARS = 256


def kimi_special_tokens() -> dict[str, int]:
    """The 256 special tokens of Kimi K3 by name; unnamed ids are `<|reserved_token_ID|>`."""
    ids = range(KIMI_FIRST_SPECIAL, KIMI_VOCAB_SIZE)
    return {_KIMI_NAMES.get(i, f"<|reserved_token_{i}|>"): i for i in ids}


def load_ranks(path: Path) -> dict[bytes, int]:
    """Read a tiktoken rank file: lines of base64 bytes, a space, the rank."""
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except OSError as error:
        raise ModelFilesError(f"cannot read the rank file {path}: {error}; fetch it again") from error
    except (ValueError, binascii.Error) as error:
        raise ModelFilesError(f"{path} is not a tiktoken rank file: {error}; fetch it again") from error
    return ranks


class Tokenizer:
    """A byte-level BPE vocabulary with special tokens.

    `encode` is total: lone surrogates become U+FFFD, everything else comes back from `decode` unchanged.
    """

    def __init__(self, pattern: str, ranks: dict[bytes, int], special_tokens: dict[str, int]) -> None:
        num_missing = sum(bytes([byte]) not in ranks for byte in range(256))
        if num_missing:
            raise ModelFilesError(
                f"the vocabulary cannot be used: {num_missing} of the 256 single bytes have no rank; fetch"
                " the rank file again"
            )
        self.special_tokens = dict(special_tokens)
        self._special_ids = frozenset(special_tokens.values())
        try:
            # no special tokens are given to the encoder: text can then never turn into one
            self._encoding = tiktoken.Encoding(
                "k3agent", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
            )
        except ValueError as error:
            raise ModelFilesError(f"the vocabulary cannot be used: {error}") from error
        self.vocab_size = 1 + max([*ranks.values(), *special_tokens.values()])
        self._bytes = [b""] * self.vocab_size
        for token, rank in ranks.items():
            self._bytes[rank] = token
        for name, token_id in special_tokens.items():
            self._bytes[token_id] = name.encode()
        self.max_token_bytes = max(map(len, self._bytes))
        self._memo: dict[str, tuple[int, ...]] = {}

    @classmethod
    def from_dir(cls, path: str | Path) -> "Tokenizer":
        """Load from a model folder: our `tokenizer_config.json`, or Kimi's `tiktoken.model` with K3's
        specials.
        """
        folder = Path(path)
        config_file = folder / "tokenizer_config.json"
        config: dict[str, object] = {}
        if config_file.is_file():
            try:
                config = json.loads(config_file.read_text("utf-8"))
            except ValueError as error:
                raise ModelFilesError(f"{config_file} is not JSON: {error}") from error
        match config:
            case {"pattern": str(pattern), "special_tokens": dict(specials), "ranks": str(ranks_name)}:
                if ranks_name != Path(ranks_name).name:
                    raise ModelFilesError(
                        f"{config_file}: ranks must name a file of the folder, not {ranks_name!r}"
                    )
                return cls(
                    pattern, load_ranks(folder / ranks_name), {str(k): int(v) for k, v in specials.items()}
                )
        kimi = folder / "tiktoken.model"
        if not kimi.is_file():
            raise ModelFilesError(
                f"no tokenizer in {folder}: neither tiktoken.model nor a tokenizer_config.json with"
                " pattern, special_tokens and ranks"
            )
        ranks = load_ranks(kimi)
        if len(ranks) != KIMI_FIRST_SPECIAL or max(ranks.values()) != KIMI_FIRST_SPECIAL - 1:
            raise ModelFilesError(
                f"{kimi} holds {len(ranks)} ranks up to {max(ranks.values(), default=None)}, the vocabulary"
                f" of Kimi has {KIMI_FIRST_SPECIAL}, the last {KIMI_FIRST_SPECIAL - 1}: cut off, or of"
                " another model; fetch it again"
            )
        return cls(KIMI_PATTERN, ranks, kimi_special_tokens())

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, never special ones. Extremely long runs are cut first, as Kimi's tokenizer does."""
        if len(text) <= _MAX_RUN:
            return self._encoding.encode_ordinary(text)
        ids: list[int] = []
        for piece in _pieces(text):
            ids += self._encoding.encode_ordinary(piece)
        return ids

    def encode_memo(self, text: str) -> tuple[int, ...]:
        """Like `encode`, remembered: for tag names and attributes, which repeat all the time."""
        if len(text) > _MEMO_CHARS:
            return tuple(self.encode(text))
        ids = self._memo.get(text)
        if ids is None:
            ids = tuple(self.encode(text))
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            self._memo[text] = ids
        return ids

    def special(self, name: str) -> int:
        """Id of the special token spelled `name`, e.g. `<|open|>`."""
        try:
            return self.special_tokens[name]
        except KeyError:
            raise ModelFilesError(f"the vocabulary has no special token {name}") from None

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; empty for an id that the vocabulary leaves unused."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of all tokens; special tokens as their names."""
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int]) -> str:
        """Text of all tokens; broken UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")


def _pieces(text: str) -> Iterator[str]:
    """Slices of 400,000 characters, cut again inside runs of one class (space or not) above 25,000
    characters.
    """
    for start in range(0, len(text), _SLICE_CHARS):
        part = text[start : start + _SLICE_CHARS]
        begin = 0
        for run in _LONG_RUN.finditer(part):
            for cut in range(run.start() + _MAX_RUN, run.end(), _MAX_RUN):
                yield part[begin:cut]
                begin = cut
        yield part[begin:]
