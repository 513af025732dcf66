"""A vocabulary for tiny K3: every byte is a token, and the markup's words are merged into few."""

import base64
import json
from pathlib import Path

SPECIALS = ("[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "[UNK]", "[PAD]")
MEDIA = ("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>")
WORDS = ("message", "think", "response", "tools", "call", "argument", "string", "number")
VOCAB_SIZE = 320
MEDIA_FIRST = 306
MEDIA_PAD = MEDIA_FIRST + 3
PATTERN = r"\p{L}+| \p{L}+|\s+|\p{N}|[^\s\p{L}\p{N}]"


def write_tiny_tokenizer(folder: Path) -> None:
    """Write `tokenizer_config.json` and its rank file; ids stay below VOCAB_SIZE."""
    ranks = {bytes([i]): i for i in range(256)}
    for word in WORDS:
        for end in range(2, len(word) + 1):
            ranks.setdefault(word[:end].encode(), len(ranks))
    assert len(ranks) + len(SPECIALS) <= VOCAB_SIZE
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    (folder / "tiny.tiktoken").write_text("\n".join(lines) + "\n")
    first = VOCAB_SIZE - len(SPECIALS)
    specials = {name: first + i for i, name in enumerate(SPECIALS)}
    specials |= {name: MEDIA_FIRST + i for i, name in enumerate(MEDIA)}
    assert len(ranks) <= MEDIA_FIRST and MEDIA_FIRST + len(MEDIA) <= first
    config = {
        "pattern": PATTERN,
        "special_tokens": specials,
        "ranks": "tiny.tiktoken",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
