"""The engine in its own process: requests, a caller that leaves, a killed process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from k3agent.backend.engine import client as engine_client
from k3agent.backend.engine.client import EngineClient
from k3agent.backend.engine.messages import (
    Add,
    EngineSettings,
    Failed,
    Finished,
    Generated,
    Prefilled,
    SamplingParams,
)
from k3agent.backend.errors import EngineUnavailableError


def add(name: str, length: int = 100, max_tokens: int = 8) -> Add:
    ids = [7 + i % 50 for i in range(length)]
    return Add(request_id=name, token_ids=ids, params=SamplingParams(temperature=0, max_tokens=max_tokens))


@pytest.fixture
async def client(tiny_dir: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(EngineSettings(model_dir=str(tiny_dir), threads=1, cache_bytes=16 << 20))
    await client.start()
    yield client
    await client.stop()
    assert client._process is not None
    assert client._process.returncode is not None


async def whole(client: EngineClient, request: Add) -> tuple[list[int], Finished]:
    reports = [report async for report in client.generate(request)]
    assert isinstance(reports[0], Prefilled)
    assert isinstance(reports[-1], Finished)
    return [i for r in reports if isinstance(r, Generated) for i in r.token_ids], reports[-1]


async def test_requests_and_the_cache(client: EngineClient) -> None:
    assert client.state == "ready"
    first, end = await whole(client, add("a"))
    assert (len(first), end.num_cached) == (8, 0)
    second, end = await whole(client, add("b"))
    assert second == first
    assert end.num_cached == 64
    both = await asyncio.gather(whole(client, add("c")), whole(client, add("d")))
    assert both[0][0] == both[1][0] == first
    refused = [report async for report in client.generate(add("e", length=100_000))]
    assert isinstance(refused[0], Failed)
    assert "context length" in refused[0].message


async def test_t41_leaving_aborts(client: EngineClient) -> None:
    async with aclosing(client.generate(add("long", max_tokens=5000))) as reports:
        async for report in reports:
            if isinstance(report, Generated):
                break
    _, end = await asyncio.wait_for(whole(client, add("next")), 20)
    assert end.queued_s < 5
    assert client.counters["running_requests"] == 0


async def test_t41_leaving_at_any_moment_leaves_nothing_running(client: EngineClient) -> None:
    async def ask(number: int) -> None:
        async with aclosing(client.generate(add(f"left-{number}", length=900, max_tokens=5000))) as reports:
            async for _ in reports:
                pass

    tasks = [asyncio.create_task(ask(number)) for number in range(24)]
    for task in tasks:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not client._queues
    await asyncio.wait_for(whole(client, add("next")), 60)
    assert client.counters["running_requests"] == client.counters["waiting_requests"] == 0


async def test_levels_are_told_while_a_request_runs(client: EngineClient) -> None:
    async with asyncio.timeout(60), aclosing(client.generate(add("long", max_tokens=5000))) as reports:
        async for _ in reports:
            if client.counters["running_requests"] == 1:
                break
    await asyncio.wait_for(whole(client, add("next")), 60)
    assert client.counters["running_requests"] == 0


async def test_a_killed_engine_is_started_once_more(client: EngineClient) -> None:
    async def kill_while_running() -> None:
        async for report in client.generate(add("x", max_tokens=5000)):
            if isinstance(report, Generated) and client.pid is not None:
                os.kill(client.pid, signal.SIGKILL)

    with pytest.raises(EngineUnavailableError, match="ended unexpectedly"):
        await kill_while_running()
    await asyncio.sleep(0)
    assert client.state == "loading"
    tokens, _ = await whole(client, add("y"))
    assert len(tokens) == 8
    with pytest.raises(EngineUnavailableError):
        await kill_while_running()
    with pytest.raises(EngineUnavailableError):
        await whole(client, add("z"))
    assert client.state == "dead"


async def test_an_engine_that_hangs_is_ended_and_started_again(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "HANG_S", 2.0)
    monkeypatch.setattr(engine_client, "LOOK_EVERY_S", 0.1)
    client.watch()

    async def stop_while_running() -> None:
        async for report in client.generate(add("x", max_tokens=5000)):
            if isinstance(report, Generated) and client.pid is not None:
                os.kill(client.pid, signal.SIGSTOP)

    assert client.silent_s == 0
    with pytest.raises(EngineUnavailableError, match=r"has reported nothing for \d+ s and was ended"):
        await asyncio.wait_for(stop_while_running(), 120)
    monkeypatch.setattr(engine_client, "HANG_S", 300.0)
    tokens, _ = await whole(client, add("y"))
    assert len(tokens) == 8


async def test_a_reader_that_takes_its_time_is_no_hang_of_the_engine(client: EngineClient) -> None:
    reports = client.generate(add("x"))
    await anext(reports)
    for _ in range(2400):
        await asyncio.sleep(0.05)
        if not client.silent_s:
            break
    assert client.silent_s == 0
    assert isinstance([report async for report in reports][-1], Finished)


async def test_bad_files_are_named(tmp_path: Path) -> None:
    client = EngineClient(EngineSettings(model_dir=str(tmp_path)))
    with pytest.raises(EngineUnavailableError, match=r"tiktoken\.model"):
        await client.start()
    await asyncio.sleep(0.2)
    assert client.state == "dead"
    await client.stop()


async def test_t09_a_new_process_resumes_from_the_disk(tiny_dir: Path, tmp_path: Path) -> None:
    settings = EngineSettings(
        model_dir=str(tiny_dir),
        threads=1,
        cache_bytes=16 << 20,
        exactness="idle",
        grid=64,
        speculation="prompt-lookup",
        disk_cache_dir=str(tmp_path / "cache"),
    )
    answers: list[list[int]] = []
    for expected_tier in ("none", "disk"):
        client = EngineClient(settings)
        await client.start()
        try:
            ids, end = await whole(client, add("a", length=150))
        finally:
            await client.stop(timeout_s=60)
        answers.append(ids)
        by_tier = {tier: count for tier, count in end.num_cached_by_tier.items() if count}
        assert by_tier == ({} if expected_tier == "none" else {"disk": 128})
    assert answers[0] == answers[1]
