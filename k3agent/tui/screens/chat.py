"""The main screen: transcript, question, prompt, status line, and what connects them to the session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import BindingType

from k3agent import __version__
from k3agent.errors import K3AgentError
from k3agent.events import (
    AnyEvent,
    ApprovalAnswered,
    ApprovalAsked,
    CallEnded,
    CallProposed,
    Noticed,
    TaskMessageAdded,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
)
from k3agent.tui.driver import Driver
from k3agent.tui.files import FileIndex
from k3agent.tui.history import draft_block
from k3agent.tui.keymap import CHAT_KEYS, bindings
from k3agent.tui.plans import is_plan
from k3agent.tui.presenter import Presenter
from k3agent.tui.safe import safe_line
from k3agent.tui.screens.chatbase import BUSY_PLACEHOLDER, PLACEHOLDER
from k3agent.tui.screens.chatkeys import ChatKeys
from k3agent.tui.widgets.approval import Request
from k3agent.tui.widgets.message import WelcomeBlock

if TYPE_CHECKING:
    from k3agent.agent.session import Session
    from k3agent.agent.watched import WatchedSession

EMBEDDED = (
    "This is the small model that comes with k3agent: offline, for small tasks. /models shows what else can"
    " be reached from here; for Kimi K3 set MOONSHOT_API_KEY and start again."
)

WATCHING = (
    "Another process runs this session. What you write is said into its running turn, Esc interrupts it;"
    " leaving leaves it alone."
)


class ChatScreen(ChatKeys):
    """Everything of one session."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(CHAT_KEYS)
    AUTO_FOCUS = "#prompt"
    # Of the turn that runs or ran last: its prompt, and whether steps were written down in it.
    _prompted = ""
    _has_steps = False

    def on_mount(self) -> None:
        self.prompt.key_filter = self.take_key
        self.set_keys()
        self.presenter = Presenter(self.transcript, self.line, self.schedule_flush)
        self.presenter.draws_images = not self.app.is_plain
        self.index = FileIndex(self.app.options.cwd)
        self.welcome = WelcomeBlock(self._welcome("starting…"))
        self.transcript.load([self.welcome])
        self.line.status.place = self.app.options.cwd.name
        self.line.status.begin("starting")
        self.start_clock()
        app = self.app
        self.driver = Driver(
            options=app.options,
            settings=app.settings,
            on_event=self._session_event,
            on_ready=self._ready,
            on_failed=self._failed,
            on_idle=self.show_queue,
            on_notify=self._tell_later,
            make_client=app.make_client,
        )
        app.driver = self.driver
        self.driver.mode = app.settings.permission_mode or "default"
        self.line.status.mode = self.driver.mode
        self._images = list(app.options.images)
        # Not before the first frame: what follows imports for a third of a second.
        self.call_after_refresh(self._start)

    @work(exclusive=True, group="start")
    async def _start(self) -> None:
        from k3agent.tui.screens.models import FirstRunScreen, is_first_run  # lazy: after the first frame

        options = self.app.options
        if self.app.start_problem:
            self.notice(self.app.start_problem, "warning")
        if self.app.settings.untrusted is not None:
            path = self.app.settings.untrusted
            self.notice(
                f"{path} is not obeyed: read it, then trust it with `k3agent config trust`.", "warning"
            )
        if options.prompt:
            self.say(options.prompt)
        try:
            found = self.driver.newest_here() if options.continues_newest else options.resume_id
        except K3AgentError as error:
            self._failed(str(error))
            found = None
        if await asyncio.to_thread(is_first_run, self.app):
            chosen = await self.app.push_screen_wait(FirstRunScreen())
            if chosen is not None:
                chosen(self)
                return
        if options.picks:
            from k3agent.tui.screens.sessions import SessionsScreen  # lazy: only when asked for

            chosen = await self.app.push_screen_wait(SessionsScreen())
            if chosen is not None:
                chosen(self)
                return
        await self.driver.open(found, forks=options.forks)

    def _welcome(self, model: str, sandbox: str = "") -> list[tuple[str, str]]:
        return [
            ("", f"k3agent {__version__}"),
            ("model", model),
            ("folder", str(self.app.options.cwd)),
            *([("sandbox", sandbox)] if sandbox else []),
            ("keys", "Enter sends · Esc interrupts · Shift+Tab next mode · ? all keys"),
        ]

    # --- the session's side ---

    def _ready(self, session: Session | WatchedSession) -> None:
        info, status = session.info, self.line.status
        status.model, status.provider = info.model, info.provider
        status.window = info.context_window
        status.compacts_at = session.compacts_at
        status.mode = session.permission_mode
        status.begin("")
        status.hint = ""
        why = f": {info.why}" if info.why else ""
        self.welcome.set(self._welcome(f"{info.model} from {info.provider}{why}", session.sandbox.status))
        if session.messages:
            self.presenter.load(session.messages, [self.welcome])
            self.show_queue()
        else:
            self.presenter.touch(self.welcome)
            if info.provider == "bundled":
                self.notice(EMBEDDED)
        self.todos.set_items(session.todo)
        if self.driver.is_watching:
            self.notice(WATCHING)
        elif self.driver.is_going_on:
            self.notice("The other process has ended its run: the session goes on here.")
        if session.has_open_turn:
            draft = draft_block(session.draft)
            if draft is not None:
                self.presenter.add(draft)
            self.notice("k3agent was stopped in this turn: /continue goes on with it.", "warning")
        self.app.set_title()

    def _tell_later(self, text: str) -> None:
        """How far a slow start is: in the status line, until the session is there."""
        self.app.call_later(self.hint, safe_line(text))

    def _failed(self, text: str) -> None:
        self.line.status.begin("")
        self.notice(text, "error")
        if self.driver.session is None:
            self.welcome.set(self._welcome("none: see below, then /retry"))
            self.presenter.touch(self.welcome)

    def _session_event(self, event: AnyEvent) -> None:
        if not self.is_running:
            # The screen is gone already; the session ends in good order without it.
            return
        match event:
            case CallProposed():
                self.arguments[event.call_id] = event.arguments
            case ApprovalAsked():
                self.ask(
                    Request(
                        event.call_id, event.tool, event.summary, event.reason,
                        self.arguments.get(event.call_id, "{}"), event.rules, event.preview,
                    )
                )  # fmt: skip
            case TaskMessageAdded():
                # Questions of subagents come under their session's id.
                self.arguments |= {f"{event.child}/{call.id}": call.arguments for call in event.message.calls}
            case ApprovalAnswered():
                self.settle(event.call_id)
            case CallEnded():
                self.settle(event.call_id)
                self.arguments.pop(event.call_id, None)
                if event.tool == "todo" and self.driver.session is not None:
                    self._has_steps = self._has_steps or not event.result.is_error
                    self.todos.set_items(self.driver.session.todo)
            case TurnStarted():
                self._prompted, self._has_steps = event.prompt, False
                self.show_queue()
                self.app.set_title("●")
                self.prompt.set_placeholder(BUSY_PLACEHOLDER)
            case TurnEnded():
                self._turn_ended(event)
            case Noticed(level="info"):
                # Job notices come here, too.
                self._count_jobs()
            case _:
                pass
        self.presenter.event(event)

    def _turn_ended(self, event: TurnEnded) -> None:
        self.panel.clear()
        self.arguments.clear()
        self.prompt.set_placeholder(PLACEHOLDER)
        self.focus_prompt()
        self._count_jobs()
        if event.outcome is TurnOutcome.SUCCESS and self.line.status.mode == "plan" and not self.driver.queue:
            self.call_later(self._offer_plan)
        self.app.set_title()
        self.app.tell(f"k3agent: {safe_line(event.detail or event.outcome.value, 80)}")

    def _offer_plan(self) -> None:
        if is_plan(self.last_answer, self._prompted, has_steps=self._has_steps):
            self.offer_plan()

    def _count_jobs(self) -> None:
        session = self.driver.session
        if session is not None:
            self.line.status.num_jobs = sum(job.ended is None for job in session.jobs)

    async def shut_down(self) -> None:
        driver = self.driver
        session = driver.session
        if driver.is_watching and session is not None:
            self.app.farewell = f"It goes on. To watch it again: k3agent resume {session.id}"
        elif session is not None and session.messages:
            self.app.farewell = f"To go on with this session: k3agent resume {session.id}"
        await self.end_shell()
        await driver.close()
        await asyncio.sleep(0)
