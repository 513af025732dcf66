"""Commands from files and hooks, on the screen."""

from __future__ import annotations

import json
from pathlib import Path

from support.screens import running

from k3agent.providers.scripted import Step
from k3agent.tui.screens.rewind import RewindScreen


def own(root: Path, name: str, text: str) -> None:
    path = root / "user" / ".config" / "k3agent" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def test_a_command_from_a_file_is_offered_and_sent(tmp_path: Path) -> None:
    own(tmp_path, "commands/review.md", "---\ndescription: Look at a branch\n---\nReview $1, be strict.")
    async with running(tmp_path, [Step(text="looks good")] * 2) as screen:
        await screen.press(*"/rev")
        await screen.until("Look at a branch")
        screen.chat.prompt.text = ""
        await screen.submit("/review main")
        await screen.until("looks good")
        assert screen.client.requests[0].messages[-1].text == "Review main, be strict."
        await screen.submit("/review\nmain")
        await screen.until(lambda: len(screen.client.requests) == 2)
        assert screen.client.requests[1].messages[-1].text == "Review main, be strict."
        await screen.submit("/revieww")
        await screen.until("unknown command /revieww. Did you mean /review?")
        await screen.submit("/Help")
        await screen.until("unknown command /Help. Did you mean /help?")
        assert len(screen.client.requests) == 2


async def test_the_help_lists_commands_from_files(tmp_path: Path) -> None:
    own(tmp_path, "commands/review.md", "---\ndescription: Look at a branch\n---\nReview $1.")
    async with running(tmp_path, size=(100, 200)) as screen:
        await screen.submit("/help")
        await screen.until("Commands from files")
        await screen.until("Look at a branch")


async def test_a_prompt_that_a_hook_stops_is_told_and_the_next_goes_through(tmp_path: Path) -> None:
    command = "if grep -q forbidden; then echo not in this folder >&2; exit 2; fi"
    hooks = {"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": command}]}]}}
    own(tmp_path, "hooks.json", json.dumps(hooks))
    async with running(tmp_path, [Step(text="fine")]) as screen:
        await screen.submit("something forbidden")
        await screen.until("a hook does not let this prompt pass: not in this folder")
        assert screen.client.requests == []
        await screen.submit("something else")
        await screen.until("fine")


async def test_enter_runs_what_is_written_and_nothing_that_the_list_found_by_its_help(tmp_path: Path) -> None:
    own(tmp_path, "commands/review.md", "Review $ARGUMENTS, be strict.")
    async with running(tmp_path, [Step(text="looks good")]) as screen:
        # Only the help of /quit has this word.
        await screen.type("/resumed")
        await screen.until(lambda: screen.chat.completion.is_shown)
        await screen.press("enter")
        await screen.until("unknown command /resumed")
        await screen.submit("/re")
        await screen.until("/re may be")
        assert screen.client.requests == []
        await screen.submit("/rev")
        await screen.until("looks good")
        assert screen.client.requests[0].messages[-1].text == "Review , be strict."
        await screen.submit("/resume")
        await screen.until("the open session is the only one")
        await screen.press("escape")
        await screen.until(lambda: screen.app.screen is screen.chat)
        await screen.submit("/undo")
        await screen.until(lambda: isinstance(screen.app.screen, RewindScreen))


async def test_what_the_arrows_pick_is_run(tmp_path: Path) -> None:
    async with running(tmp_path) as screen:
        await screen.type("/resumed")
        await screen.until(lambda: screen.chat.completion.is_shown)
        await screen.press("down", "enter")
        await screen.until(lambda: screen.app._exit)
