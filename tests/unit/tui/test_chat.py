"""Whole turns on the screen: a scripted model, the real agent, what a user sees."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.agents import ReplayClient, call, step
from support.screens import Screen, quick, running
from textual import events
from textual.widgets import TextArea

from k3agent.config.settings import Settings
from k3agent.events import ApprovalAsked
from k3agent.providers.scripted import Step
from k3agent.tui.screens import rewind
from k3agent.tui.screens.editcall import EditCallScreen
from k3agent.types import Finish, Finished, ReasoningDelta, TextDelta, Usage

DONE = Finished(
    finish=Finish.STOP, usage=Usage(input_tokens=900, cached_tokens=500, output_tokens=20), model="m"
)


class SlowClient(ReplayClient):
    """Gives one delta, then waits for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.num_requests = 0

    async def stream(self, request):
        self.requests.append(request)
        self.num_requests += 1
        yield ReasoningDelta(text="weighing it")
        yield TextDelta(text=f"answer {self.num_requests} begins")
        await self.go.wait()
        yield TextDelta(text=" and ends")
        yield DONE


async def test_an_answer_is_shown_and_reasoning_folds(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="Hello **there**.", reasoning="Greet back.")]) as screen:
        await screen.submit("hi")
        await screen.until("Hello there.")
        await screen.until("done · 1 step")
        assert "❯ hi" in screen.shown
        assert "▸ Thought · 2 words" in screen.shown and "Greet back." not in screen.shown
        await screen.press("ctrl+r")
        await screen.until("Greet back.")
        assert "$" in screen.rows[-1] and "scripted" in screen.rows[-1]


async def test_a_turn_that_ends_badly_names_the_command_that_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    answers = [step(call("write", path="a.py", content="x = (\n")), Step(text="Made it.")]
    async with running(tmp_path, answers) as screen:
        await screen.submit("make it")
        await screen.until("May write do this?")
        await screen.answer("y")
        await screen.until("To take back all of this turn: /undo")
        assert "a.py does not parse any more" in screen.shown and "k3agent undo" not in screen.shown


async def test_the_meter_tells_when_the_context_is_made_short(tmp_path: Path) -> None:
    answers = [Step(text="One.")]
    async with running(tmp_path, answers, size=(140, 40)) as screen:
        await screen.submit("hi")
        await screen.until("done · 1 step")
        limit, window = screen.chat.line.status.compacts_at, screen.chat.line.status.window
        assert limit == int(0.85 * window)
        assert "┊" in screen.rows[-1] and "short at" in screen.rows[-1]
        await screen.submit("/uncompact")
        await screen.until("there is no short form to undo")


async def test_a_rule_for_good_holds_for_this_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    answers = [step(call("write", path="made.txt", content="x")), Step(text="ok")]
    async with running(tmp_path, answers, size=(160, 40)) as screen:
        await screen.submit("make it")
        await screen.until("May write do this?")
        await screen.answer("a")
        await screen.until("allowed for good")
        await screen.until("done · 2 steps")
        config = (tmp_path / "user/.config/k3agent/config.toml").read_text()
        assert f"write({screen.workspace.resolve()}/**)" in config and "(./" not in config


async def test_a_call_asks_and_runs_once_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    async with running(tmp_path, [step(call("shell", command="touch made")), Step(text="ok")]) as screen:
        await screen.submit("make it")
        await screen.until("May shell do this?")
        assert "$ touch made" in screen.shown and "Why it asks" in screen.shown
        assert not (screen.workspace / "made").exists()
        await screen.answer("y")
        await screen.until("done · 2 steps")
        assert (screen.workspace / "made").exists()
        assert "May shell do this?" not in screen.shown


