"""Hooks: real scripts around real turns."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.agents import DONE, FULL, Run, call, options, start, step

from k3agent.agent.extensions import load_extensions
from k3agent.agent.hookanswer import HookFailed, merged, read_answer
from k3agent.agent.hooknames import arguments_from, input_of, names_of
from k3agent.agent.options import CompactAt
from k3agent.agent.session import Session
from k3agent.config.trust import set_trust
from k3agent.errors import BlockedError, ConfigError
from k3agent.events import CallEnded, Noticed, TurnOutcome
from k3agent.prompts.loader import load
from k3agent.store.records import DecisionRow


def own_hooks(root: Path, **events: list[dict[str, Any]]) -> Path:
    """Write the user's hooks.json; each entry is {matcher, command, ...}."""
    folder = root / "user" / ".config" / "k3agent"
    folder.mkdir(parents=True, exist_ok=True)
    body: dict[str, Any] = {"hooks": {}}
    for event, entries in events.items():
        body["hooks"][event] = [
            {
                "matcher": entry.pop("matcher", ""),
                "hooks": [{"type": "command", **entry}],
            }
            for entry in entries
        ]
    (folder / "hooks.json").write_text(json.dumps(body))
    return folder / "hooks.json"


async def hooked(root: Path, answers: Any, **more: Any) -> Run:
    chosen = options(root, None)
    found = load_extensions(chosen.cwd, chosen.environ, chosen.home)
    return await start(root, answers, extensions=found, **more)


def decisions(run: Run) -> list[DecisionRow]:
    store = run.session._store
    rows = store._all(
        "SELECT call_id, tool, subject, action, reason, by FROM decisions WHERE session_id = ? ORDER BY id",
        (run.session.id,),
    )
    return [DecisionRow(call_id=a, tool=b, subject=c, action=d, reason=e, by=f) for a, b, c, d, e, f in rows]


async def test_exit_2_denies_a_call_and_its_words_go_to_the_model(tmp_path: Path) -> None:
    own_hooks(
        tmp_path,
        PreToolUse=[
            {
                "matcher": "Bash",
                "command": "cat > seen.json; if grep -q 'rm ' seen.json; then echo no rm >&2; exit 2; fi",
            }
        ],
    )
    run = await hooked(
        tmp_path, [step(call("shell", command="rm -f a.txt")), step(call("shell", command="echo fine")), DONE]
    )
    (run.workspace / "a.txt").write_text("kept")
    ended = await run.session.submit("Clean up.")
    assert ended.outcome is TurnOutcome.SUCCESS
    assert (run.workspace / "a.txt").exists()
    assert "no rm" in run.results[0] and "a hook denies it" in run.results[0]
    assert "fine" in run.results[1]
    told = json.loads((run.workspace / "seen.json").read_text())
    assert told["hook_event_name"] == "PreToolUse" and told["tool_name"] == "Bash"
    assert told["tool_input"]["command"] == "echo fine" and told["session_id"] == run.session.id
    assert told["cwd"] == str(run.workspace.resolve()) and told["permission_mode"] == "auto"
    by_hook = [row for row in decisions(run) if row.by == "hook"]
    assert [(row.action, row.tool) for row in by_hook] == [("deny", "shell")]
    await run.session.aclose()


async def test_json_can_allow_what_the_mode_asks_but_not_what_is_protected(tmp_path: Path) -> None:
    answer = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
    own_hooks(tmp_path, PreToolUse=[{"matcher": "Write|Edit", "command": f"echo '{json.dumps(answer)}'"}])
    run = await hooked(
        tmp_path,
        [
            step(call("write", path="a.txt", content="x\n"), call("write", path=".git/config", content="x")),
            DONE,
        ],
        permission_mode="default",
    )
    await run.session.submit("Write.")
    assert (run.workspace / "a.txt").read_text() == "x\n"
    assert not (run.workspace / ".git" / "config").exists()
    assert [(row.action, row.by) for row in decisions(run)] == [("allow", "hook"), ("deny", "protection")]
    await run.session.aclose()


