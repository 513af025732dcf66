"""Commands from files."""

from __future__ import annotations

from pathlib import Path

from support.agents import DONE, call, options, start, step

from k3agent.agent.building import load_tools
from k3agent.agent.commands import called_name, find_command, load_commands, rules_in
from k3agent.agent.extensions import load_extensions
from k3agent.agent.hooknames import is_tool_name
from k3agent.agent.permissions import Rule
from k3agent.config.frontmatter import split
from k3agent.config.trust import set_trust
from k3agent.events import Noticed
from k3agent.tui.commands import ALIASES, COMMANDS, command_candidates, meant_by

REVIEW = """---
description: Look at a change
argument-hint: BRANCH [FOCUS]
allowed-tools: Bash(git diff:*), Read, Edit(src/**), WebSearch
---
Look at branch $1 with an eye on $2. All: $ARGUMENTS.

State: !`git status --short`
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_command_takes_its_words_and_runs_nothing(tmp_path: Path) -> None:
    commands = load_commands([write(tmp_path, review=REVIEW, git__commit="Commit it.")], [])
    assert list(commands) == ["git:commit", "review"]
    found = find_command('/review main "error paths"', commands)
    assert found is not None
    text = found[0].expanded(found[1])
    assert text.startswith("Look at branch main with an eye on error paths.")
    assert 'All: main "error paths".' in text
    assert "`git status --short` (run this with the shell tool" in text and "!`" not in text
    assert (found[0].description, found[0].hint) == ("Look at a change", "BRANCH [FOCUS]")
    assert commands["git:commit"].expanded("now") == "Commit it.\n\nARGUMENTS: now"
    # What the user writes is not filled in a second time.
    assert "with an eye on $1" in found[0].expanded("a '$1'")
    assert find_command("/unknown x", commands) is None and find_command("see /review", commands) is None


def test_the_allowed_tools_are_rules_of_ours(tmp_path: Path) -> None:
    [command] = load_commands([write(tmp_path, review=REVIEW)], []).values()
    assert command.rules == ("shell(git diff:*)", "read", "edit(src/**)")
    assert all(Rule.parse(rule) for rule in command.rules)
    assert rules_in("Read Grep\nBash(npm test:*)") == (("read", "grep", "shell(npm test:*)"), ())


def test_tools_that_there_are_not_are_told_when_the_file_is_read(tmp_path: Path) -> None:
    text = "---\nallowed-tools: Bsh(git:*), Reads, WebSearch, repomap, mcp__git__*\n---\nGo."
    warnings: list[str] = []
    [command] = load_commands([write(tmp_path, go=text)], warnings).values()
    assert command.rules == ("repomap", "mcp__git__*")
    assert len(warnings) == 2 and all("go.md: allowed-tools names" in text for text in warnings)
    assert (
        "'Bsh', which is no tool. Did you mean shell?" in warnings[0] and "Did you mean read?" in warnings[1]
    )


async def test_rules_that_fit_no_tool_are_told(tmp_path: Path) -> None:
    rules = {"allow": ("Bash(git:*)", "shell", "mcp__x__*", "re*"), "deny": ("wrote(src/**)",)}
    run = await start(tmp_path, [DONE], **rules)
    await run.session.submit("go")
    told = [event.text for event in run.of(Noticed) if "fits no tool" in event.text]
    assert len(told) == 2 and "Did you mean shell?" in told[0] and "Did you mean write?" in told[1]
    await run.session.aclose()


def test_every_tool_can_be_named_in_a_rule() -> None:
    assert all(is_tool_name(name) for name in load_tools())


def test_front_matter_of_several_forms() -> None:
    front, text = split(
        "---\na: 'x: y'\nb:\n  - one\n  - two\nc: [p, 'q, r']\nd: >\n  long\n  text\n---\n\nBody\n"
    )
    assert front == {"a": "x: y", "b": "one\ntwo", "c": "p\nq, r", "d": "long\ntext"} and text == "Body"
    assert split("no front\n---\nmatter") == ({}, "no front\n---\nmatter")
    assert split("---\nnever: closed\n") == ({}, "---\nnever: closed")


def test_bad_files_are_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path, good="x", long="y" * 70_000)
    (tmp_path / "bad name!.md").write_text("z")
    (tmp_path / "loop").symlink_to(tmp_path)
    warnings: list[str] = []
    assert list(load_commands([tmp_path], warnings)) == ["good"]
    assert len(warnings) == 2 and "bad name" in warnings[0] and "long.md" in warnings[1]


async def test_a_turn_with_a_command_has_its_rules_and_the_next_has_not(tmp_path: Path) -> None:
    write(
        tmp_path / "user/.config/k3agent/commands",
        note="---\nallowed-tools: Write(notes/**)\n---\nWrite down: $ARGUMENTS",
    )
    chosen = options(tmp_path, None)
    found = load_extensions(chosen.cwd, chosen.environ, chosen.home)
    answers = [
        step(call("write", path="notes/a.txt", content="1")),
        DONE,
        step(call("write", path="notes/b.txt", content="2")),
        DONE,
    ]
    run = await start(tmp_path, answers, extensions=found, permission_mode="default")
    await run.session.submit("/note the port")
    await run.session.submit("Once more.")
    prompts = [message.text for message in run.session.messages if message.origin == "human"]
    assert prompts == ["Write down: the port", "Once more."]
    assert (run.workspace / "notes/a.txt").exists() and not (run.workspace / "notes/b.txt").exists()
    await run.session.aclose()


def test_a_repository_has_commands_once_it_is_trusted_and_they_win(tmp_path: Path) -> None:
    chosen = options(tmp_path, None)
    write(tmp_path / "user/.config/k3agent/commands", both="mine", own="mine")
    write(tmp_path / "user/.claude/commands", own="other agent's", foreign="of the user")
    write(chosen.cwd / ".claude/commands", theirs="foreign", shared="foreign")
    write(chosen.cwd / ".k3agent/commands", both="theirs", shared="ours")
    before = load_extensions(chosen.cwd, chosen.environ, chosen.home)
    assert list(before.commands) == ["both", "foreign", "own"] and before.commands["own"].text == "mine"
    assert ".claude/commands" in before.warnings[0] and ".k3agent/commands" in before.warnings[0]
    set_trust(chosen.home, chosen.cwd / ".k3agent", is_trusted=True)
    after = load_extensions(chosen.cwd, chosen.environ, chosen.home)
    texts = {name: command.text for name, command in after.commands.items()}
    assert texts == {
        "both": "theirs", "foreign": "of the user", "own": "mine", "shared": "ours", "theirs": "foreign"
    }  # fmt: skip
    # Changed text, also of the other agents' folder, asks anew.
    write(chosen.cwd / ".claude/commands", theirs="changed")
    assert "theirs" not in load_extensions(chosen.cwd, chosen.environ, chosen.home).commands


def test_what_seems_to_call_a_command() -> None:
    assert called_name("/nope LIMIT") == called_name("/nope") == called_name("/nope\nmore") == "nope"
    assert called_name("/git:nope now") == "git:nope"
    for words in ("/tmp is full", "/nope/more x", "/ x", "see /nope", " /nope", "/nope.py", ""):
        assert called_name(words) == ""


def test_a_word_means_one_command_or_none_is_run(tmp_path: Path) -> None:
    custom = load_commands([write(tmp_path, review=REVIEW, undo="Undo it.")], [])
    assert meant_by("quit") == ["quit"] and meant_by("qui") == ["quit"]
    assert set(meant_by("re")) == {"rewind", "retry", "sessions"}
    assert meant_by("rev", custom) == ["review"] and meant_by("rev", custom, is_exact=True) == []
    assert {word: meant_by(word) for word in ALIASES} == {word: [name] for word, name in ALIASES.items()}
    assert meant_by("undo", custom) == ["undo"]
    # In the help of one only.
    assert meant_by("resumed") == meant_by("") == []
    assert all(name in COMMANDS for name in ALIASES.values()) and not COMMANDS.keys() & ALIASES.keys()
    assert [command_candidates(word)[0].value for word in ALIASES] == [
        f"/{name}" for name in ALIASES.values()
    ]


def test_the_list_of_the_ui_has_them_after_its_own(tmp_path: Path) -> None:
    custom = load_commands([write(tmp_path, review=REVIEW, quit="not the UI's")], [])
    shown = command_candidates("re", custom)
    assert shown[-1].value == "/review " and "BRANCH" in shown[-1].help
    [quit_] = [item for item in command_candidates("quit", custom) if item.value == "/quit"]
    assert quit_.help == COMMANDS["quit"].help