async def test_an_edit_is_asked_with_its_place_and_the_answers_stay_in_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    (tmp_path / "ws").mkdir()
    target = tmp_path / "ws/long.py"
    target.write_text("".join(f"value_{number} = {number}\n" for number in range(1, 101)))
    new = "".join(f"added_{number} = {number}\n" for number in range(60))
    answers = [step(call("edit", path="long.py", old="value_50 = 50\n", new=new)), Step(text="ok")]
    async with running(tmp_path, answers, size=(80, 24)) as screen:
        await screen.submit("do it")
        await screen.until("May edit do this?")
        await screen.until(lambda: screen.chat.panel.is_armed)
        assert "47   value_47 = 47" in screen.shown and "50 - value_50 = 50" in screen.shown
        assert "y yes, once" in screen.shown and "added_59" not in screen.shown
        await screen.until("PgDn")
        for _ in range(30):
            await screen.press("pagedown")
        await screen.until("added_59")
        assert "value_51 = 51" in screen.shown and "y yes, once" in screen.shown
        await screen.answer("y")
        await screen.until("done · 2 steps")
        assert "value_49 = 49\nadded_0 = 0\n" in target.read_text()


async def test_a_call_that_will_fail_says_so_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    answers = [step(call("edit", path="no.py", old="a", new="b")), Step(text="ok")]
    async with running(tmp_path, answers) as screen:
        await screen.submit("do it")
        await screen.until("it would fail: no.py does not exist")
        await screen.answer("n")
        await screen.until("done · 2 steps")


async def test_a_new_file_is_edited_as_text_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with running(
        tmp_path, [step(call("write", path="made.py", content="a = 1\nb = 2\n")), Step(text="ok")]
    ) as screen:
        await screen.submit("make it")
        await screen.until("a new file")
        await screen.answer("e")
        await screen.until("Edit the new file of made.py")
        dialog = screen.app.screen
        assert isinstance(dialog, EditCallScreen)
        assert dialog.editor.text == "a = 1\nb = 2\n"
        dialog.editor.text = "a = 3\n"
        await screen.press("ctrl+s")
        await screen.until("done · 2 steps")
        assert (screen.workspace / "made.py").read_text() == "a = 3\n"


async def test_denied_with_words_reaches_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    async with running(tmp_path, [step(call("shell", command="touch made")), Step(text="fine")]) as screen:
        await screen.submit("make it")
        await screen.answer("d")
        await screen.submit("call it other")
        await screen.until("fine")
        assert not (screen.workspace / "made").exists()
        assert "call it other" in screen.client.requests[-1].messages[-1].results[0].text
        assert "⊘" in screen.shown


async def test_typed_ahead_keys_do_not_answer(tmp_path: Path) -> None:
    async with running(tmp_path, [step(call("shell", command="touch made")), Step(text="ok")]) as screen:
        await screen.submit("make it")
        await screen.type("yes yes y")
        await screen.until("May shell do this?")
        await screen.type("y")
        assert not screen.chat.panel.is_armed
        assert screen.chat.prompt.text == "yes yes yy"
        # Armed later, but the half-written prompt keeps the keys until Tab.
        await screen.until(lambda: screen.chat.panel.is_armed)
        await screen.press("y", "enter")
        assert not (screen.workspace / "made").exists()
        await screen.press("tab")
        await screen.press("y")
        await screen.until("done · 2 steps")
        assert (screen.workspace / "made").exists()


async def test_enter_and_space_answer_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    async with running(tmp_path, [step(call("shell", command="touch made")), Step(text="ok")]) as screen:
        await screen.submit("make it")
        await screen.until(lambda: screen.app.focused is screen.chat.panel)
        await screen.press("enter", "space", "1", "x")
        assert screen.chat.panel.current is not None and not (screen.workspace / "made").exists()
        await screen.press("n")
        await screen.until("done · 2 steps")
        assert not (screen.workspace / "made").exists()


