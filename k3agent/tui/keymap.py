"""Every key of the UI: its name in the key file, its default keys, where it works and what it does.

`$XDG_CONFIG_HOME/k3agent/keys.toml` may hold `name = "key"` or `name = "key,other"`; Textual's names of keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from textual.binding import Binding, BindingType

from k3agent.errors import ConfigError, did_you_mean

#: permission modes in the order in which Shift+Tab goes through them
MODES = ("default", "accept-edits", "auto", "plan")
MODE_HELP = {
    "default": "looks freely, asks about anything else",
    "accept-edits": "also edits files of the workspace",
    "auto": "works freely in the workspace",
    "plan": "only looks, then offers a plan",
}


@dataclass(frozen=True, slots=True)
class Key:
    """`action` is Textual's; `is_first`: before the widget that has the focus does what it does with the key.

    Not as Textual's priority bindings: those overtake keys that were typed before and still wait.
    """

    name: str
    keys: str
    action: str
    help: str
    is_first: bool = False

    @property
    def binding(self) -> Binding:
        return Binding(self.keys, self.action, self.help, show=False, id=self.name)


PROMPT_KEYS = (
    Key("submit", "enter", "submit", "send; while a turn runs: queue it", True),
    Key("newline", "ctrl+j,shift+enter", "newline", "a new line (also: \\ and Enter)", True),
    Key("steer", "ctrl+s", "steer", "send into the running turn, after its running calls", True),
    Key("history-back", "ctrl+up", "history(-1)", "earlier prompt (also: Up on the first line)", True),
    Key("history-forward", "ctrl+down", "history(1)", "later prompt (also: Down on the last line)", True),
    Key("editor", "ctrl+g", "editor", "write the prompt in $VISUAL or $EDITOR", True),
)
CHAT_KEYS = (
    Key("interrupt", "escape", "escape", "close what is open; interrupt the turn; twice: rewind"),
    Key("quit", "ctrl+c", "quit_or_clear", "copy the selection; clear the prompt; twice: quit", True),
    Key("leave", "ctrl+d", "leave", "quit, when the prompt is empty", True),
    Key("mode", "shift+tab", "cycle_mode", "next permission mode", True),
    Key("focus", "tab", "switch_focus", "between prompt and transcript, or to the question", True),
    Key("page-up", "pageup", "page(-1)", "scroll back", True),
    Key("page-down", "pagedown", "page(1)", "scroll on", True),
    Key("line-up", "shift+up", "scroll(-1)", "scroll back a line", True),
    Key("line-down", "shift+down", "scroll(1)", "scroll on a line", True),
    Key("end", "ctrl+end", "to_end", "to the newest line", True),
    Key("turn-back", "alt+up", "turn(-1)", "to the prompt before", True),
    Key("turn-forward", "alt+down", "turn(1)", "to the next prompt", True),
    Key("search", "ctrl+f", "search", "search in the conversation", True),
    Key("fold", "ctrl+o", "fold", "unfold or fold the newest output", True),
    Key("fold-reasoning", "ctrl+r", "fold_reasoning", "unfold or fold the newest reasoning", True),
    Key("copy-answer", "ctrl+y", "copy_answer", "copy the last answer", True),
    Key("todos", "ctrl+t", "panel('todos')", "show or hide the steps", True),
    Key("changes", "ctrl+x", "panel('changes')", "changed files", True),
    Key("engine", "f2", "engine", "the engine: server, cache, queue, speed", True),
    Key("help", "f1", "help", "this list (also: ? in an empty prompt)", True),
)
TRANSCRIPT_KEYS = (
    Key("choose-up", "up,k", "choose(-1)", "choose the block above", True),
    Key("choose-down", "down,j", "choose(1)", "choose the block below", True),
    Key("unfold", "enter,space", "unfold", "unfold or fold the chosen block", True),
    Key("copy", "c,y", "copy_block", "copy the chosen block", True),
    Key("copy-code", "x", "copy_code", "copy a code block of the chosen answer, the command of a call", True),
    Key("copy-link", "l", "copy_link", "copy a link of the chosen answer", True),
    Key("top", "g,home", "top", "to the beginning", True),
    Key("bottom", "G,end", "to_end", "to the end", True),
    Key("next-match", "n", "match(1)", "next match of the search", True),
    Key("previous-match", "N", "match(-1)", "match before", True),
)
APPROVAL_KEYS = (
    Key("allow", "y", "answer('once')", "allow this once"),
    Key("allow-session", "s", "answer('session')", "allow what the rule says, for this session"),
    Key("allow-always", "a", "answer('always')", "allow what the rule says, for good"),
    Key("edit", "e", "answer('edit')", "edit before running"),
    Key("deny", "n", "answer('deny')", "deny"),
    Key("deny-words", "d", "answer('words')", "deny, and tell the model what to do instead"),
)
GROUPS = {
    "Prompt": PROMPT_KEYS,
    "Everywhere": CHAT_KEYS,
    "Transcript (after Tab)": TRANSCRIPT_KEYS,
    "When k3agent asks": APPROVAL_KEYS,
}
KNOWN = {key.name: key for keys in GROUPS.values() for key in keys}


def bindings(keys: tuple[Key, ...]) -> list[BindingType]:
    return [key.binding for key in keys]


def first_actions(keys: tuple[Key, ...], own: dict[str, str]) -> dict[str, str]:
    """Pressed key to action, for the keys that come before the widget's own."""
    return {
        pressed: key.action
        for key in keys
        if key.is_first
        for pressed in (own.get(key.name) or key.keys).split(",")
    }


def load_keymap(path: Path) -> dict[str, str]:
    """The user's own keys by name. Raises ConfigError naming file, key and what is allowed."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    import tomllib  # lazy: only where there is such a file

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from error
    found: dict[str, str] = {}
    for name, keys in data.items():
        if name not in KNOWN:
            hint = did_you_mean(name, KNOWN, f" Known: {', '.join(KNOWN)}.")
            raise ConfigError(f"{path}: unknown key name {name!r}.{hint}")
        if not isinstance(keys, str) or not keys.strip():
            raise ConfigError(f'{path}, {name}: {keys!r} is no key; write for example {name} = "ctrl+k"')
        found[name] = keys.replace(" ", "")
    _check_conflicts(path, found)
    return found


def _check_conflicts(path: Path, found: dict[str, str]) -> None:
    """One key for two things in one place would leave one of them dead."""
    for group in GROUPS.values():
        used: dict[str, str] = {}
        for key in group:
            for pressed in (found.get(key.name) or key.keys).split(","):
                other = used.setdefault(pressed, key.name)
                if other != key.name and (key.name in found or other in found):
                    raise ConfigError(f"{path}: {pressed} stands for both {other} and {key.name}; choose one")


def keys_of(key: Key, own: dict[str, str]) -> str:
    """The keys in words, for the help screen."""
    names = (own.get(key.name) or key.keys).split(",")
    return " or ".join(_shown(name) for name in names)


def _shown(name: str) -> str:
    *modifiers, last = name.split("+")
    # A bare letter is itself; with a modifier it is written as on the key.
    last = last.upper() if modifiers and len(last) == 1 else last
    parts = [part.capitalize() if len(part) > 1 else part for part in (*modifiers, last)]
    words = {"Escape": "Esc", "Pageup": "PgUp", "Pagedown": "PgDn"}
    return "+".join(words.get(part, part) for part in parts)
