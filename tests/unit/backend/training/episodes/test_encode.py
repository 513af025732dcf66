"""Encoded episodes are token for token what the server renders, with loss on the assistant's words only."""

import json
from itertools import islice

import pytest

from k3agent.backend.chat.template import render
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.training import encode
from k3agent.backend.training.episodes.player import Player
from k3agent.prompts.loader import load
from k3agent.providers.schema import wire_schema


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    if not (encode.NANO / "tokenizer_config.json").is_file():
        pytest.skip("the embedded model's tokenizer is not there")
    return Tokenizer.from_dir(encode.NANO)


def test_ids_are_those_of_the_server(tokenizer: Tokenizer) -> None:
    encoder = encode.Encoder(tokenizer)
    player = Player(5, 1, strict=True)
    try:
        for episode in islice(player.episodes(2), 12):
            encoded = encoder.encode(episode)
            messages = [{"role": "system", "content": load("system/compact")}, *episode.messages]
            whole = render(
                tokenizer, messages, encode.tool_declarations(), effort="low", add_generation_prefix=False
            )
            assert encoded.token_ids.tolist() == whole.token_ids
            assert len(encoded.loss_weight) == len(encoded.token_ids)
            assert not encoded.loss_weight[: len(encoder.prefix)].any()
            learned = tokenizer.decode(encoded.token_ids[encoded.loss_weight >= 1.0].tolist())
            spoken = [
                m
                for i, m in enumerate(episode.messages)
                if m["role"] == "assistant" and i not in episode.unlearned
            ]
            assert all(message["reasoning_content"] in learned for message in spoken)
    finally:
        player.close()


def test_too_long_episodes_lose_their_last_tasks(tokenizer: Tokenizer) -> None:
    encoder = encode.Encoder(tokenizer)
    player = Player(6, 1, strict=True)
    try:
        episode = next(item for item in player.episodes(2) if len(item.starts) > 1)
    finally:
        player.close()
    whole, first = encoder.encode(episode), encoder.encode(episode.without_last())
    assert episode.messages[episode.starts[-1]]["role"] == "user"
    assert encoder.fitting(episode, len(whole.token_ids)).token_ids.tolist() == whole.token_ids.tolist()  # type: ignore[union-attr]
    assert encoder.fitting(episode, len(whole.token_ids) - 1).token_ids.tolist() == first.token_ids.tolist()  # type: ignore[union-attr]
    assert encoder.fitting(episode, len(encoder.prefix)) is None


def test_texts_are_pieces_of_conversations() -> None:
    found = list(islice(encode.texts(2), 50))
    assert found[0] == load("system/compact")
    assert all(isinstance(text, str) for text in found)


def test_schemas_of_the_compact_tools_go_over_the_wire_as_they_are() -> None:
    for declaration in encode.tool_declarations():
        parameters = declaration["function"]["parameters"]
        assert json.dumps(wire_schema(parameters)) == json.dumps(parameters)
        odd = {**parameters, "format": "date"}
        assert json.dumps(wire_schema(odd)) != json.dumps(odd)
