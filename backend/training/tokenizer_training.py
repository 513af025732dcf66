"""Train nano's byte-level BPE: 4096 ids, the last 16 of them special tokens.

The pattern lets an identifier have the same pieces wherever it stands: spaces, digits and punctuation are
pieces of their own, camelCase splits, and a line break with its indentation is one piece. Copying a name is
then copying ids.
"""

import argparse
import base64
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from k3agent.backend.training.data import load_source
from k3agent.backend.training.export import FIRST_SPECIAL, special_ids

RANKS_FILE = "nano.tiktoken"
TEXTS = "k3agent.backend.training.encode:texts"
MAX_TOKEN_BYTES = 24

PATTERN = "|".join(
    [
        # Line breaks with the indentation that follows.
        r"(?:\r?\n)+[ \t]*",
        # Apart from each other: a tab ends the line number of a listing, the line's own indentation follows.
        r" +",
        r"\t+",
        # parseHTTPReply: parse, HTTP, Reply.
        r"\p{Lu}+(?=\p{Lu}\p{Ll})",
        r"\p{Lu}?\p{Ll}+",
        r"\p{Lu}+",
        # Scripts without case.
        r"[\p{Lt}\p{Lm}\p{Lo}\p{M}]+",
        r"\p{N}",
        # What is left, one at a time: punctuation, symbols, rare white space.
        r"[\s\S]",
    ]
)


def _pieces() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_of_symbol() -> dict[str, int]:
    """The printable stand-ins for bytes that the library uses, back to bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def train(texts: Iterable[str], num_ranks: int = FIRST_SPECIAL) -> tuple[dict[bytes, int], Tokenizer]:
    """Ranks of `num_ranks` tokens in the order they were merged, bytes first; and the library's own
    tokenizer.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pieces()
    trainer = trainers.BpeTrainer(
        vocab_size=num_ranks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        max_token_length=MAX_TOKEN_BYTES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    symbols = _byte_of_symbol()
    ordered = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if len(ordered) != num_ranks:
        raise ValueError(f"the texts give only {len(ordered)} tokens of {num_ranks}; train on more of them")
    return {bytes(symbols[c] for c in token): rank for token, rank in ordered}, tokenizer


def write(folder: Path, ranks: dict[bytes, int]) -> None:
    """Write the rank file and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (folder / RANKS_FILE).write_text("".join(lines), encoding="ascii")
    config = {"pattern": PATTERN, "special_tokens": special_ids(), "ranks": RANKS_FILE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def limited(texts: Iterable[str], num_characters: int) -> Iterator[str]:
    """Texts until their sum reaches `num_characters`."""
    left = num_characters
    for text in texts:
        if left <= 0:
            return
        yield text
        left -= len(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "weights" / "nano")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--characters", type=int, default=20_000_000)
    parser.add_argument("--source", default=TEXTS, help="module:function, called with the seed")
    options = parser.parse_args()
    ranks, _ = train(limited(load_source(options.source)(options.seed), options.characters))  # pyright: ignore[reportArgumentType]
    write(options.out, ranks)
    longest = sorted(ranks, key=len, reverse=True)
    print(f"{len(ranks)} ranks written to {options.out}; longest: {[*islice(longest, 20)]}")


if __name__ == "__main__":
    main()
