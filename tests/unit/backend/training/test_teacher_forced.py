"""Token errors with teacher forcing: counts are right, and nothing is left over from the episode before."""

import numpy as np
import pytest

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.model.weights import load_model
from k3agent.backend.training.encode import NANO, EncodedEpisode, Encoder
from k3agent.backend.training.teacher_forced import Count, Reader, as_table, family_episodes


@pytest.mark.skipif(not (NANO / "model.safetensors").exists(), reason="the weights of nano are not here")
def test_known_words_are_told_and_wrong_ones_are_counted() -> None:
    encoder = Encoder(Tokenizer.from_dir(NANO))
    reader = Reader(load_model(NANO), encoder.prefix)
    first, second = (encoder.encode(item) for item in family_episodes("setvalue", 2, 3, "new"))
    before = reader.count(first)
    assert before.tokens == int((first.loss_weight >= 1.0).sum())
    assert before.wrong_tokens < 0.2 * before.tokens and before.turns >= 2
    reader.count(second)
    assert reader.count(first) == before
    spoilt = first.token_ids.copy()
    at = np.flatnonzero(first.loss_weight >= 1.0)[-20:]
    spoilt[at] = 77
    after = reader.count(EncodedEpisode(spoilt, first.loss_weight))
    assert after.wrong_tokens > before.wrong_tokens and after.wrong_turns > 0


def test_the_same_seed_gives_the_same_episodes() -> None:
    one, two = (list(family_episodes("list", 2, 5, "hard")) for _ in range(2))
    assert [item.messages for item in one] == [item.messages for item in two]
    assert one[0].messages != one[1].messages


def test_the_table_has_shares() -> None:
    total = Count()
    total.add(Count(200, 1, 4, 1))
    assert total.shares == (0.5, 25.0)
    text = as_table({"new": {"list": total, "list/list_dir": total, "all": total}})
    assert "list" in text and "0.50" in text and "25.0" in text and "list_dir" in text
