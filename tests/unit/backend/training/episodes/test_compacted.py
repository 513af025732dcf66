"""Conversations made short: the record comes first, calls keep their results, what comes after is learned."""

import random

from k3agent.backend.training.episodes.compacted import changed_files, compacted, stored
from k3agent.backend.training.episodes.player import LONG, Player
from k3agent.backend.training.episodes.session import Message
from k3agent.prompts.loader import load
from k3agent.types import Role


def long_talk(player: Player) -> tuple[list[Message], set[int]]:
    """A conversation of several tasks, as it was played."""
    while True:
        player.second_share = 0.0
        session: tuple[list[Message], set[int]] | None = None
        for episode in player.episodes(2):
            if sum(message["role"] == "user" for message in episode.messages) > 3:
                session = episode.messages, episode.unlearned
                break
        assert session is not None
        return session


def test_what_was_left_out_stands_in_the_record() -> None:
    player, rng = Player(31, strict=True), random.Random(5)
    try:
        made = 0
        while made < 4:
            messages, unlearned = long_talk(player)
            short = compacted(messages, unlearned, rng)
            if short is None:
                continue
            made += 1
            kept, skipped = short
            tail = kept[1:]
            assert tail == messages[len(messages) - len(tail) :]
            dropped = messages[: len(messages) - len(tail)]
            head = kept[0]["content"]
            assert kept[0]["role"] == "user" and head.startswith(load("compaction/head").strip()[:40])
            assert dropped[0]["content"][:60] in head
            for path in changed_files(dropped):
                assert f"- {path}" in head
            calls = {call["id"] for message in kept for call in message.get("tool_calls", ())}
            assert all(message["tool_call_id"] in calls for message in kept if message["role"] == "tool")
            assert all(kept[at]["role"] == "assistant" for at in skipped)
            learned = [at for at, m in enumerate(kept) if m["role"] == "assistant" and at not in skipped]
            assert learned and any(kept[at]["role"] == "user" for at in range(1, learned[0]))
    finally:
        player.close()


def test_a_short_talk_stays_as_it_is() -> None:
    messages: list[Message] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello!", "reasoning_content": "A greeting."},
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "Bye.", "reasoning_content": "They go."},
    ]
    assert compacted(messages, set(), random.Random(1)) is None


def test_messages_are_those_of_the_product() -> None:
    call = {"id": "edit:0", "type": "function", "function": {"name": "edit", "arguments": '{"path": "a.py"}'}}
    messages: list[Message] = [
        {"role": "assistant", "content": "", "reasoning_content": "Edit.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "edit:0", "content": "Error: no such text."},
    ]
    first, second = stored(messages)
    assert (first.role, first.calls[0].name) == (Role.ASSISTANT, "edit")
    assert (second.results[0].is_error, second.results[0].text) == (True, "no such text.")
    assert changed_files(messages) == []
    messages[1]["content"] = "Edited a.py (1 replacement)."
    assert changed_files(messages) == ["a.py"]


def test_the_last_stage_has_conversations_made_short() -> None:
    player = Player(8, strict=True)
    player.second_share = 0.0
    try:
        found = 0
        for count, episode in enumerate(player.episodes(LONG)):
            found += episode.messages[0]["content"].startswith(load("compaction/head").strip()[:40])
            if found or count > 30:
                break
        assert found
    finally:
        player.close()
