"""Which model: keys in the environment, servers on this machine, the embedded model, and what each can do."""

from __future__ import annotations

import dataclasses
import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text
from textual import work
from textual.widgets import Static

from k3agent.config.paths import user_config
from k3agent.errors import K3AgentError
from k3agent.tui.safe import safe_line
from k3agent.tui.screens.dialog import ListScreen

if TYPE_CHECKING:
    from k3agent.tui.app import K3App
    from k3agent.tui.screens.chatkeys import ChatKeys

# k3agent serve, vLLM, llama.cpp, SGLang, Ollama: where they listen when nobody says otherwise.
PORTS = (8333, 8000, 8080, 30000, 11434)
PROBE_S = 0.5
MAX_ANSWER = 1_000_000


@dataclass(frozen=True)
class Choice:
    """A model and how it is reached; `values` are the settings that choose it."""

    shown: str
    reach: str
    note: str
    is_ready: bool
    values: tuple[tuple[str, str], ...]


class ModelsScreen(ListScreen):
    heading = "Models that can be reached from here"
    hint = "Enter takes it for a new session and keeps the choice · Esc closes"
    empty = "looking…"

    def on_mount(self) -> None:
        self._choices: dict[str, Choice] = {}
        super().on_mount()
        self._look()

    @work(thread=True)
    def _look(self) -> None:
        from k3agent.providers.registry import reachable_models  # lazy: in a thread, with the agent

        options = self.app.options
        found: list[Choice] = []
        for row in reachable_models(options.environ, self.app.settings.providers):
            reach = str(row["reach"])
            is_ready = "is set" in reach or reach.startswith(("ready", "http"))
            window = f"{row['context_window']:,} tokens" if row["context_window"] else ""
            found.append(
                Choice(
                    shown=_shown(str(row["model"]), str(row["provider"])),
                    reach=reach,
                    note=", ".join(filter(None, (window, str(row["note"])))),
                    is_ready=is_ready,
                    values=_values(str(row["provider"]), _name(str(row["model"])), ""),
                )
            )
        for port in PORTS:
            found += _served(port)
        found.sort(key=lambda choice: not choice.is_ready)
        self.app.call_from_thread(self._show, found)

    def _show(self, found: list[Choice]) -> None:
        self._choices = {str(number): choice for number, choice in enumerate(found)}
        self.refill(self.chosen)

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        palette = self.app.palette
        session = self.app.chat.driver.session
        now = _shown(session.info.model, session.info.provider) if session is not None else ""
        rows: list[tuple[str, Text]] = []
        for key, choice in self._choices.items():
            if words.casefold() not in choice.shown.casefold():
                continue
            text = Text(no_wrap=True, overflow="ellipsis")
            text.append(
                "✓ " if choice.is_ready else "· ", palette.style("good" if choice.is_ready else "faint")
            )
            text.append(safe_line(choice.shown, 60), palette.style("text" if choice.is_ready else "dim"))
            if choice.shown == now:
                text.append("  in use", palette.style("accent"))
            text.append(f"  {safe_line(choice.reach, 60)}", palette.style("faint"))
            rows.append((key, text))
        return rows

    def describe(self, entry: str) -> str:
        choice = self._choices[entry]
        help = (
            "Ready to be used."
            if choice.is_ready
            else f"To use it: {choice.reach}, then start k3agent again."
        )
        return f"{choice.shown}\n{choice.note}\n\n{help}"

    def take(self, entry: str) -> None:
        choice = self._choices[entry]
        if not choice.is_ready:
            self.app.bell()
            return
        self.dismiss(lambda chat: use_model(chat, choice))


class FirstRunScreen(ModelsScreen):
    """Before the first session, where nothing says which model it shall be."""

    heading = "Welcome to k3agent: which model shall it use?"
    hint = "Enter takes it for good · Esc: the small one for now · later: /models"
    INTRO = (
        "What is marked ✓ is ready; the others say what they need. Nothing leaves this machine before you ask"
        " for it."
    )
    DEFAULT_CSS = "FirstRunScreen .preview { height: 5; }"

    def on_mount(self) -> None:
        intro = Static(self.INTRO, markup=False, classes="intro")
        self.body.mount(intro, before=self.filter)
        super().on_mount()


def is_first_run(app: K3App) -> bool:
    """Nothing is stored yet, and the embedded model would be taken only because nothing else was said."""
    from k3agent.providers.registry import BUNDLED_NAME, choose  # lazy: after the first frame
    from k3agent.store.database import FILE_NAME

    options, settings = app.options, app.settings
    is_asked_for_more = options.prompt or options.resume_id or options.continues_newest or options.picks
    if app.make_client is not None or is_asked_for_more or (options.home / FILE_NAME).exists():
        return False
    if settings.provider or settings.model or settings.base_url:
        return False
    try:
        return choose(settings, options.environ).provider == BUNDLED_NAME
    except K3AgentError:
        # It is told when the session is opened.
        return False


def use_model(chat: ChatKeys, choice: Choice) -> None:
    """A new session with it; kept in the user's configuration for the next ones."""
    from k3agent.config.edit import set_value  # lazy: tomlkit, only for a change

    app = chat.app
    path = user_config(app.options.environ)
    try:
        for key, value in choice.values:
            set_value(path, key, value)
    except (K3AgentError, OSError) as error:
        chat.notice(f"the choice is not kept: {error}", "warning")
    origins = {**app.settings.origins, **{key: str(path) for key, _ in choice.values}}
    app.settings = dataclasses.replace(app.settings, **dict(choice.values), origins=origins)
    chat.change_model(app.settings)


def _values(provider: str, model: str, base_url: str) -> tuple[tuple[str, str], ...]:
    return ("provider", provider), ("model", model), ("base_url", base_url)


def _shown(model: str, provider: str) -> str:
    return f"{model} from {provider}"


def _name(model: str) -> str:
    return "" if model.startswith("(") else model


def _served(port: int) -> list[Choice]:
    """The models of an OpenAI-style server on this machine's `port`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_S)
    try:
        connection.request("GET", "/v1/models")
        answer = connection.getresponse()
        data = json.loads(answer.read(MAX_ANSWER)) if answer.status == 200 else {}
        names = [str(entry["id"]) for entry in data.get("data", ())]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return []
    finally:
        connection.close()
    url = f"http://127.0.0.1:{port}/v1"
    return [
        Choice(f"{name} from {url}", "a server on this machine", "", True, _values("", name, url))
        for name in names[:20]
    ]