async def test_a_hook_changes_a_call(tmp_path: Path) -> None:
    script = tmp_path / "user" / "change.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "import json, sys\n"
        "told = json.load(sys.stdin)['tool_input']\n"
        "told['content'] = told['content'].upper()\n"
        "print(json.dumps({'hookSpecificOutput': {'updatedInput': told, 'additionalContext': 'louder'}}))\n"
    )
    own_hooks(tmp_path, PreToolUse=[{"matcher": "Write", "command": f"python3 {script}"}])
    run = await hooked(tmp_path, [step(call("write", path="a.txt", content="quiet\n")), DONE])
    await run.session.submit("Write.")
    assert (run.workspace / "a.txt").read_text() == "QUIET\n"
    assert "louder" in run.results[0] and "a hook changed this call" in run.results[0]
    await run.session.aclose()


async def test_after_a_call_the_model_reads_what_the_hook_says(tmp_path: Path) -> None:
    own_hooks(
        tmp_path,
        PostToolUse=[
            {
                "matcher": "Edit|Write|MultiEdit",
                "command": "cat > after.json; echo 'line 1 is too long' >&2; exit 2",
            }
        ],
        PostToolUseFailure=[{"matcher": "Read", "command": "cat > failed.json"}],
    )
    run = await hooked(
        tmp_path, [step(call("write", path="a.txt", content="x\n"), call("read", path="none.txt")), DONE]
    )
    await run.session.submit("Write.")
    assert "line 1 is too long" in run.results[0]
    told = json.loads((run.workspace / "after.json").read_text())
    assert told["tool_response"]["success"] is True
    assert told["tool_input"]["file_path"] == str(run.workspace.resolve() / "a.txt")
    failed = json.loads((run.workspace / "failed.json").read_text())
    assert failed["tool_response"]["success"] is False and "none.txt" in failed["error"]
    assert [event.is_denied for event in run.of(CallEnded)] == [False, False]
    await run.session.aclose()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 7", "ended with code 7"),
        ("exit 1", "ended with code 1"),
        ("echo '{\"broken'; exit 0", ""),
    ],
)
async def test_a_failing_hook_changes_nothing(tmp_path: Path, command: str, said: str) -> None:
    own_hooks(tmp_path, PreToolUse=[{"command": command, "timeout": 0.5}])
    run = await hooked(tmp_path, [step(call("shell", command="echo went on")), DONE])
    ended = await run.session.submit("Go.")
    assert ended.outcome is TurnOutcome.SUCCESS
    assert "went on" in run.results[0]
    notices = [event.text for event in run.of(Noticed) if "counts for nothing" in event.text]
    assert len(notices) == bool(said)
    assert all(said in text for text in notices)
    await run.session.aclose()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sleep 60", "did not end within"),
        ("/nowhere/at/all", "ended with code 127"),
        ("/etc", "ended with code 126"),
        ("kill -9 $$", "ended with code -9"),
        ("sh -c 'kill -9 $$'; exit $?", "ended with code 137"),
    ],
)
async def test_a_guard_that_cannot_run_is_no_consent(tmp_path: Path, command: str, said: str) -> None:
    limit_s = 0.5 if command.startswith("sleep") else 30
    own_hooks(
        tmp_path,
        PreToolUse=[{"matcher": "Bash", "command": command, "timeout": limit_s}],
        PostToolUseFailure=[{"matcher": "Read", "command": command, "timeout": limit_s}],
    )
    run = await hooked(
        tmp_path, [step(call("shell", command="echo went on")), step(call("read", path="none.txt")), DONE]
    )
    await run.session.submit("Go.")
    assert "went on" not in run.results[0]
    assert "permission denied" in run.results[0] and "cannot say: it " in run.results[0]
    notices = [event.text for event in run.of(Noticed) if "guards calls and cannot" in event.text]
    assert len(notices) == 1 and said in notices[0]
    # What looks at results guards nothing.
    assert len([event for event in run.of(Noticed) if "counts for nothing" in event.text]) == 1
    await run.session.aclose()


