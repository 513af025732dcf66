"""Hooks and commands of a repository, by the program as users start it."""

from __future__ import annotations

import json

from support.headless import Bench
from support.runs import EDIT, READ, served

from k3agent.providers.scripted import Step

HOOKS = {
    "hooks": {
        "PreToolUse": [
            {
                "matcher": "Edit",
                "hooks": [{"type": "command", "command": ".k3agent/hooks/no-edit.sh"}],
            }
        ],
        "UserPromptSubmit": [
            {
                "hooks": [
                    {"type": "command", "command": "if grep -q forbidden; then echo not that >&2; exit 2; fi"}
                ]
            }
        ],
    }
}


def test_a_repository_s_hooks_run_once_trusted_and_until_they_change(bench: Bench) -> None:
    folder = bench.workspace / ".k3agent"
    (folder / "hooks").mkdir(parents=True)
    (folder / "commands").mkdir()
    (folder / "hooks.json").write_text(json.dumps(HOOKS))
    (folder / "commands" / "mend.md").write_text("Mend $1, please.")
    script = folder / "hooks" / "no-edit.sh"
    script.write_text("#!/bin/sh\ncat >/dev/null\necho 'frozen until Monday' >&2\nexit 2\n")
    script.chmod(0o755)
    text = (bench.workspace / "a.txt").read_text()
    read, edit, done = (
        Step(calls=(READ,)),
        Step(calls=(EDIT,)),
        Step(text="ok"),
    )

    def results(prompt: str) -> str:
        with served(bench, [read, edit, done]):
            ran = bench.stream(prompt)
        assert ran.code in (0, 3), ran.err
        said = "".join(json.dumps(line) for line in ran.lines)
        assert ran.result["session_id"]
        return said + ran.err

    ran = bench.stream("/mend a.txt")
    assert ran.code == 2 and "mend.md is not trusted" in ran.err
    assert "frozen until Monday" not in results("Mend a.txt, please.")
    assert (bench.workspace / "a.txt").read_text() != text
    (bench.workspace / "a.txt").write_text(text)
    assert bench.run("config", "trust", "--yes").code == 0
    said = results("/mend a.txt")
    assert "frozen until Monday" in said and "a hook denies it" in said
    assert (bench.workspace / "a.txt").read_text() == text
    with served(bench, [done]):
        ran = bench.stream("do the forbidden thing")
    assert ran.code == 3 and ran.result["subtype"] == "error_permission"
    assert "a hook does not let this prompt pass: not that" in ran.result["errors"][0]
    script.write_text("#!/bin/sh\nexit 0\n")
    said = results("Mend a.txt, please.")
    assert "frozen until Monday" not in said and "config trust" in said
