"""What to type instead of words that the command line does not know, or cannot serve yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from k3agent.headless.arguments import nearest_of
from k3agent.headless.flags import run_parser

_TOP_FLAGS = ("--help", "--version", "-p", "-c")


def what_to_type(words: Sequence[str], commands: Iterable[str]) -> str:
    """A sentence or two. `words`: the whole command line."""
    name = words[0] if words else ""
    if name.startswith("-") and name not in {"-c", "--continue"}:
        return _unknown_flag(name.partition("=")[0])
    is_prompt = any(map(str.isspace, name))
    if name and not is_prompt and name not in {"resume", "-c", "--continue"}:
        hint = nearest_of(name, commands) or f' For a task: k3agent run "{" ".join(words)}".'
        return f"unknown command {name!r}.{hint}"
    use = 'k3agent run "PROMPT"'
    if name == "resume" and words[1:]:
        use = f"k3agent run --resume {words[1]}, with or without a further prompt"
    elif name == "resume":
        use = "k3agent run --resume ID, with or without a further prompt; k3agent sessions list shows the ids"
    elif name.startswith("-"):
        use = "k3agent run --continue, with or without a further prompt"
    elif name:
        use = 'k3agent run "..." with that prompt'
    return f"the terminal UI is not part of this release. Use: {use}."


def _unknown_flag(flag: str) -> str:
    hint = nearest_of(flag, _TOP_FLAGS)
    of_run = nearest_of(flag, run_parser()._option_string_actions)
    if of_run and not hint:
        hint = f"{of_run} That is a flag of k3agent run."
    return f"unknown flag {flag}.{hint}"
