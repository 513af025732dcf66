"""Words without end: apart from the held-out ones, of several pieces, in every role."""

import random
import re

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.training.encode import NANO
from k3agent.backend.training.episodes import openwords
from k3agent.backend.training.episodes.words import NATURAL_POOLS, POOLS, Words

LISTED = {word for lists in POOLS.values() for words in lists for word in words}
LISTED |= {word for table in NATURAL_POOLS.values() for words in table.values() for word in words}


def test_library_words_keep_the_held_out_part_apart() -> None:
    train, held_out = openwords.library_words(False), openwords.library_words(True)
    assert len(train) > 5000 and len(held_out) > 500
    assert not set(train) & set(held_out)
    assert not any(openwords.is_held_out(word) for word in train)
    assert all(openwords.is_held_out(word) for word in held_out)


def test_sentences_of_training_have_no_held_out_word() -> None:
    texts = openwords.sentences(False)
    assert len(texts) > 1000
    for text in texts:
        assert not any(openwords.is_held_out(word) for word in re.findall(r"[a-z]{3,}", text.lower())), text
        assert not set("\"'`\\") & set(text)


def test_open_words_have_several_pieces_and_can_be_names() -> None:
    tokenizer, rng = Tokenizer.from_dir(NANO), random.Random(1)
    drawn = [openwords.open_word(rng) for _ in range(600)]
    assert len(set(drawn)) > 550
    assert all(word.isidentifier() and word.islower() and openwords.usable(word) for word in drawn)
    assert sum(len(tokenizer.encode(word)) > 1 for word in drawn) > 590
    assert (
        len({pair for word in drawn if len(ids := tokenizer.encode(word)) > 1 for pair in [tuple(ids[:2])]})
        > 500
    )


def test_the_share_of_open_words_is_the_constant() -> None:
    total = new = 0
    for seed in range(300):
        words = Words(random.Random(seed))
        drawn = [words.noun() for _ in range(10)] + [words.adjective() for _ in range(10)]
        total, new = total + len(drawn), new + sum(word not in LISTED for word in drawn)
    assert abs(new / total - openwords.OPEN_SHARE) < 0.06