async def test_a_prompt_can_be_stopped_or_added_to(tmp_path: Path) -> None:
    own_hooks(
        tmp_path,
        SessionStart=[{"matcher": "startup", "command": "echo the build is green"}],
        UserPromptSubmit=[
            {"command": "if grep -q forbidden; then echo 'not this' >&2; exit 2; fi; echo ticket K3-7"}
        ],
    )
    run = await hooked(tmp_path, [DONE, DONE])
    with pytest.raises(BlockedError, match="not this"):
        await run.session.submit("Do the forbidden thing.")
    assert not run.session.messages and not run.client.requests
    assert [(row.tool, row.action) for row in decisions(run)] == [("UserPromptSubmit", "deny")]
    await run.session.submit("Do something else.")
    texts = [message.text for message in run.session.messages]
    assert "ticket K3-7" in texts[1] + texts[2]
    # Said once, with the first prompt that gets through.
    assert sum("the build is green" in text for text in texts) == 1
    await run.session.submit("And more.")
    assert sum("the build is green" in message.text for message in run.session.messages) == 1
    assert texts[-2] == "Do something else."
    await run.session.aclose()


async def test_stop_has_the_model_go_on_but_not_for_ever(tmp_path: Path) -> None:
    own_hooks(tmp_path, Stop=[{"command": "cat >> stops.jsonl; echo 'the changelog is missing' >&2; exit 2"}])
    run = await hooked(tmp_path, [DONE] * 6)
    ended = await run.session.submit("Go.")
    assert ended.outcome is TurnOutcome.SUCCESS
    assert len(run.client.requests) == 4
    told = [
        json.loads(line)
        for line in (run.workspace / "stops.jsonl").read_text().replace("}{", "}\n{").splitlines()
    ]
    assert [item["stop_hook_active"] for item in told] == [False, True, True, True]
    assert "the changelog is missing" in run.client.requests[1].messages[-1].text
    await run.session.aclose()


async def test_what_is_noticed_of_a_check_is_said_once_however_often_it_is_made(tmp_path: Path) -> None:
    own_hooks(tmp_path, Stop=[{"command": "echo 'the changelog is missing' >&2; exit 2"}])
    run = await hooked(tmp_path, [DONE] * 6, checks=("sh test.sh",))
    (run.workspace / "test.sh").write_text("echo Ran 0 tests in 0.000s; echo OK")
    await run.session.submit("Go.")
    assert len(run.client.requests) == 4
    assert [one["kind"] for one in run.session.receipt.remarks] == ["tests"]
    await run.session.aclose()


async def test_continue_false_ends_the_turn(tmp_path: Path) -> None:
    own_hooks(
        tmp_path,
        PostToolUse=[{"command": """echo '{"continue": false, "stopReason": "the disk is full"}'"""}],
    )
    run = await hooked(tmp_path, [step(call("shell", command="true")), DONE])
    ended = await run.session.submit("Go.")
    assert ended.outcome is TurnOutcome.INTERRUPTED and "the disk is full" in ended.detail
    assert len(run.client.requests) == 1
    await run.session.aclose()


async def test_the_end_of_a_session_is_told(tmp_path: Path) -> None:
    own_hooks(tmp_path, SessionEnd=[{"command": "cat > ended.json"}])
    run = await hooked(tmp_path, [DONE])
    await run.session.submit("Go.")
    await run.session.aclose()
    assert json.loads((run.workspace / "ended.json").read_text())["hook_event_name"] == "SessionEnd"


async def test_stand_ins_that_a_hook_gives_back_change_nothing(tmp_path: Path) -> None:
    """A hook is told stand-ins for secrets; those that it repeats are no change, and others can be one."""
    secret = "sk-" + "a1B2c3D4e5F6g7H8" * 2
    script = tmp_path / "same.py"
    script.write_text(
        "import json, sys\n"
        "told = json.load(sys.stdin)['tool_input']\n"
        "told['timeout'] = 7000\n"
        "print(json.dumps({'hookSpecificOutput': {'updatedInput': told}}))\n"
    )
    own_hooks(tmp_path, PreToolUse=[{"matcher": "Bash", "command": f"python3 {script}"}])
    run = await hooked(
        tmp_path,
        [step(call("shell", command=f"printf %s {secret} | wc -c")), DONE],
        environ={"MY_API_KEY": secret},
    )
    await run.session.submit("go")
    assert str(len(secret)) in run.results[0]
    await run.session.aclose()