async def test_a_rule_for_the_session_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    script = [step(call("shell", command="touch a")), step(call("shell", command="touch b")), Step(text="ok")]
    async with running(tmp_path, script) as screen:
        asked: list[object] = []
        screen.chat.driver.session.subscribe(
            lambda event: asked.append(event) if isinstance(event, ApprovalAsked) else None
        )
        await screen.submit("make both")
        await screen.answer("s")
        await screen.until("done · 3 steps")
        assert (screen.workspace / "b").exists() and len(asked) == 1
        assert "allowed for this session: shell(touch:*)" in screen.shown


async def test_a_rule_for_good_is_kept_in_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with running(tmp_path, [step(call("shell", command="touch a")), Step(text="ok")]) as screen:
        await screen.submit("make it")
        await screen.answer("a")
        await screen.until("done · 2 steps")
    text = (tmp_path / "user/.config/k3agent/config.toml").read_text()
    assert 'allow = ["shell(touch:*)"]' in text


async def test_a_call_is_edited_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    async with running(tmp_path, [step(call("shell", command="touch wrong")), Step(text="ok")]) as screen:
        await screen.submit("make it")
        await screen.answer("e")
        await screen.until("Edit the command")
        editor = screen.app.screen.query_one("#edit-call", TextArea)
        editor.text = "touch right"
        await screen.press("ctrl+s")
        await screen.until("done · 2 steps")
        assert (screen.workspace / "right").exists() and not (screen.workspace / "wrong").exists()
        request = screen.client.requests[-1]
        # The call stays as the model wrote it; the result says what ran.
        assert request.messages[-2].calls[0].arguments == json.dumps({"command": "touch wrong"})
        assert "touch right" in request.messages[-1].results[0].text


async def test_escape_interrupts_and_keeps_what_came(tmp_path: Path) -> None:
    client = SlowClient()
    async with running(tmp_path, client=client) as screen:
        await screen.submit("go")
        await screen.until("answer 1 begins")
        assert "Enter queues" in screen.shown
        await screen.press("escape")
        await screen.until("interrupted")
        await screen.until("What shall be done?")
        assert "answer 1 begins" in screen.shown
        assert screen.chat.driver.session.messages[-1].finish is Finish.INTERRUPTED


async def test_short_reasoning_stands_before_the_call_that_follows(tmp_path: Path) -> None:
    script = [step(call("glob", pattern="*"), reasoning="r"), Step(text="ok")]
    async with running(tmp_path, script) as screen:
        await screen.submit("look")
        await screen.until("done · 2 steps")
        assert screen.shown.index("▸ Thought") < screen.shown.index("glob")


async def test_an_interrupted_call_has_the_sign_of_one(tmp_path: Path) -> None:
    script = [step(call("shell", command="sleep 60"))]
    async with running(tmp_path, script, settings=Settings(permission_mode="auto")) as screen:
        await screen.submit("wait")
        await screen.until("running shell")
        await screen.press("escape")
        await screen.until("interrupted · ")
        assert "⊘ $ sleep 60" in screen.shown and "✗" not in screen.shown
        session_id = screen.chat.driver.session.id
    async with running(tmp_path, resume_id=session_id) as screen:
        await screen.until("⊘ shell sleep 60")
        assert "✗" not in screen.shown


async def test_a_prompt_waits_while_a_turn_runs(tmp_path: Path) -> None:
    client = SlowClient()
    async with running(tmp_path, client=client) as screen:
        await screen.submit("first")
        await screen.until("answer 1 begins")
        await screen.submit("second")
        await screen.until("⏎ next: second")
        assert "1 queued" in screen.rows[-1]
        client.go.set()
        await screen.until("answer 2 begins and ends")
        assert "⏎ next" not in screen.shown
        assert [m.text for m in screen.client.requests[-1].messages if m.text in ("first", "second")] == [
            "first",
            "second",
        ]


