"""Texts to measure with: plain words by seed, of a wanted number of tokens."""

import random
from dataclasses import dataclass

from k3agent.backend.bench.client import BenchClient, Json

_WORDS = """
the file of a test reads what it wrote and then returns next line with its number before goes on to parse
each value as text when import class def self list open path name error check build run
""".split()  # noqa: SIM905 - twenty quoted words are harder to read


def text_of(seed: int, num_words: int) -> str:
    """Words that no other seed begins with."""
    rng = random.Random(seed)
    return f"{seed}: " + " ".join(rng.choice(_WORDS) for _ in range(num_words))


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens these words make for the server's model, and what a prompt has around them."""

    words_per_token: float
    overhead: int

    @classmethod
    async def of(cls, client: BenchClient) -> "Lengths":
        few, many = [await client.count(user(text_of(1, n))) for n in (50, 450)]
        ratio = 400 / (many - few)
        return cls(ratio, round(few - 50 / ratio))

    def words(self, num_tokens: int) -> int:
        """Words for a prompt of about `num_tokens`."""
        return max(1, round(self.words_per_token * (num_tokens - self.overhead)))


def user(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}]}