async def test_of_two_hooks_that_change_a_call_the_first_counts_and_it_is_said(tmp_path: Path) -> None:
    def wants(command: str) -> dict[str, str]:
        answer = json.dumps({"hookSpecificOutput": {"updatedInput": {"command": command}}})
        return {"matcher": "Bash", "command": f"echo '{answer}' # {command}"}

    own_hooks(tmp_path, PreToolUse=[wants("echo first"), wants("echo second"), wants("echo first")])
    run = await hooked(tmp_path, [step(call("shell", command="echo neither")), DONE])
    await run.session.submit("go")
    assert "first" in run.results[0] and "second" not in run.results[0]
    (said,) = [
        event.text for event in run.events if isinstance(event, Noticed) and "other arguments" in event.text
    ]
    assert "# echo second" in said
    await run.session.aclose()


async def test_secrets_reach_no_hook_and_what_a_hook_prints_is_masked(tmp_path: Path) -> None:
    secret = "sk-" + "a1B2c3D4e5F6g7H8" * 2
    own_hooks(
        tmp_path,
        PreToolUse=[{"command": "cat > told.json; env > env.txt; exit 0"}],
        PostToolUse=[{"command": f"echo 'found {secret}' >&2; exit 2"}],
    )
    run = await hooked(
        tmp_path,
        [step(call("shell", command=f"echo {secret}")), DONE],
        environ={"MY_API_KEY": secret},
    )
    await run.session.submit("Go.")
    assert secret not in (run.workspace / "told.json").read_text()
    assert secret not in (run.workspace / "env.txt").read_text()
    assert secret not in "".join(run.results) and "found" in run.results[0]
    await run.session.aclose()


async def test_a_script_that_the_model_changes_does_not_run_again(tmp_path: Path) -> None:
    own_hooks(tmp_path, PostToolUse=[{"command": '"$CLAUDE_PROJECT_DIR"/lint.sh'}])
    workspace = tmp_path / "ws"
    workspace.mkdir()
    script = workspace / "lint.sh"
    script.write_text("#!/bin/sh\necho x >> ran.txt\n")
    script.chmod(0o755)
    run = await hooked(
        tmp_path,
        [
            step(call("shell", command="echo one")),
            step(call("write", path="other.txt", content="x")),
            step(call("shell", command="echo 'echo y >> ran.txt' >> lint.sh")),
            step(call("shell", command="echo two")),
            DONE,
        ],
    )
    await run.session.submit("Go.")
    assert (workspace / "ran.txt").read_text() == "x\nx\n"
    assert any("was changed in this session" in event.text for event in run.of(Noticed))
    await run.session.aclose()


@pytest.mark.parametrize(
    "change",
    [
        "echo 'exit 0' > guard.sh",
        "rm guard.sh",
        "mv guard.sh g",
        "chmod -x guard.sh",
        "touch g; ln -sf g guard.sh",
    ],
)
async def test_a_guard_that_was_changed_lets_nothing_pass(tmp_path: Path, change: str) -> None:
    """Where nobody can be asked a call is denied."""
    workspace = options(tmp_path, None).cwd
    script = workspace / "guard.sh"
    script.write_text("#!/bin/sh\ngrep -q forbidden && exit 2\nexit 0\n")
    script.chmod(0o755)
    own_hooks(tmp_path, PreToolUse=[{"matcher": "Bash", "command": "./guard.sh"}])
    commands = [change, "echo forbidden > made.txt", "echo fine > made.txt"]
    run = await hooked(tmp_path, [*(step(call("shell", command=command)) for command in commands), DONE])
    await run.session.submit("Go.")
    assert not (workspace / "made.txt").exists()
    assert all("guard.sh was changed in this session" in result for result in run.results[1:])
    assert any("cannot: " in event.text for event in run.of(Noticed))
    await run.session.aclose()


