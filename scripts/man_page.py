"""Writes docs/k3agent.1, the manual page, from the parsers of all commands."""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from k3agent import __version__
from k3agent.reference.tree import Flag, Operand, Place, places

PAGE = Path(__file__).resolve().parent.parent / "docs" / "k3agent.1"

ABOUT = """\
A coding agent for the terminal, with its own inference engine for Kimi K3.
Without a command it is a terminal UI in the current folder;
.B k3agent run
does one task to the end with nobody to ask. Without a provider or an API key,
the embedded model runs here, offline.
"""
EXITS = (
    (0, "done"),
    (1, "an error"),
    (2, "wrong usage"),
    (3, "blocked: something was not allowed"),
    (4, "a check says no"),
    (5, "a limit was reached"),
    (6, "interrupted"),
    (41, "authentication failed"),
    (44, "a sandbox was required and none works"),
    (52, "the configuration is wrong"),
    (75, "the provider is failing for now"),
)
FILES = (
    ("~/.config/k3agent/config.toml", "your settings; k3agent config list shows all"),
    (".k3agent/config.toml", "those of a repository, obeyed once it is trusted"),
    ("~/.local/share/k3agent", "sessions, saved states of files, logs"),
)
VARIABLES = (
    ("K3AGENT_HOME", "the folder for sessions, saved states and logs"),
    ("K3AGENT_GROUP_KEY", "a setting: limits.max_turns is K3AGENT_LIMITS_MAX_TURNS"),
    ("MOONSHOT_API_KEY", "the key for Moonshot's API; other providers have variables of their own"),
)


def escaped(text: str) -> str:
    """Text as roff shows it word by word: no escapes, no requests, hyphens that can be copied."""
    text = textwrap.fill(text, 78, break_on_hyphens=False, break_long_words=False)
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))


def flag(one: Flag) -> Iterator[str]:
    names = ", ".join(f"\\fB{escaped(name)}\\fR" for name in one.names)
    shown = "" if one.value is None else escaped(one.value.name)
    value = "" if one.value is None else f" \\fI{shown}\\fR" if one.needs_value else f" [\\fI{shown}\\fR]"
    yield f".TP\n{names}{value}\n"
    choices = one.value.words if one.value is not None else ()
    given = f" (one of {', '.join(choices)})" if 0 < len(choices) < 12 else ""
    yield f"{escaped((one.help + given).strip() or one.names[-1])}\n"


def operand(one: Operand) -> str:
    dots = " ..." if one.is_repeatable else ""
    name = f"\\fI{escaped(one.value.name)}\\fR{dots}"
    return name if one.is_needed else f"[{name}]"


def command(place: Place) -> Iterator[str]:
    words = " ".join(filter(None, ["k3agent", place.path]))
    heads = [*(operand(one) for one in place.operands), "[flags]"]
    if place.actions and place.words:
        heads.insert(0, "[\\fIACTION\\fR]" if "list" in place.actions else "\\fIACTION\\fR")
    yield f".SS {escaped(words)}\n"
    yield f".B {escaped(words)}\n{' '.join(heads)}\n.PP\n"
    yield f"{escaped(place.summary)}\n"
    for one in place.operands:
        if one.help:
            yield f".TP\n{operand(one)}\n{escaped(one.help)}\n"
    for one in place.flags:
        if "-h" not in one.names:
            yield from flag(one)


def table(rows: tuple[tuple[object, str], ...]) -> Iterator[str]:
    for name, text in rows:
        yield f".TP\n.B {escaped(str(name))}\n{escaped(text)}\n"


def page() -> str:
    found = places()
    root = found[0]
    parts = [
        '.\\" Made by scripts/man_page.py from the parsers of all commands; change those.\n',
        f'.TH K3AGENT 1 "" "k3agent {__version__}" "User Commands"\n',
        ".SH NAME\nk3agent \\- coding agent with an inference engine of its own for Kimi K3\n",
        ".SH SYNOPSIS\n.B k3agent\n[\\fIPROMPT\\fR] [flags]\n.br\n",
        ".B k3agent\n\\fICOMMAND\\fR [flags]\n",
        f".SH DESCRIPTION\n{ABOUT}",
        ".SH COMMANDS\n",
        *table(tuple(root.actions.items())),
        ".PP\nEach command, and each action, shows its flags with\n.BR \\-\\-help .\n",
        "A command with an action\n.B list\nlists where none is named.\n",
        ".SH OPTIONS\n",
        *(part for place in found for part in command(place)),
        ".SH EXIT STATUS\n",
        *table(EXITS),
        ".SH ENVIRONMENT\n",
        *table(VARIABLES),
        ".SH FILES\n",
        *table(FILES),
        ".SH EXAMPLES\n.EX\n",
        escaped('k3agent run "run the tests and fix what fails" --check "pytest -q"') + "\n",
        escaped("k3agent -c") + "\n.EE\n",
    ]
    return re.sub(r"[ \t]+\n", "\n", "".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail where it is not up to date"
    )
    if parser.parse_args().check:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
            sys.exit(f"{PAGE} is not what the parsers say: run `make man`")
        return
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