async def test_steering_reaches_the_running_turn(tmp_path: Path) -> None:
    client = SlowClient()
    async with running(tmp_path, client=client) as screen:
        await screen.submit("first")
        await screen.until("answer 1 begins")
        await screen.type("but in blue")
        await screen.press("ctrl+s")
        await screen.until("❯ but in blue")
        client.go.set()
        await screen.until("answer 2 begins and ends")
        await screen.until("done · 2 steps")
        assert client.requests[-1].messages[-1].text == "but in blue"
        assert screen.shown.count("❯ but in blue") == 1


async def test_a_question_of_the_model_is_answered_in_the_prompt(tmp_path: Path, monkeypatch) -> None:
    quick(monkeypatch)
    script = [step(call("ask", question="Which colour?", options=["red", "blue"])), Step(text="ok")]
    async with running(tmp_path, script) as screen:
        await screen.submit("paint")
        await screen.until("Which colour?")
        await screen.until(lambda: screen.app.focused is screen.chat.panel)
        await screen.press("2")
        await screen.until("done · 2 steps")
        assert screen.client.requests[-1].messages[-1].results[0].text == "blue"


async def test_a_session_is_resumed_with_its_conversation(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="The first answer.")]) as screen:
        await screen.submit("remember me")
        await screen.until("done · 1 step")
    async with running(
        tmp_path, [Step(text="?"), Step(text="The second answer.")], continues_newest=True
    ) as screen:
        await screen.until("The first answer.")
        assert "❯ remember me" in screen.shown
        await screen.submit("and now")
        await screen.until("The second answer.")
        assert len(screen.client.requests[0].messages) >= 3


async def test_a_failing_provider_is_said_and_the_ui_lives_on(tmp_path: Path) -> None:
    from k3agent.errors import ProviderError, ProviderErrorKind

    broken = ProviderError("the key is wrong; set MOONSHOT_API_KEY", kind=ProviderErrorKind.AUTH)
    async with running(
        tmp_path,
        [[broken], Step(text="back")],
    ) as screen:
        screen.client.attempts[0] = [[broken], Step(text="back again")]
        await screen.submit("hi")
        await screen.until("the key is wrong")
        await screen.submit("again")
        await screen.until("back again")


async def test_shift_tab_changes_the_mode(tmp_path: Path) -> None:
    async with running(tmp_path) as screen:
        assert "default" in screen.rows[-1]
        await screen.press("shift+tab")
        assert "accept-edits" in screen.rows[-1]
        assert screen.chat.driver.session.permission_mode == "accept-edits"


async def rewind_to_the_second_prompt(screen: Screen) -> None:
    await screen.submit("first")
    await screen.until("done · 1 step")
    await screen.submit("second")
    await screen.until("answer 2")
    await screen.until(lambda: not screen.chat.driver.is_busy)
    await screen.press("escape", "escape")
    await screen.until("Rewind: back to before which prompt?")
    await screen.press("enter")


async def test_one_esc_too_many_leaves_the_rewind_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, [Step(text="one")]) as screen:
        await screen.submit("first")
        await screen.until("done · 1 step")
        await screen.until(lambda: not screen.chat.driver.is_busy)
        # However slow this machine is.
        monkeypatch.setattr(rewind, "ONE_TOO_MANY_S", 600.0)
        await screen.press("escape", "escape", "escape")
        await screen.until("Rewind: back to before which prompt?")
        assert isinstance(screen.app.screen, rewind.RewindScreen)
        monkeypatch.setattr(rewind, "ONE_TOO_MANY_S", 0.0)
        await screen.press("escape")
        await screen.until(lambda: screen.app.screen is screen.chat)


async def test_rewind_goes_back_to_before_a_prompt(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="one"), Step(text="answer 2"), Step(text="three")]) as screen:
        await rewind_to_the_second_prompt(screen)
        await screen.until("The conversation goes on from here")
        assert screen.chat.prompt.text == "second" and "answer 2" not in screen.shown
        first = next(message for message in screen.chat.driver.session.messages if message.usage)
        assert screen.chat.line.status.step == first.usage
        screen.chat.prompt.text = "other"
        await screen.press("enter")
        await screen.until(lambda: len(screen.client.requests) == 3)
        texts = [message.text for message in screen.client.requests[-1].messages]
        assert "other" in texts and "second" not in texts