async def test_what_a_guard_says_that_is_changed_while_it_runs_does_not_count(tmp_path: Path) -> None:
    workspace = options(tmp_path, None).cwd
    script = workspace / "guard.sh"
    script.write_text("#!/bin/sh\ncp guard.sh other && mv other guard.sh\nexit 0\n")
    script.chmod(0o755)
    own_hooks(tmp_path, PreToolUse=[{"matcher": "Bash", "command": "./guard.sh"}])
    run = await hooked(tmp_path, [step(call("shell", command="echo x > made.txt")), DONE])
    await run.session.submit("Go.")
    assert not (workspace / "made.txt").exists() and "changed while it ran" in run.results[0]
    await run.session.aclose()


@pytest.mark.parametrize(
    "command",
    [
        "test -f ./tools/after.sh && sh ./tools/after.sh; true",
        'sh "$CLAUDE_PROJECT_DIR/tools/after.sh"; true',
        "sh $PWD/tools/after.sh; true",
        "sh ~/ws/tools/after.sh; true",
        "sh ${HOME}/ws/tools/after.sh; true",
        "cd tools && sh after.sh; true",
        'sh "$(pwd)/tools/after.sh"; true',
    ],
)
async def test_a_script_that_the_model_makes_where_a_hook_looks_for_one_does_not_run(
    tmp_path: Path, command: str
) -> None:
    workspace = options(tmp_path, None).cwd
    (workspace / "tools").mkdir()
    own_hooks(tmp_path, PostToolUse=[{"command": command}])
    write = call("write", path="tools/after.sh", content=f"touch {tmp_path}/escaped\n")
    chosen = options(tmp_path, None)
    environ = {**chosen.environ, "HOME": str(tmp_path)}
    told = {**environ, "XDG_CONFIG_HOME": f"{tmp_path}/user/.config"}
    found = load_extensions(chosen.cwd, told, chosen.home)
    answers = [step(write), step(call("shell", command="true")), DONE]
    run = await start(tmp_path, answers, extensions=found, environ=environ)
    await run.session.submit("Go.")
    assert (workspace / "tools" / "after.sh").exists() and found.hooks
    assert not (tmp_path / "escaped").exists()
    await run.session.aclose()


@pytest.mark.parametrize("target", ["../real.sh", "../../outside.sh"])
async def test_a_linked_script_does_not_run_when_the_link_leads_elsewhere(
    tmp_path: Path, target: str
) -> None:
    workspace = options(tmp_path, None).cwd
    (workspace / "a").mkdir()
    (workspace / "real.sh").write_text("true\n")
    (tmp_path / "outside.sh").write_text("true\n")
    (workspace / "a" / "h.sh").symlink_to(target)
    own_hooks(tmp_path, PostToolUse=[{"command": "sh a/h.sh"}])
    turn = f"echo 'touch {tmp_path}/escaped' > evil.sh; ln -sf ../evil.sh a/h.sh"
    run = await hooked(
        tmp_path, [step(call("shell", command=turn)), step(call("shell", command="true")), DONE]
    )
    await run.session.submit("Go.")
    assert not (tmp_path / "escaped").exists()
    assert any("was changed in this session" in event.text for event in run.of(Noticed))
    await run.session.aclose()


async def test_files_that_a_hook_only_reads_may_come_later(tmp_path: Path) -> None:
    own_hooks(tmp_path, PostToolUse=[{"command": f"cat build/report.txt >> {tmp_path}/seen; true"}])
    write = call("write", path="build/report.txt", content="fine\n")
    run = await hooked(tmp_path, [step(write), step(call("shell", command="true")), DONE])
    await run.session.submit("Go.")
    assert (tmp_path / "seen").read_text() == "fine\nfine\n"
    await run.session.aclose()


