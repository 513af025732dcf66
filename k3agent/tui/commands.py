"""The `/` commands of the UI."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.safety.paths import is_file
from k3agent.tui.keymap import MODES
from k3agent.tui.theme import PALETTES
from k3agent.tui.widgets.completion import Candidate

if TYPE_CHECKING:
    from k3agent.agent.commands import CustomCommand
    from k3agent.agent.session import Session
    from k3agent.tui.screens.chatkeys import ChatKeys

#: what can be copied of an answer, and the action for it
PIECES = {"code": "copy_code", "link": "copy_link"}


@dataclass(frozen=True)
class Command:
    """`run` gets the screen and what was written after the name. `takes`: what that may be, for the list."""

    help: str
    run: Callable[[ChatKeys, str], None]
    takes: str = ""


def _own(chat: ChatKeys) -> Session | None:
    """The session, where it is ours to change; else it is said why not."""
    if chat.driver.is_watching:
        chat.notice(
            "another process runs this session: it can be watched, steered and interrupted", "warning"
        )
    return chat.driver.own


def _new(chat: ChatKeys, rest: str) -> None:
    chat.switch_session(None)


def _continue(chat: ChatKeys, rest: str) -> None:
    chat.driver.continue_turn()


def _retry(chat: ChatKeys, rest: str) -> None:
    """Connect again after a failed start, or go on with the turn that failed."""
    if chat.driver.session is None:
        chat.switch_session(None)
    else:
        chat.driver.continue_turn()


def _mode(chat: ChatKeys, rest: str) -> None:
    chat.set_mode(rest)


def _plan(chat: ChatKeys, rest: str) -> None:
    """What the model said last is to be done."""
    if chat.driver.is_busy or chat.panel.current is not None or not chat.offer_plan():
        chat.notice("there is no answer that could be carried out", "warning")


def _theme(chat: ChatKeys, rest: str) -> None:
    if rest not in PALETTES:
        chat.notice(f"themes: {', '.join(PALETTES)}", "warning" if rest else "info")
        return
    chat.app.set_theme(rest)


def _unqueue(chat: ChatKeys, rest: str) -> None:
    """What waits goes back into the prompt."""
    texts = [item.text for item in chat.driver.queue]
    chat.driver.queue.clear()
    chat.prompt.text = "\n\n".join(texts)
    chat.prompt.move_cursor(chat.prompt.document.end)
    chat.show_queue()


def _send(chat: ChatKeys, rest: str) -> None:
    """What waits is sent although the turn before did not end well."""
    chat.driver.send_queued()
    chat.show_queue()


def _compact(chat: ChatKeys, rest: str) -> None:
    """Before the next model call, so that it also works in the middle of a turn."""
    session = _own(chat)
    if session is None or not session.messages:
        chat.notice("there is nothing to make short", "warning")
        return
    session.compactor.is_wanted = True
    chat.notice("the context is made short before the next model call")


def _uncompact(chat: ChatKeys, rest: str) -> None:
    session = _own(chat)
    if session is None or not session.compactor.undo():
        chat.notice("there is no short form to undo", "warning")
        return
    chat.notice("undone: the whole conversation goes on with the next model call", "good")


def _pin(chat: ChatKeys, rest: str) -> None:
    session = _own(chat)
    if session is None or not rest.strip():
        chat.notice("/pin TEXT keeps a fact word by word when the context is made short", "warning")
        return
    session.compactor.pin(rest.strip())
    chat.notice(f"pinned: {rest.strip()}", "good")


def _export(chat: ChatKeys, rest: str) -> None:
    session = chat.driver.session
    if session is None or not session.messages:
        chat.notice("there is nothing to export yet", "warning")
        return
    chat.export_session(session.id, rest)


def _image(chat: ChatKeys, rest: str) -> None:
    path = Path(rest).expanduser()
    path = path if path.is_absolute() else chat.app.options.cwd / path
    if not rest or not is_file(path):
        chat.notice(f"/image FILE: {rest or 'no file'} is not there", "warning")
        return
    chat.add_image(path)


def _copy(chat: ChatKeys, rest: str) -> None:
    if rest and rest not in PIECES:
        chat.notice(f"/copy copies the last answer; of it also: {', '.join(PIECES)}", "warning")
        return
    getattr(chat, f"action_{PIECES.get(rest, 'copy_answer')}")()


def _action(name: str) -> Callable[[ChatKeys, str], None]:
    def run(chat: ChatKeys, rest: str) -> None:
        getattr(chat, f"action_{name}")()

    return run


def _panel(name: str) -> Callable[[ChatKeys, str], None]:
    return lambda chat, rest: chat.action_panel(name)


COMMANDS: dict[str, Command] = {
    "help": Command("all keys and commands", _action("help")),
    "compact": Command("make the context short before the next model call", _compact),
    "uncompact": Command("undo that: the whole conversation goes on", _uncompact),
    "pin": Command("keep a fact word by word when the context is made short", _pin, "TEXT"),
    "new": Command("a new session in this folder (also: /clear)", _new),
    "sessions": Command(
        "earlier sessions: go on, fork, rename, export, delete (also: /resume)", _action("sessions")
    ),
    "continue": Command("go on with a turn that was cut short", _continue),
    "rewind": Command("go back to an earlier prompt (also: /undo, Esc Esc)", _action("rewind")),
    "models": Command("which model: what can be reached from here", _action("models")),
    "mode": Command("permission mode", _mode, " | ".join(MODES)),
    "plan": Command("have the last answer carried out as a plan", _plan),
    "changes": Command("changed files with their differences", _panel("changes")),
    "todos": Command("show or hide the steps", _panel("todos")),
    "jobs": Command("background commands: output, end", _panel("jobs")),
    "search": Command("search in the conversation", _action("search")),
    "copy": Command("copy the last answer, or a piece of it", _copy, " | ".join(PIECES)),
    "image": Command("show the model an image with the next prompt", _image, "FILE"),
    "export": Command("this session as a file", _export, "FILE.md | FILE.html | FILE.json"),
    "send": Command("send waiting prompts now", _send),
    "unqueue": Command("take waiting prompts back into the prompt", _unqueue),
    "theme": Command("colours", _theme, " | ".join(PALETTES)),
    "settings": Command("settings of this UI", _action("settings")),
    "engine": Command("where the model runs: server, prefix cache, queue, speed", _action("engine")),
    "doctor": Command("what works here and what does not", _action("doctor")),
    "retry": Command("try again after a failure", _retry),
    "quit": Command("leave; the session can be resumed (also: /exit)", _action("leave_now")),
}


#: other programs' names for them; a command from a file goes before
ALIASES = {"undo": "rewind", "resume": "sessions", "exit": "quit", "clear": "new"}


def meant_by(word: str, custom: Collection[str] = (), *, is_exact: bool = False) -> list[str]:
    """The names of the commands that `word` may stand for: the one of that name, else the one of that other
    name, else those whose name begins with it. `is_exact`: without the last.
    """
    if word in COMMANDS or word in custom:
        return [word]
    if word in ALIASES:
        return [ALIASES[word]]
    if is_exact or not word:
        return []
    names = [name for name in (*COMMANDS, *custom) if name.startswith(word)]
    names += [name for alias, name in ALIASES.items() if alias.startswith(word)]
    return list(dict.fromkeys(names))


def command_candidates(word: str, custom: Mapping[str, CustomCommand] | None = None) -> list[Candidate]:
    """Commands whose name or help holds `word`: first the one of that name, then those that begin with it.
    `custom`: those from files, after the UI's own.
    """
    low = word.lower()
    known = {name: (command.help, command.takes) for name, command in COMMANDS.items()}
    for name, command in (custom or {}).items():
        known.setdefault(name, (command.description, command.hint))
    meant = meant_by(low, custom or {})
    names = sorted(
        (
            name
            for name, (help, _) in known.items()
            if low in name or name in meant or (len(low) > 2 and low in help.lower())
        ),
        key=lambda name: (
            name not in COMMANDS, name != low, meant != [name], not name.startswith(low), low not in name
        ),
    )  # fmt: skip
    width = max((len(name) for name in names), default=0)
    return [
        Candidate(
            f"/{name}{' ' if takes else ''}", f"/{name:<{width}}", help + (f"  ({takes})" if takes else "")
        )
        for name in names
        for help, takes in (known[name],)
    ]
