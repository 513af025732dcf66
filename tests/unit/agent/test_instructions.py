"""Instruction files beyond one AGENTS.md: fallbacks, imports, folders inside the workspace."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path

import pytest
from support.agents import (
    COMPACT,
    DONE,
    FULL,
    ReplayClient,
    call,
    check_prefixes,
    options,
    start,
    step,
)

from k3agent.agent.instructions import find_instructions, imports_in
from k3agent.agent.session import Session
from k3agent.events import Noticed
from k3agent.types import Origin


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def texts(cwd: Path, home: Path | None = None, *, is_wide: bool = True) -> list[str]:
    environ = {"HOME": str(home)} if home else {}
    return [file.text for file in find_instructions(cwd, environ, is_wide=is_wide)]


def test_the_other_name_counts_where_there_is_no_agents_file(tmp_path: Path) -> None:
    root, home = tmp_path / "repo", tmp_path / "home"
    (root / ".git").mkdir(parents=True)
    write(root, "CLAUDE.md", "outer")
    write(root, "in/AGENTS.md", "inner")
    write(root, "in/CLAUDE.md", "not this")
    write(home, ".claude/CLAUDE.md", "mine")
    assert texts(root / "in", home) == ["mine", "outer", "inner"]
    assert texts(root / "in", home, is_wide=False) == ["inner"]
    write(home, ".config/k3agent/AGENTS.md", "mine for k3agent")
    assert texts(root / "in", home) == ["mine for k3agent", "outer", "inner"]


def test_imports_come_first_once_and_within_bounds(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    (root / ".git").mkdir(parents=True)
    write(tmp_path, "outside.md", "outside")
    write(root, ".env", "KEY=1")
    write(root, "picture.md", "\0binary")
    write(root, "docs/style.md", "style, see @../AGENTS.md and @more.md")
    write(root, "docs/more.md", "more")
    write(
        root,
        "AGENTS.md",
        "Mind @docs/style.md, @docs/style.md. Not @../outside.md, @.env, @picture.md,"
        " @nowhere.md, me@docs/more.md\n"
        "`@docs/unused.md`\n```\n@docs/unused.md\n```\n",
    )
    write(root, "docs/unused.md", "unused")
    found = texts(root)
    assert found[:2] == ["more", "style, see @../AGENTS.md and @more.md"] and found[2].startswith("Mind")
    assert len(found) == 3
    assert len(texts(root, is_wide=False)) == 1
    for number in range(9):
        write(root, f"chain{number}.md", f"chain {number} @chain{number + 1}.md")
    write(root, "AGENTS.md", "@chain0.md")
    assert len(texts(root)) == 5
    write(root, "AGENTS.md", " ".join(f"@many/{number}.md" for number in range(90)))
    for number in range(90):
        write(root, f"many/{number}.md", f"text {number}")
    assert len(texts(root)) == 40


def test_the_users_own_file_imports_from_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home, ".config/k3agent/AGENTS.md", "@~/notes/way.md @../../notes/other.md @~/../outside.md")
    write(home, "notes/way.md", "way")
    write(home, "notes/other.md", "other")
    write(tmp_path, "outside.md", "outside")
    (tmp_path / "ws").mkdir()
    assert texts(tmp_path / "ws", home)[:2] == ["way", "other"] and len(texts(tmp_path / "ws", home)) == 3
    # A project cannot name the user's files.
    write(tmp_path / "ws", "AGENTS.md", "theirs @~/notes/way.md")
    write(home, ".config/k3agent/AGENTS.md", "mine")
    assert texts(tmp_path / "ws", home) == ["mine", "theirs @~/notes/way.md"]


@pytest.mark.parametrize(
    "name",
    [".git/config", ".ssh/config", "sub/.aws/config", ".config/gh/hosts.yml", "linked.md", ".bash_history"],
)
def test_places_for_secrets_are_not_imported(tmp_path: Path, name: str) -> None:
    secret = tmp_path / (".git/config" if name == "linked.md" else name)
    for path in (tmp_path / ".git/config", secret):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("url = https://user:password@host/\n")
    if name == "linked.md":
        (tmp_path / name).symlink_to(".git/config")
    (tmp_path / "AGENTS.md").write_text(f"See @{name} and @gitless.md.")
    (tmp_path / "gitless.md").write_text("Fine.")
    found = find_instructions(tmp_path, {}, is_wide=True)
    assert [file.text for file in found] == ["Fine.", f"See @{name} and @gitless.md."]


def test_what_is_an_import() -> None:
    assert imports_in("See @a.md, (@b/c.md) and x@d.md; @./e.md. @e") == ["a.md", "b/c.md", "./e.md", "e"]


async def test_a_folder_s_instructions_come_when_the_model_gets_there(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    write(workspace, "src/AGENTS.md", "Use tabs in src.")
    write(workspace, "src/deep/CLAUDE.md", "Deep rule.")
    write(workspace, "src/deep/a.py", "x = 1\n")
    write(workspace, "src/b.py", "y = 1\n")
    write(workspace, "other/AGENTS.md", "Never told.")
    run = await start(
        tmp_path,
        [
            step(call("read", path="src/deep/a.py")),
            step(call("read", path="src/b.py"), call("read", path="src/deep/a.py")),
            DONE,
            DONE,
        ],
    )
    await run.session.submit("Look.")
    await run.session.submit("And again.")
    told = [message.text for message in run.session.messages if message.text.startswith("Instructions of")]
    assert len(told) == 2 and "src/AGENTS.md" in told[0] and "Use tabs in src." in told[0]
    assert "src/deep/CLAUDE.md" in told[1] and "Deep rule." in told[1]
    assert all(message.origin is Origin.HARNESS for message in run.session.messages if message.text in told)
    assert len({request.system for request in run.client.requests}) == 1
    check_prefixes(run.client.requests)
    assert "Instructions of src/AGENTS.md" in [event.text for event in run.of(Noticed)]
    session_id = run.session.id
    await run.session.aclose()
    # A resumed session is not told twice.
    client = ReplayClient([step()] * 3 + [DONE] * 3)
    again = await Session.resume(session_id, options(tmp_path, client))
    await again.submit("Once more.")
    assert sum(message.text.startswith("Instructions of") for message in again.messages) == 2
    await again.aclose()


async def test_long_and_many_files_are_only_named(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    write(workspace, "big/AGENTS.md", "x" * 20_000)
    write(workspace, "big/a.txt", "a\n")
    run = await start(tmp_path, [step(call("read", path="big/a.txt")), DONE])
    await run.session.submit("Look.")
    [text] = [message.text for message in run.session.messages if "big/AGENTS.md" in message.text]
    assert "too long to be quoted" in text and len(text) < 200
    await run.session.aclose()


async def test_small_windows_are_told_nothing_more(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    write(workspace, "CLAUDE.md", "Not for small windows.")
    write(workspace, "src/AGENTS.md", "Nor this.")
    write(workspace, "src/a.txt", "a\n")
    for info in (COMPACT, dataclasses.replace(FULL, context_window=16_384, max_output_tokens=2_000)):
        run = await start(tmp_path, [step(call("read", path="src/a.txt")), DONE], info=info)
        await run.session.submit("Look.")
        everything = run.client.requests[-1].system + "".join(m.text for m in run.session.messages)
        assert "Not for small" not in everything and "Nor this" not in everything
        await run.session.aclose()


def test_a_link_to_a_name_that_no_file_can_have_is_no_instruction(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").symlink_to("a" * 300)
    write(tmp_path, "CLAUDE.md", "Be brief.")
    assert texts(tmp_path) == ["Be brief."]


def test_of_a_huge_file_no_more_is_read_than_counts(tmp_path: Path) -> None:
    size = 100 << 20
    with write(tmp_path, "AGENTS.md", "Be brief.\n").open("r+b") as file:
        file.truncate(size)
    tracemalloc.start()
    try:
        (found,) = find_instructions(tmp_path, {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size // 10
    assert found.size_bytes == size and found.text.startswith("Be brief.")
    assert f"[cut: the file has {size} bytes" in found.text