def test_a_long_word_in_a_command_is_no_script(tmp_path: Path) -> None:
    own_hooks(tmp_path, Stop=[{"command": f"echo {'a' * 5000} /{'b' * 300}/c"}])
    chosen = options(tmp_path, None)
    assert load_extensions(chosen.cwd, chosen.environ, chosen.home).hooks


async def test_hooks_of_a_repository_count_once_it_is_trusted_and_as_they_were(tmp_path: Path) -> None:
    chosen = options(tmp_path, None)
    folder = chosen.cwd / ".k3agent"
    folder.mkdir()
    (folder / "hooks.json").write_text(
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}'
    )
    found = load_extensions(chosen.cwd, chosen.environ, chosen.home)
    assert not found.hooks and "config trust" in found.warnings[0]
    set_trust(chosen.home, folder, is_trusted=True)
    assert [hook.event for hook in load_extensions(chosen.cwd, chosen.environ, chosen.home).hooks] == ["Stop"]
    (folder / "hooks").mkdir()
    (folder / "hooks" / "x.sh").write_text("true")
    assert not load_extensions(chosen.cwd, chosen.environ, chosen.home).hooks


async def test_json_nested_without_end_changes_nothing(tmp_path: Path) -> None:
    """Such an answer is nonsense like any other."""
    (tmp_path / "deep.json").write_text('{"a":' * 100_000)
    own_hooks(tmp_path, PreToolUse=[{"command": f"cat {tmp_path}/deep.json"}])
    run = await hooked(tmp_path, [step(call("shell", command="echo fine")), DONE])
    ended = await run.session.submit("Go.")
    assert ended.outcome is TurnOutcome.SUCCESS and "fine" in run.results[0]
    await run.session.aclose()


async def test_a_subagent_has_the_hooks_of_its_user(tmp_path: Path) -> None:
    own_hooks(
        tmp_path,
        SubagentStop=[{"command": 'cat > "$K3AGENT_PROJECT_DIR"/sub.json'}],
        Stop=[{"command": "cat > stop.json"}],
        UserPromptSubmit=[{"command": "echo x >> prompts.txt"}],
        SessionStart=[{"command": "echo x >> starts.txt"}],
        SessionEnd=[{"command": "echo x >> ends.txt"}],
    )
    brief = {"title": "look", "brief": "Look at it."}
    run = await hooked(
        tmp_path, [lambda request: DONE if _is_child(request) else step(call("task", tasks=[brief])), DONE]
    )
    await run.session.submit("Go.")
    assert json.loads((run.workspace / "sub.json").read_text())["hook_event_name"] == "SubagentStop"
    assert json.loads((run.workspace / "stop.json").read_text())["session_id"] == run.session.id
    assert (run.workspace / "prompts.txt").read_text() == "x\n"
    await run.session.aclose()
    # A subagent is a part of the session, not one of its own.
    assert (run.workspace / "starts.txt").read_text() == (run.workspace / "ends.txt").read_text() == "x\n"


def _is_child(request: Any) -> bool:
    return all(spec.name != "task" for spec in request.tools)


async def test_wrong_files_are_named(tmp_path: Path) -> None:
    chosen = options(tmp_path, None)
    path = own_hooks(tmp_path, PreToolUse=[{"command": "true", "matcher": "("}])
    with pytest.raises(ConfigError, match="no regular expression"):
        load_extensions(chosen.cwd, chosen.environ, chosen.home)
    path.write_text('{"hooks": {"PreToolUs": [], "Stop": [{"hooks": [{"type": "prompt", "prompt": "x"}]}]}}')
    found = load_extensions(chosen.cwd, chosen.environ, chosen.home)
    assert "Did you mean PreToolUse?" in found.warnings[0] and "'prompt'" in found.warnings[1]
    path.write_text(f'{{"hooks": {{}}, "x": "{"y" * 300_000}"}}')
    with pytest.raises(ConfigError, match="more than 262144 bytes"):
        load_extensions(chosen.cwd, chosen.environ, chosen.home)
    path.write_text("{")
    with pytest.raises(ConfigError, match="no valid JSON"):
        load_extensions(chosen.cwd, chosen.environ, chosen.home)
    assert not load_extensions(chosen.cwd, chosen.environ, chosen.home, has_hooks=False).hooks


