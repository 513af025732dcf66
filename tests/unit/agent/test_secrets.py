"""Whatever a secret comes through, no file of the data folder and no event of the session holds it."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from support.agents import DONE, ReplayClient, Run, call, finished, options, start, step
from support.secret_shapes import pem, shapes, text

from k3agent import codec
from k3agent.agent.masking import Masker, _mask_leftovers
from k3agent.agent.session import Session
from k3agent.events import ApprovalAsked, CallProgressed, Decision, Noticed, TextStreamed
from k3agent.providers.scripted import ScriptedCall, Step
from k3agent.store.database import FILE_NAME, SessionLock
from k3agent.types import CallDelta, Origin, ReasoningDelta, Role, TextDelta, ToolCall

TOKEN, PASSWORD = text(800, 40), 'b3 "quoted" p@ss/word'
ENVIRON = {"SERVICE_TOKEN": TOKEN, "DB_PASSWORD": PASSWORD, "APP_KEY": pem(lines=6)}
KEYS = [shapes()[kind] for kind in ("github personal", "openai", "aws id", "slack bot", "json web token")]
SECRETS = [
    TOKEN,
    PASSWORD,
    *KEYS,
    *pem(lines=6).split("\n")[1:-1],
    *pem("EC PRIVATE KEY", 3).split("\n")[1:-1],
]


def check_nothing_is_left(root: Path, *more: bytes) -> None:
    """All bytes of the data folder, with the database's log, and those in `more`."""
    files = [path for path in (root / "home").rglob("*") if path.is_file()]
    assert any(path.name == FILE_NAME for path in files)
    for secret in SECRETS:
        forms = [secret, json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode()[:-4]]
        for data in (*(path.read_bytes() for path in files), *more):
            for form in forms:
                assert form.encode() not in data, (form, data[max(0, data.find(form.encode()) - 80) :][:200])


def told(run: Run) -> bytes:
    events = json.dumps([codec.event_to_dict(event) for event in run.events], ensure_ascii=False)
    return events.encode() + "\n".join(map(repr, (run.client.requests, run.session.receipt))).encode()


def leak(root: Path) -> None:
    (root / "ws").mkdir(exist_ok=True)
    lines = [TOKEN, PASSWORD, *KEYS, pem("EC PRIVATE KEY", 3), json.dumps({"p": PASSWORD})]
    (root / "ws" / "leak.txt").write_text("\n".join(lines))
    (root / "ws" / "long.txt").write_text("\n".join([*lines, "x\n" * 40_000, *lines]))


async def test_what_tools_show_is_masked_everywhere(tmp_path: Path) -> None:
    leak(tmp_path)
    calls = (
        call("read", path="leak.txt"),
        call("grep", pattern="."),
        call("shell", command="cat leak.txt; base64 leak.txt; fold -w 30 leak.txt; xxd -p leak.txt || true"),
        call("shell", command="cat long.txt"),
        call("shell", command="cat leak.txt; sleep 0.2", background=True),
        call("shell", command="cat leak.txt; sleep 1"),
        call("jobs", action="output", job="j1"),
        call("read", path="missing " + KEYS[0]),
    )
    run = await start(tmp_path, [step(*calls), DONE], environ=ENVIRON)
    await run.session.submit("go")
    check_nothing_is_left(tmp_path, told(run))
    assert run.of(CallProgressed)
    await run.session.aclose()
    check_nothing_is_left(tmp_path)


async def test_what_the_user_says_is_masked_and_told(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE], environ=ENVIRON)
    await run.session.submit(f"Log in with {TOKEN} and {KEYS[0]}.")
    assert run.session.messages[1].text == "Log in with [masked: SERVICE_TOKEN] and [masked: a key]."
    assert any("it is masked before it is stored" in event.text for event in run.of(Noticed))
    check_nothing_is_left(tmp_path, told(run))
    await run.session.aclose()


@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_what_the_model_writes_is_masked_and_runs_as_it_was_written(tmp_path: Path, size: int) -> None:
    said = f"The key is {KEYS[0]}; the password {PASSWORD}!"
    arguments = json.dumps({"path": "made.txt", "content": f"{KEYS[1]}\n{PASSWORD}\n{TOKEN}\n"})

    def cut(whole: str) -> list[str]:
        return [whole[at : at + size] for at in range(0, len(whole), size)]

    first = [CallDelta(index=0, id="c1", name="write", arguments=piece) for piece in cut(arguments)]
    deltas: list[Any] = [
        *(ReasoningDelta(text=piece) for piece in cut(f"Hm, {TOKEN}.")),
        *(TextDelta(text=piece) for piece in cut(said)),
        *first,
        finished(),
    ]
    run = await start(tmp_path, [deltas, DONE], environ=ENVIRON)
    await run.session.submit("go")
    shown = "".join(event.text for event in run.of(TextStreamed))
    assert shown.startswith("The key is [masked: a key]; the password [masked: DB_PASSWORD]!")
    assert (run.workspace / "made.txt").read_text() == f"{KEYS[1]}\n{PASSWORD}\n{TOKEN}\n"
    check_nothing_is_left(tmp_path, told(run))
    await run.session.aclose()
    check_nothing_is_left(tmp_path)


async def test_a_draft_holds_no_beginning_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k3agent.agent.step.DRAFT_EVERY_S", 0.0)
    monkeypatch.setattr("k3agent.agent.step.DRAFT_REST", 0)
    drafts: list[str] = []
    client = ReplayClient([[*(TextDelta(text=char) for char in f"key: {KEYS[0]} ok"), finished()]])
    session = await Session.create(options(tmp_path, client, environ=ENVIRON))
    monkeypatch.setattr(session._store, "save_draft", lambda _, draft: drafts.append(draft))
    await session.submit("go")
    assert len(drafts) > 20 and not any(KEYS[0][:8] in draft for draft in drafts)
    await session.aclose()


