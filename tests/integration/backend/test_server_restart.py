"""A server that is started anew goes on with yesterday's session: nothing of it is computed again."""

from pathlib import Path
from typing import Any

import pytest
from support.serving import USER, Start

ASKED: dict[str, Any] = {"temperature": 1, "max_tokens": 60}


def test_the_next_server_knows_the_session(start: Start, hurried_dir: Path, tmp_path: Path) -> None:
    """Hurried answers are rarely spelled as the tokenizer would: their ids must outlive the server, too."""
    flags = ("--disk-cache", str(tmp_path))
    messages: list[Any] = [{"role": "system", "content": "You work in a repository. " * 20}, USER]
    first = start(*flags, model=hurried_dir)
    known = 0
    for turn in range(3):
        answer = first.post(messages=messages, seed=turn, **ASKED).json()
        known = answer["usage"]["total_tokens"]
        messages += [answer["choices"][0]["message"], {"role": "user", "content": f"And {turn}?"}]
    assert first.stop() == 0

    second = start(*flags, model=hurried_dir)
    usage = second.post(messages=messages, seed=9, **ASKED).json()["usage"]
    # 3 tokens of the prompt, the open think element, are not counted as prompt; a state is kept per page
    assert usage["cached_tokens"] >= known + 3 - 64
    tiers = usage["prompt_tokens_details"]["cached_tokens_by_tier"]
    assert tiers["disk"] == usage["cached_tokens"]
    assert second.metric('k3agent_prefix_hit_tokens_total{tier="disk"}') == tiers["disk"]
    assert second.metric('k3agent_cache_tier_bytes{tier="disk"}') > 0

    third = start("--disk-cache", "off", model=hurried_dir)
    assert third.post(messages=messages, seed=9, **ASKED).json()["usage"]["cached_tokens"] == 0
    assert third.post(messages=messages[:2], seed=0, **ASKED).status_code == 200


def test_the_answer_is_that_of_the_first_server(start: Start, tmp_path: Path) -> None:
    flags = ("--disk-cache", str(tmp_path), "--exactness", "always")
    first = start(*flags)
    messages = [{"role": "system", "content": "You work in a repository. " * 40}, USER]
    asked: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 30}
    before = first.post(**asked).json()["choices"][0]["message"]
    first.stop()
    second = start(*flags)
    again = second.post(**asked).json()
    assert again["choices"][0]["message"] == before
    assert again["usage"]["cached_tokens"] > 0


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign"])
def test_damage_costs_only_the_cache(start: Start, tmp_path: Path, damage: str) -> None:
    flags = ("--disk-cache", str(tmp_path))
    messages = [{"role": "system", "content": "You work in a repository. " * 20}, USER]
    asked: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 10}
    first = start(*flags)
    before = first.post(**asked).json()["choices"][0]["message"]
    first.stop()
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.stat().st_size > 200]
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        if damage == "cut":
            del data[len(data) // 2 :]
        elif damage == "flipped":
            data[len(data) // 2] ^= 1
        else:
            data[:] = b"no record of ours" * 20
        file.write_bytes(data)
    second = start(*flags)
    again = second.post(**asked).json()
    assert again["choices"][0]["message"] == before
    assert second.post(**asked).json()["choices"][0]["message"] == before


def test_a_beginning_that_was_read_ahead_is_there_for_the_next_prompt(start: Start) -> None:
    """As between two turns after a compaction: the end of the conversation so far is a boundary, since what
    follows there, the form of the answer, is said of that request alone.
    """
    server = start("--disk-cache", "off")
    system = {"role": "system", "content": "You work in a repository. " * 20}
    old = [system, {"role": "user", "content": "Look at all files. " * 30}]
    server.post(messages=old, max_tokens=4)
    new = [system, {"role": "user", "content": "Summary: everything was looked at, and it is well. " * 30}]
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    ready = server.post(messages=new, max_tokens=1, response_format=form).json()["usage"]
    # The system prompt is the first boundary: it is not read again after a compaction.
    assert 0 < ready["cached_tokens"] < ready["prompt_tokens"]
    after = [*new, {"role": "assistant", "content": "It is."}, {"role": "user", "content": "And now?"}]
    usage = server.post(messages=after, max_tokens=4).json()["usage"]
    bare = server.post(messages=new, max_tokens=1).json()["usage"]
    # All of the new beginning but what opens the answer and a page.
    assert usage["cached_tokens"] >= bare["prompt_tokens"] - 8 - 64 > ready["cached_tokens"] + 500