def test_names_and_arguments_go_both_ways() -> None:
    before = {"path": "a.py", "old": "x", "new": "y", "all": False, "line": None}
    told = input_of("edit", before, (), Path("/w"))
    assert told == {
        "file_path": "/w/a.py",
        "old_string": "x",
        "new_string": "y",
        "replace_all": False,
        "line": None,
    }
    assert arguments_from("edit", {**told, "unknown": 1}, before) == {**before, "path": "/w/a.py"}
    told = input_of("try", {"path": "a.py", "line": 1, "command": "make"}, (), Path("/w"))
    assert told == {"file_path": "/w/a.py", "line": 1, "command": "make"}
    assert names_of("try") == ("try", "Edit", "Bash")
    assert "Edit" in names_of("patch") and names_of("mcp__x__y") == ("mcp__x__y",)


def test_the_strictest_answer_counts() -> None:
    allow = read_answer("PreToolUse", "a", 0, '{"decision": "approve"}', "")
    deny = read_answer("PreToolUse", "b", 2, "", "no")
    ask = read_answer("PreToolUse", "c", 0, '{"hookSpecificOutput": {"permissionDecision": "ask"}}', "")
    assert merged([allow, deny, ask]).decision == "deny" and merged([allow, deny]).by == "b"
    assert merged([allow, ask]).decision == "ask" and merged([allow]).decision == "allow"
    with pytest.raises(HookFailed, match="code 1"):
        read_answer("Stop", "d", 1, "", "")


async def test_without_hooks_nothing_is_started(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE])
    assert isinstance(run.session, Session)
    await run.session.submit("Go.")
    assert not any(row.by == "hook" for row in decisions(run))
    await run.session.aclose()


async def test_compactions_are_told_with_their_figures(tmp_path: Path) -> None:
    own_hooks(
        tmp_path,
        SessionStart=[{"matcher": "compact", "command": "echo mind the port 8099"}],
        PreCompact=[{"matcher": "manual", "command": "cat > before.json"}],
        PostCompact=[{"matcher": "manual", "command": "cat > after.json.new; mv after.json.new after.json"}],
    )

    def answer(request: Any) -> Any:
        return step(
            text="A summary." if request.messages[-1].text == load("compaction/ask") else "word " * 4000
        )

    info = dataclasses.replace(FULL, context_window=40_000)
    run = await hooked(tmp_path, [answer] * 9, info=info, compact_at=CompactAt(share=1.0))
    for prompt in ("One.", "Two.", "Three."):
        await run.session.submit(prompt)
    run.session.compactor.is_wanted = True
    await run.session.submit("Four.")
    await run.session.aclose()
    assert "mind the port 8099" in run.client.requests[-1].messages[-1].text
    assert all("8099" not in message.text for message in run.client.requests[0].messages)
    before = json.loads((run.workspace / "before.json").read_text())
    after = json.loads((run.workspace / "after.json").read_text())
    [row] = run.session.receipt.compactions
    assert before["trigger"] == after["trigger"] == "manual"
    assert after["tokens_before"] == before["tokens_before"] == row["tokens_before"]
    assert after["tokens_after"] == row["tokens_after"] < after["tokens_before"]
    assert (after["kept"], after["dropped"]) == (row["kept"], row["dropped"])
    assert after["cost_usd"] == row["cost_usd"] and "A summary." in after["compact_summary"]


async def test_an_interrupt_does_not_wait_for_a_hook(tmp_path: Path) -> None:
    own_hooks(tmp_path, UserPromptSubmit=[{"command": "touch began; sleep 50"}])
    run = await hooked(tmp_path, [DONE])
    turn = asyncio.create_task(run.session.submit("Go."))
    async with asyncio.timeout(60):
        while not (run.workspace / "began").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
    assert run.session.is_running
    run.session.interrupt("the user pressed escape")
    with pytest.raises(BlockedError, match="interrupted"):
        await turn
    assert not run.session.is_running and not run.session.messages
    await run.session.aclose()