async def test_a_stand_in_is_not_written_over_the_secret(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "conf").write_text(f"token={KEYS[0]}\nport=1\n")
    answers = [
        step(call("read", path="conf")),
        step(call("write", path="conf", content="token=[masked: a key]\nport=2\n")),
        step(call("edit", path="conf", old="port=1", new="port=2")),
        DONE,
    ]
    run = await start(tmp_path, answers)
    await run.session.submit("go")
    assert run.results[1].startswith("[masked: a key] stands for a secret that you are not shown")
    assert (run.workspace / "conf").read_text() == f"token={KEYS[0]}\nport=2\n"
    await run.session.aclose()


async def test_text_that_only_looks_like_a_stand_in_is_written(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("write", path="a", content="say [masked: a key]\n")), DONE])
    await run.session.submit("go")
    assert (run.workspace / "a").read_text() == "say [masked: a key]\n"
    await run.session.aclose()


async def test_approvals_and_denials_show_no_secret(tmp_path: Path) -> None:
    command = f"curl -H 'Authorization: Bearer {KEYS[0]}' https://u:{TOKEN}@example.com"
    answers = [step(call("shell", command=command), call("write", path=f"/etc/{TOKEN}", content="x")), DONE]
    run = await start(tmp_path, answers, environ=ENVIRON, is_interactive=True)

    def deny(event: Any) -> None:
        if isinstance(event, ApprovalAsked):
            run.session.answer(event.call_id, Decision.DENY, reason=f"not with {KEYS[1]}")

    run.session.subscribe(deny)
    await run.session.submit("go")
    assert len(run.of(ApprovalAsked)) == 2
    check_nothing_is_left(tmp_path, told(run))
    await run.session.aclose()
    check_nothing_is_left(tmp_path)


async def test_todo_checks_and_instructions_hold_no_secret(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "AGENTS.md").write_text(f"Use {KEYS[0]} and {PASSWORD}.\n")
    todo = step(call("todo", items=[{"text": f"use {TOKEN}", "status": "active"}]))
    check = f"echo {KEYS[1]} $PATH; exit 1"
    run = await start(tmp_path, [todo, DONE, DONE], environ=ENVIRON, checks=(check,), check_retries=1)
    await run.session.submit("go")
    run.session.compactor.pin(f"remember {TOKEN}")
    check_nothing_is_left(tmp_path, told(run))
    await run.session.aclose()
    check_nothing_is_left(tmp_path)


async def test_calls_of_a_killed_process_do_not_run_with_stand_ins(tmp_path: Path) -> None:
    """The arguments were stored masked; what the model really wrote died with the process."""
    writes = ScriptedCall(name="write", arguments={"path": "a", "content": KEYS[0]}, id="c1")
    client = ReplayClient([Step(calls=(writes,)), DONE])
    session = await Session.create(options(tmp_path, client))
    session._store.start_turn(session.id, [session._transcript.user("go")], title="go")
    for item in session._store.messages(session.id):
        session._transcript.remember(item)
    message = session._transcript.build(*_assistant(writes))
    session._transcript.add(message)
    await session.aclose()
    again = Run(await Session.resume(session.id, options(tmp_path, client)), client, tmp_path / "ws")
    await again.session.continue_turn()
    assert again.results[0].startswith("[masked: a key] stands for a secret")
    assert not (tmp_path / "ws" / "a").exists()
    await again.session.aclose()


def _assistant(writes: ScriptedCall) -> tuple[Any, ...]:
    arguments = writes.arguments if isinstance(writes.arguments, str) else json.dumps(writes.arguments)
    return Role.ASSISTANT, Origin.MODEL, (ToolCall(id="c1", name="write", arguments=arguments),)


async def test_what_a_killed_session_left_is_masked_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "home" / "outputs" / "killed" / "output-0001-abc.txt"
    held = tmp_path / "home" / "outputs" / "held" / "output-0001-abc.txt"
    for path in (left, held):
        path.parent.mkdir(parents=True)
        path.write_text(f"before {KEYS[0]} after\n")
    lock = SessionLock(tmp_path / "home", "held")
    run = await start(tmp_path, [DONE])
    for _ in range(3000):
        if left.stat().st_mode & 0o777 == 0o400:
            break
        await asyncio.sleep(0.01)
    assert left.read_text() == "before [masked: a key] after\n" and left.stat().st_mode & 0o777 == 0o400
    await run.session.submit("go")
    await run.session.aclose()
    assert KEYS[0] in held.read_text(), "a session that lives masks its own"
    lock.release()


def test_a_session_taken_up_during_the_sweep_keeps_its_new_outputs(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "outputs" / "killed"
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f"output-000{number}-abc.txt").write_text(f"before {KEYS[0]} after\n")
    written = folder / "output-0003-def.txt"

    class Slow(Masker):
        def _mask_file(self, path: Path) -> None:
            if not written.exists():
                # Large outputs take their time: meanwhile somebody goes on with the session.
                SessionLock(tmp_path / "home", "killed").release()
                written.write_text(f"{KEYS[0]} is still being written")
            super()._mask_file(path)

    _mask_leftovers(tmp_path / "home", "own", Slow({}))
    assert [KEYS[0] in path.read_text() for path in sorted(folder.glob("output-*"))] == [False, False, True]
    assert sorted(path.name[:11] for path in folder.iterdir()) == [
        f"output-000{number}" for number in (1, 2, 3)
    ]