async def test_the_users_own_command_is_shown_and_not_told_to_the_model(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="ok")]) as screen:
        await screen.submit("!echo from me")
        await screen.until("from me")
        await screen.until("✓ ! echo from me")
        assert screen.client.requests == []


async def test_a_paste_goes_into_the_prompt_wherever_the_keys_are(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="ok")]) as screen:
        await screen.press("tab")
        assert screen.app.focused is screen.chat.transcript
        screen.app.post_message(events.Paste("pasted\x1b[31m text"))
        await screen.until(lambda: screen.chat.prompt.text == "pasted␛[31m text")
        screen.app.post_message(events.Paste("\n".join("many lines" for _ in range(50))))
        await screen.until("[pasted #1: 50 lines]")
        await screen.press("enter")
        await screen.until("done · 1 step")
        assert screen.client.requests[0].messages[-1].text.count("many lines") == 50


@pytest.mark.parametrize("what", ["both", "conversation", "files"])
async def test_rewind_brings_back_conversation_files_or_both(tmp_path: Path, what: str) -> None:
    write = step(call("shell", command="echo new > made.txt; echo changed > kept.txt; mv gone.txt else.txt"))
    script = [Step(text="one"), write, Step(text="answer 2"), Step(text="three")]
    for name in ("kept.txt", "gone.txt"):
        (tmp_path / "ws").mkdir(exist_ok=True)
        (tmp_path / "ws" / name).write_text("as it was\n")
    async with running(tmp_path, script, settings=Settings(permission_mode="auto", sandbox="off")) as screen:
        await rewind_to_the_second_prompt(screen)
        await screen.until("Rewind: what shall go back?")
        await screen.until("gone.txt")
        await screen.press(*["down"] * ["both", "conversation", "files"].index(what), "enter")
        await screen.until("goes on from here" if what == "conversation" else "To take this back")
        ws = tmp_path / "ws"
        is_back = what != "conversation"
        assert (ws / "made.txt").exists() is not is_back and (ws / "gone.txt").exists() is is_back
        assert (ws / "kept.txt").read_text() == ("as it was\n" if is_back else "changed\n")
        assert ("answer 2" in screen.shown) is (what == "files")
        assert screen.chat.prompt.text == ("" if what == "files" else "second")
        screen.chat.prompt.text = "go on"
        await screen.press("enter")
        await screen.until(lambda: len(screen.client.requests) >= 4)
        texts = "\n".join(message.text for message in screen.client.requests[3].messages)
        assert ("The user has undone changes" in texts and "gone.txt" in texts) is (what == "files")


async def test_one_changed_file_is_brought_back(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    for name in ("kept.txt", "other.txt"):
        (tmp_path / "ws" / name).write_text("as it was\n")
    change = step(call("shell", command="echo changed > kept.txt; echo changed > other.txt"))
    async with running(
        tmp_path, [change, Step(text="done")], settings=Settings(permission_mode="auto", sandbox="off")
    ) as screen:
        await screen.submit("go")
        await screen.until("done · 2 steps")
        await screen.submit("/changes")
        await screen.until("kept.txt  this session")
        await screen.type("kept")
        await screen.press("ctrl+r")
        await screen.until("^R again: change kept.txt")
        assert (tmp_path / "ws" / "kept.txt").read_text() == "changed\n"
        await screen.press("ctrl+r")
        await screen.until("kept.txt is restored")
        assert (tmp_path / "ws" / "kept.txt").read_text() == "as it was\n"
        assert (tmp_path / "ws" / "other.txt").read_text() == "changed\n"
        await screen.press("ctrl+r")
        await screen.until("is as it was before this session")
