"""Lists, help, settings, sessions, plan mode, completion: what a user sees and what it changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.agents import ReplayClient, call, step
from support.screens import quick, running
from textual import events
from textual.widgets import Input

from k3agent.config.settings import Settings
from k3agent.providers.scripted import Step
from k3agent.store.sessions import SessionStore
from k3agent.tui.app import K3App
from k3agent.tui.screens import models
from k3agent.tui.screens.chatbase import PLACEHOLDER
from k3agent.tui.start import UiOptions

MARKUP = "[red]x[/red] [/] \x1b[31m\u202e\u2028\x00 end"


async def talked(root: Path, *prompts: str) -> None:
    """A stored session for each prompt."""
    for prompt in prompts:
        async with running(root, [Step(text=f"Answer to {prompt}.")]) as screen:
            screen.chat.say(prompt)
            await screen.until("done · 1 step")


async def test_help_shows_keys_and_commands_with_own_keys(tmp_path: Path) -> None:
    config = tmp_path / "user/.config/k3agent"
    config.mkdir(parents=True)
    (config / "keys.toml").write_text('search = "f7"\n')
    async with running(tmp_path) as screen:
        await screen.type("?")
        await screen.until("Keys and commands")
        await screen.until("F7")
        await screen.press("pagedown", "pagedown", "pagedown")
        await screen.until("/rewind")
        await screen.press("pagedown", "pagedown")
        await screen.until("works freely in the workspace")
        await screen.press("escape", "f7")
        await screen.until("search in the conversation")


async def test_sessions_are_searched_renamed_and_gone_on_with(tmp_path: Path) -> None:
    await talked(tmp_path, "about the loader", "about the parser")
    async with running(tmp_path, [Step(), Step(text="Second answer.")]) as screen:
        await screen.submit("/sessions")
        await screen.until("about the parser")
        assert "about the loader" in screen.shown
        await screen.type("loader")
        await screen.until_gone("about the parser")
        await screen.until("Answer to about the loader.")
        await screen.press("ctrl+r")
        await screen.until("The session's title")
        screen.app.screen.query_one(Input).value = f"renamed {MARKUP}"
        await screen.press("enter")
        await screen.until_gone("The session's title")
        screen.app.screen.query_one(Input).value = ""
        await screen.until("renamed [red]x[/red]")
        await screen.type("renamed")
        await screen.press("enter")
        await screen.until("❯ about the loader")
        await screen.submit("more")
        await screen.until("Second answer.")


async def test_sessions_are_found_by_what_was_said_in_them(tmp_path: Path) -> None:
    await talked(tmp_path, "about the loader", "about the parser")
    async with running(tmp_path, [Step(text="The zebra is striped."), Step(text="ok")]) as screen:
        await screen.submit("which animal")
        await screen.until("striped")
        await screen.submit("/new")
        await screen.until_gone("striped")
        await screen.submit("/sessions")
        await screen.until("about the parser")
        await screen.type("zebra")
        await screen.until("nothing fits “zebra”")
        await screen.until("which animal")
        assert "“The zebra is striped.”" in screen.shown and "about the loader" not in screen.shown
        strips = screen.app.screen._compositor.render_strips()
        bold = [piece.text for strip in strips for piece in strip if piece.style and piece.style.bold]
        assert "zebra" in bold
        await screen.press("enter")
        await screen.until("The zebra is striped.")


async def test_the_first_start_shows_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "is_first_run", lambda app: True)
    monkeypatch.setattr(models, "PORTS", ())
    async with running(tmp_path, is_ready=False, size=(80, 24)) as screen:
        await screen.until("which model shall it use?")
        await screen.until("✓ nano from bundled")
        await screen.until("set MOONSHOT_API_KEY")
        assert screen.chat.driver.session is None
        await screen.press("escape")
        await screen.until(lambda: screen.chat.driver.session is not None)


@pytest.mark.parametrize(
    ("environ", "options", "stored", "is_first"),
    [
        ({}, {}, False, True),
        ({"MOONSHOT_API_KEY": "k"}, {}, False, False),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, {}, False, False),
        ({}, {"prompt": "do it"}, False, False),
        ({}, {"continues_newest": True}, False, False),
        ({}, {}, True, False),
    ],
)
def test_which_start_is_the_first(
    tmp_path: Path, environ: dict[str, str], options: dict[str, Any], stored: bool, is_first: bool
) -> None:
    if stored:
        SessionStore(tmp_path).close()
    app = K3App(UiOptions(cwd=tmp_path, environ=environ, home=tmp_path, flags={}, **options), Settings())
    assert models.is_first_run(app) is is_first
    assert not models.is_first_run(K3App(app.options, Settings(model="kimi-k3")))


async def test_a_session_is_deleted_only_after_yes(tmp_path: Path) -> None:
    await talked(tmp_path, "to be deleted")
    async with running(tmp_path) as screen:
        await screen.submit("/sessions")
        await screen.until("to be deleted")
        await screen.press("ctrl+d")
        await screen.until("for good?")
        await screen.press("enter")
        await screen.until("to be deleted")
        await screen.press("ctrl+d")
        await screen.until("for good?")
        await screen.type("yes")
        await screen.press("enter")
        await screen.until("the open session is the only one")
    store = SessionStore(tmp_path / "home")
    assert not [row for row in store.list_sessions() if row.num_messages]
    store.close()


async def test_resume_without_an_id_lets_choose(tmp_path: Path) -> None:
    await talked(tmp_path, "the only one")
    async with running(tmp_path, [Step(), Step(text="ok")], picks=True, is_ready=False) as screen:
        await screen.until("the only one")
        await screen.press("enter")
        await screen.until("Answer to the only one.")


async def test_settings_take_effect_and_are_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as screen:
        await screen.submit("/settings")
        await screen.until("ui.theme")
        await screen.press("enter")
        await screen.until(lambda: screen.app.palette.name == "light")
        await screen.press("escape")
    assert 'theme = "light"' in (tmp_path / "user/.config/k3agent/config.toml").read_text()


async def test_a_plan_is_carried_out_when_it_is_agreed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    script = [
        Step(text="1. touch a file"),
        step(call("write", path="a.txt", content="x")),
        Step(text="Done now."),
    ]
    async with running(tmp_path, script, settings=Settings(permission_mode="plan")) as screen:
        await screen.submit("plan it")
        await screen.until("Shall this plan be carried out?")
        await screen.answer("s")
        await screen.until("Done now.")
        assert (screen.workspace / "a.txt").read_text() == "x"
        assert "accept-edits" in screen.rows[-1]


async def test_an_answer_in_plan_mode_is_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    script = [Step(text="It is read in two places."), Step(text="2")]
    async with running(tmp_path, script, settings=Settings(permission_mode="plan")) as screen:
        await screen.submit("where is it read?")
        await screen.until("done · 1 step")
        await screen.pilot.pause(0.2)
        assert screen.chat.panel.current is None
        await screen.submit("/plan")
        await screen.until("Shall this plan be carried out?")
        await screen.answer("n")
        await screen.until(lambda: screen.chat.panel.current is None)


@pytest.mark.parametrize("width", [40, 60, 80])
async def test_what_the_prompt_says_is_not_cut(tmp_path: Path, width: int) -> None:
    async with running(tmp_path, size=(width, 20)) as screen:
        prompt = screen.chat.prompt
        assert prompt.placeholder in PLACEHOLDER
        assert any(prompt.placeholder in row for row in screen.rows)


async def test_the_keys_of_a_dialog_are_not_cut(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="ok")], size=(60, 20)) as screen:
        await screen.submit("first")
        await screen.until("done · 1 step")
        await screen.submit("/new")
        await screen.until_gone("done · 1 step")
        await screen.submit("/sessions")
        await screen.until("^R rename")
        await screen.until("Tab all")


async def test_a_plan_is_changed_first(tmp_path: Path, monkeypatch) -> None:
    quick(monkeypatch)
    async with running(
        tmp_path, [Step(text="1. touch")], settings=Settings(permission_mode="plan")
    ) as screen:
        await screen.submit("plan it")
        await screen.answer("e")
        await screen.until(lambda: screen.chat.prompt.text == "Go ahead with the plan:\n\n1. touch")


async def test_files_are_completed(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/settings.py").write_text("")
    async with running(tmp_path, [Step(text="ok")]) as screen:
        await screen.type("see @sett")
        await screen.until("1 of 1")
        await screen.press("tab")
        assert screen.chat.prompt.text == "see @settings.py "
        await screen.press("enter")
        await screen.until("done · 1 step")


async def test_commands_are_completed_and_run_with_one_enter(tmp_path: Path) -> None:
    async with running(tmp_path) as screen:
        await screen.type("/he")
        await screen.until("all keys and commands")
        await screen.press("enter")
        await screen.until("Keys and commands")


async def test_keys_faster_than_the_list_run_what_was_typed(tmp_path: Path) -> None:
    async with running(tmp_path) as screen:
        prompt = screen.chat.prompt
        # The list is there for "/s", whose first entry is another command; the rest comes in one go.
        await screen.type("/s")
        await screen.until("/sessions")
        for key in ("e", "a", "r", "c", "h", "enter"):
            prompt.post_message(events.Key(key, key if len(key) == 1 else None))
        await screen.until("Enter, Up: older")
        assert "Sessions of this folder" not in screen.shown


async def test_a_name_that_begins_another_is_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as screen:
        await screen.type("/mode")
        await screen.until("permission mode")
        await screen.press("enter")
        await screen.until("modes: default")


def committed(workspace: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=workspace, check=True)


async def test_changed_files_are_shown_with_their_difference(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "a.py").write_text("old = 1\n")
    committed(workspace)
    (workspace / "a.py").write_text("new = 2\n")
    async with running(tmp_path) as screen:
        await screen.press("ctrl+x")
        await screen.until("- old = 1")
        assert "+ new = 2" in screen.shown


async def test_todos_are_shown_until_done_and_can_be_hidden(tmp_path: Path) -> None:
    items = [{"text": "look", "status": "done"}, {"text": f"mend {MARKUP}", "status": "active"}]
    async with running(tmp_path, [step(call("todo", items=items)), Step(text="ok")]) as screen:
        await screen.submit("go")
        await screen.until("Steps: 1 of 2 done")
        assert "▶ mend [red]x[/red]" in screen.shown
        await screen.press("ctrl+t")
        await screen.until_gone("Steps: 1 of 2 done")


async def test_hostile_text_neither_crashes_nor_restyles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    script = [
        step(call("shell", command=f"touch '{MARKUP}'"), text=MARKUP, reasoning=MARKUP),
        step(call("ask", question=MARKUP, options=[MARKUP])),
        step(call(MARKUP, x=MARKUP), call("read", path=MARKUP)),
        Step(text=MARKUP + "y" * 1_000_000),
    ]
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/[red]x.py").write_text("")
    async with running(tmp_path, script) as screen:
        await screen.submit("go [bold]")
        await screen.answer("n")
        await screen.until("The model asks")
        await screen.until(lambda: screen.app.focused is screen.chat.panel)
        await screen.press("1")
        await screen.until("done · 4 steps")
        await screen.type("@red")
        await screen.until("[red]x.py")
        await screen.press("escape")
        screen.chat.prompt.clear_all()
        await screen.submit("/rewind")
        await screen.until("go [bold]")
        for row in screen.rows:
            assert "\x1b" not in row and "\u202e" not in row and "\x00" not in row


@pytest.mark.parametrize("size", [(40, 20), (80, 24), (200, 50)])
async def test_everything_fits_the_screen(tmp_path: Path, size: tuple[int, int], monkeypatch) -> None:
    quick(monkeypatch)
    text = "漢字かな " * 30 + "\n\n👩‍👩‍👧 שלום " * 9
    script = [step(call("shell", command=f"touch '{text}'"), text=text, reasoning=text)]
    async with running(tmp_path, script, size=size) as screen:
        await screen.submit("go")
        await screen.until("May shell do this?")
        for strip in screen.app.screen._compositor.render_strips():
            assert strip.cell_length == size[0]


async def test_no_colour_still_tells_everything(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(tmp_path, [step(call("shell", command="false")), Step(text="ok")],
                       settings=Settings(permission_mode="auto")) as screen:  # fmt: skip
        await screen.submit("go")
        await screen.until("done · 2 steps")
        assert "✓ $ false" in screen.shown or "✗ $ false" in screen.shown
        for strip in screen.app.screen._compositor.render_strips():
            for segment in strip:
                color = segment.style.color if segment.style else None
                if color is not None and color.triplet is not None:
                    assert len({*color.triplet}) == 1


async def test_for_screen_readers_nothing_moves(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="ok")], settings=Settings(ui_screen_reader="on")) as screen:
        assert "╭" not in screen.shown
        await screen.submit("go")
        await screen.until("done · 1 step")


async def test_a_broken_key_file_is_said_and_does_not_stop(tmp_path: Path) -> None:
    config = tmp_path / "user/.config/k3agent"
    config.mkdir(parents=True)
    (config / "keys.toml").write_text("nonsense = 3\n")
    async with running(tmp_path, client=ReplayClient([])) as screen:
        # Where the line is broken depends on the folder's name.
        await screen.until(lambda: "unknown key name 'nonsense'" in " ".join(screen.shown.split()))


async def test_a_session_in_use_is_said_and_a_new_one_can_be_had(tmp_path: Path) -> None:
    await talked(tmp_path, "shared")
    store = SessionStore(tmp_path / "home")
    session = store.list_sessions()[0].id
    lock = store.lock(session)
    async with running(tmp_path, [Step(text="Fresh.")], resume_id=session, is_ready=False) as screen:
        await screen.until("none: see below, then /retry")
        await screen.submit("/new")
        await screen.until(lambda: screen.chat.driver.session is not None)
        await screen.submit("hello")
        await screen.until("Fresh.")
    lock.release()
    store.close()


async def test_a_prompt_given_before_the_start_is_over_is_not_lost(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="Here.")], prompt="at once", is_ready=False) as screen:
        await screen.until("❯ at once")
        await screen.until("Here.")


async def test_models_say_how_to_reach_them(tmp_path: Path) -> None:
    async with running(tmp_path) as screen:
        await screen.submit("/models")
        await screen.until("set MOONSHOT_API_KEY")
        await screen.press("escape")


async def test_a_session_is_exported_from_the_list(tmp_path: Path) -> None:
    await talked(tmp_path, "to be kept")
    # The command line that writes the file is a process of its own.
    environ = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "K3AGENT_HOME": str(tmp_path / "home")}
    async with running(tmp_path, environ=environ) as screen:
        await screen.submit("/sessions")
        await screen.until("to be kept")
        await screen.press("ctrl+e")
        await screen.until("Export as a file")
        screen.app.screen.query_one(Input).value = "kept.md"
        await screen.press("enter")
        await screen.until("written to")
        assert "Answer to to be kept." in (screen.workspace / "kept.md").read_text()
        await screen.press("ctrl+e")
        await screen.until("Export as a file")
        screen.app.screen.query_one(Input).value = "kept.md"
        await screen.press("enter")
        await screen.until("exists already")
