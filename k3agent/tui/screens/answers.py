"""The part of the chat screen that asks before a call runs, and takes the answers."""

from __future__ import annotations

import json
import time
from pathlib import Path

from textual import work

from k3agent.config.paths import user_config
from k3agent.errors import ConfigError, K3AgentError
from k3agent.events import Decision
from k3agent.tui.screens.chatbase import BUSY_PLACEHOLDER, DENIAL_PLACEHOLDER, ChatBase
from k3agent.tui.screens.editcall import EditCallScreen
from k3agent.tui.widgets.approval import PLAN, ApprovalPanel, Request
from k3agent.types import Role

# A question takes keys only after nothing was typed for so long.
ARM_S = 0.7
MIN_WAIT_S = 0.3
GO_AHEAD = "Go ahead with the plan"


def for_this_folder(rule: str, folder: Path) -> str:
    """A rule for the user's own configuration, which counts everywhere: paths of this folder stay its own.
    Raises ConfigError where the folder's name cannot stand in a rule.
    """
    tool, opening, inside = rule.partition("(./")
    if not opening:
        return rule
    if any(char in str(folder) for char in "*?[]()"):
        raise ConfigError(f"{folder} has signs that mean something else in a rule")
    return f"{tool}({folder.resolve()}/{inside}"


class AnsweringChat(ChatBase):
    """`arguments` are those of calls that were proposed, by call id."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, str] = {}
        self._denying: Request | None = None

    def ask(self, request: Request) -> None:
        self.panel.ask(request)
        self._arm_later()
        words = "asks a question" if request.is_question else f"asks about {request.tool}"
        self.app.tell(f"k3agent {words}")
        self.app.set_title("?")

    def settle(self, call_id: str) -> None:
        """An answer was given, or the call is over."""
        if not any(request.call_id == call_id for request in self.panel.requests):
            return
        self.panel.settle(call_id)
        self.focus_prompt()
        self.hint("")
        if self.panel.current is not None:
            self._arm_later()
        elif self.driver.is_busy:
            self.app.set_title("●")

    def _arm_later(self) -> None:
        quiet = time.monotonic() - self.app.last_key_at
        self.set_timer(max(ARM_S - quiet, MIN_WAIT_S), self._arm)

    def _arm(self) -> None:
        """Let the question have the keys, unless somebody is in the middle of typing."""
        request = self.panel.current
        if request is None or self.panel.is_armed:
            return
        if time.monotonic() - self.app.last_key_at < ARM_S:
            self._arm_later()
            return
        self.panel.arm()
        if request.is_question:
            self.hint("type an answer and press Enter")
            if request.choices and not self.prompt.text:
                self.hint("a number, or Tab and your own words")
                self.panel.focus()
        elif self.prompt.text or not self.is_current:
            self.hint("Tab to answer the question")
        else:
            self.panel.focus()

    def hint(self, text: str) -> None:
        self.line.status.hint = text
        self.line.changed()

    @property
    def question(self) -> Request | None:
        """The open question of the model to which the prompt's text is the answer."""
        request = self.panel.current
        return request if request is not None and request.is_question else None

    def on_approval_panel_answered(self, event: ApprovalPanel.Answered) -> None:
        session = self.driver.session
        request = event.request
        if session is None:
            return
        if request.is_plan:
            self.settle(request.call_id)
            self.take_plan(event.how, request.summary)
            return
        match event.how:
            case "once":
                session.answer(request.call_id, Decision.ALLOW)
            case "session" | "always":
                self._allow(request, for_good=event.how == "always")
            case "edit":
                self._edit(request)
                return
            case "words":
                self._denying = request
                self.prompt.set_placeholder(DENIAL_PLACEHOLDER)
                self.prompt.focus()
                return
            case "choice":
                self.reply(request, event.text)
            case _:
                session.answer(request.call_id, Decision.DENY)
        # The event that follows takes the request away; a stale one is taken away here.
        self.settle(request.call_id)

    def offer_plan(self) -> bool:
        """The last answer as a plan: it can be carried out, changed, or thought about further."""
        answer = self.last_answer
        if answer:
            self.ask(Request("", PLAN, answer, ""))
        return bool(answer)

    @property
    def last_answer(self) -> str:
        """The model's last words, when nothing came after them."""
        session = self.driver.session
        last = session.messages[-1] if session is not None and session.messages else None
        return last.text.strip() if last is not None and last.role is Role.ASSISTANT else ""

    def take_plan(self, how: str, plan: str) -> None:
        if how == "deny":
            return
        self.set_mode("accept-edits" if how == "session" else "default")
        if how == "edit":
            self.prompt.text = f"{GO_AHEAD}:\n\n{plan}"
            self.prompt.move_cursor((0, len(GO_AHEAD)))
            return
        self.driver.submit(f"{GO_AHEAD}.")

    def reply(self, request: Request, text: str) -> None:
        session = self.driver.session
        if session is not None:
            session.reply(request.call_id, text)
        self.settle(request.call_id)

    def take_denial(self, text: str) -> bool:
        """`text` goes with a refusal that waits for its words; False when none does."""
        request, self._denying = self._denying, None
        if request is None:
            return False
        self.prompt.set_placeholder(BUSY_PLACEHOLDER)
        session = self.driver.session
        if session is not None:
            session.answer(request.call_id, Decision.DENY, reason=text)
        self.settle(request.call_id)
        return True

    def cancel_denial(self) -> bool:
        """Back to the question; False when no refusal waits for words."""
        if self._denying is None:
            return False
        self._denying = None
        self.prompt.set_placeholder(BUSY_PLACEHOLDER)
        self.panel.focus()
        return True

    def _allow(self, request: Request, *, for_good: bool) -> None:
        session = self.driver.session
        assert session is not None
        for rule in request.rules:
            session.allow_rule(rule)
        session.answer(request.call_id, Decision.ALLOW)
        rules = ", ".join(request.rules)
        if not for_good:
            self.notice(f"allowed for this session: {rules}")
            return
        try:
            kept = tuple(for_this_folder(rule, self.app.options.cwd) for rule in request.rules)
            self._store_rules(kept)
        except K3AgentError as error:
            self.notice(f"allowed for this session only: {error}", "warning")
        else:
            where = user_config(self.app.options.environ)
            self.notice(f"allowed for good: {', '.join(kept)} (in {where})")

    def _store_rules(self, rules: tuple[str, ...]) -> None:
        """Add the rules to the user's own configuration."""
        from k3agent.config.edit import set_value  # lazy: tomlkit, only for this answer
        from k3agent.config.settings import load_settings

        options = self.app.options
        path = user_config(options.environ)
        # Only what that file itself says: flags and other layers must not slip into it.
        here = {
            name: options.environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in options.environ
        }
        known = load_settings(here, path.parent).allow
        set_value(path, "allow", json.dumps([*known, *(rule for rule in rules if rule not in known)]))

    @work
    async def _edit(self, request: Request) -> None:
        changed = await self.app.push_screen_wait(EditCallScreen(request))
        session = self.driver.session
        if changed is None or session is None:
            self.panel.focus()
            return
        session.answer(request.call_id, Decision.ALLOW, arguments=changed)
        self.settle(request.call_id)
