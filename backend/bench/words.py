"""Texts to measure with: plain words by seed, of a wanted number of tokens."""

import random

from k3agent.backend.bench.client import BenchClient, Json

_WORDS = """
the file of a test reads what it wrote and then returns next line with its number before goes on to parse
each value as text when import class def self list open path name error check build run
""".split()  # noqa: SIM905 - twenty quoted words are harder to read


def text_of(seed: int, num_words: int) -> str:
    """Words that no other seed begins with."""
    rng = random.Random(seed)
    return f"{seed}: " + " ".join(rng.choice(_WORDS) for _ in range(num_words))


async def words_per_token(client: BenchClient) -> float:
    """How many of these words make a token of the server's model."""
    few, many = [await client.count(user(text_of(1, n))) for n in (50, 450)]
    return 400 / (many - few)


def user(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}]}
