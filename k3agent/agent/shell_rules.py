"""What a mode says to one simple command.

What is known to be harmless is allowed everywhere (shell_programs.py), what reaches beyond the workspace or
destroys work is asked about everywhere (shell_dangers.py, shell_places.py). Between them lies the mode:
`auto` runs the rest, the others ask.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from k3agent.agent import git_rules, program_rules, secret_rules, shell_values
from k3agent.agent.permissions import Action, Mode, Territory, Verdict
from k3agent.agent.program_rules import SETTING, asks_version, runs_text
from k3agent.agent.shell_dangers import Dangers
from k3agent.agent.shell_places import HARMLESS_TARGETS, Places
from k3agent.agent.shell_programs import (
    DANGEROUS_ENV,
    HARMLESS_ENV,
    KNOWN,
    READER_EXCEPTIONS,
    READERS,
    SETTERS,
    WRAPPERS,
    WRITERS,
)
from k3agent.agent.shell_syntax import SHELLS, ParsedCommand, Redirect, SimpleCommand

WRITING_OPERATORS = frozenset((">", ">>", "&>", "&>>", ">|", "<>", ">&"))


class Judge:
    """Judges the simple commands of one shell command. It keeps the folders that `cd` may have led to."""

    def __init__(self, territory: Territory, mode: Mode) -> None:
        self._territory = territory
        self._mode = mode
        self._places = Places(territory)
        self._dangers = Dangers(territory, self._places)

    def judge(self, simple: SimpleCommand, parsed: ParsedCommand) -> Verdict:
        """The command itself, without its redirections."""
        return self._of_command(simple, parsed)

    def judge_redirects(self, redirects: Iterable[Redirect]) -> list[Verdict]:
        """Where output goes, for a simple command or for a loop or group as a whole."""
        verdicts = (self._of_redirect(redirect) for redirect in redirects)
        return [verdict for verdict in verdicts if verdict is not None]

    def judge_variables(self, names: Iterable[str]) -> list[Verdict]:
        """Variables set for all that follows."""
        why = "it changes {}, and so what other programs run"
        walled = [self._walled(why.format(name)) for name in names if name in DANGEROUS_ENV]
        return walled + [self._by_mode(why.format(name)) for name in names if SETTING.fullmatch(name)]

    def judge_values(self, parsed: ParsedCommand) -> list[Verdict]:
        """Protected places that variables may lead to: `x=~/.ssh; cd $x`."""
        verdict = self._protected(shell_values.may_be(parsed.values))
        return [] if verdict is None else [verdict]

    def judge_hidden(self, why: str) -> list[Verdict]:
        """A value that bash may run. The other modes trust that a command which only looks does so."""
        return [self._by_mode(why)] if why else []

    # --- one command --------------------------------------------------------------------------------------

    def _of_command(self, simple: SimpleCommand, parsed: ParsedCommand) -> Verdict:
        program = simple.program
        if program is None:
            return self._ask("which program it runs is known only at run time")
        secret = self._protected(filter(None, (*simple.words[1:], *simple.maybe)))
        if secret is not None:
            return secret
        if program in parsed.functions and _is_only_function(simple):
            return _allow("a function of the command itself, whose body is judged")
        if program in ("cd", "pushd"):
            self._places.enter(simple)
        shown = secret_rules.shown(simple, self._places.resolve, self._territory)
        if shown is not None:
            return self._ask(shown)
        danger = self._dangers.of(simple, program)
        if danger is not None:
            return self._walled(f"`{_short(simple.text)}`: {danger}")
        if self._is_harmless(simple, program):
            return _allow("it only looks")
        place = self._wrong_place(simple, program)
        if place is not None:
            return place
        return self._by_mode(f"`{_short(simple.text)}`")

    def _by_mode(self, what: str) -> Verdict:
        match self._mode:
            case Mode.AUTO:
                return _allow("auto mode runs commands inside the workspace")
            case Mode.PLAN:
                return self._ask(f"plan mode runs only commands that look, and {what} may change something")
            case _:
                return self._ask(f"{what} needs approval in {self._mode} mode")

    def _ask(self, reason: str) -> Verdict:
        action = Action.DENY if self._mode is Mode.PLAN else Action.ASK
        return Verdict(action=action, reason=reason, by="mode")

    def _walled(self, reason: str) -> Verdict:
        """What rules may allow in a user's session, and nothing allows to a subagent."""
        if self._territory.is_fenced:
            return Verdict(action=Action.ASK, reason=reason, by="protection")
        return self._ask(reason)

    def _is_harmless(self, simple: SimpleCommand, program: str) -> bool:
        words = simple.words[1:]
        is_set = program in SETTERS and any(SETTING.fullmatch(word or "") for word in words)
        if is_set or not program_rules.is_of_system(simple.words[0]):
            return False
        if any(not HARMLESS_ENV.fullmatch(name) for name in simple.env) and program not in WRAPPERS:
            return False
        if program in program_rules.WITH_OPTIONS and program_rules.may_be_option(words):
            return False
        if program == "git":
            return git_rules.is_reading(simple)
        if program == "find":
            return not any((word or "").startswith(("-delete", "-fprint", "-fls")) for word in words)
        if program in ("flock", "parallel") or (program == "time" and "-o" in words):
            return False  # they write a file of their own
        if program == "fish" and len(words) > 2:
            return False  # it takes options behind the text, too
        if program in WRAPPERS or (program in SHELLS and not simple.is_fed and runs_text(words)):
            return True  # what it runs is judged as a command of its own
        if program == "sed":
            return program_rules.sed_only_prints(words)
        if program in ("uniq", "date") and program_rules.has_extra_operand(program, words):
            return False
        if any(
            program_rules.is_option(word, name)
            for word in words
            for name in READER_EXCEPTIONS.get(program, ())
        ):
            return False
        if asks_version(words):
            return program.isalnum()
        return program in READERS

    # --- places -------------------------------------------------------------------------------------------

    def _wrong_place(self, simple: SimpleCommand, program: str) -> Verdict | None:
        if self._places.stray:
            return self._walled(
                f"`{_short(simple.text)}` would run in {self._places.stray}, outside the workspace"
            )
        beyond = self._places.beyond(simple, program)
        if beyond is not None:
            return self._walled(f"`{_short(simple.text)}` names {beyond}, which is outside the workspace")
        if program not in WRITERS:
            return None
        paths = list(self._places.named(simple))
        if program in ("cp", "mv", "rsync", "ln", "install"):
            paths += program_rules.landings(paths)
        for path in paths:
            protected = self._keeps_out(path)
            if protected is not None:
                return Verdict(action=Action.ASK, reason=protected, by="protection")
            if not self._territory.is_open_to_commands(path) and program not in ("tar", "rsync", "cp"):
                return self._walled(f"`{_short(simple.text)}` names {path}, which is outside the workspace")
        if program in ("cp", "rsync"):
            last = next(
                (word for word in reversed(simple.words[1:]) if word is None or word[:1] != "-"), None
            )
            if last is not None and any(
                not self._territory.is_open_to_commands(path) for path in self._places.resolve(last)
            ):
                return self._walled(f"it would write {last}, which is outside the workspace")
        return self._write_by_mode(simple, program)

    def _write_by_mode(self, simple: SimpleCommand, program: str) -> Verdict | None:
        is_edit = program != "sed" or program_rules.sed_only_edits(simple.words[1:])
        if self._mode is Mode.ACCEPT_EDITS and is_edit and program in ("mkdir", "touch", "mv", "cp", "sed"):
            return _allow("changing files inside the workspace")
        return None

    def _of_redirect(self, redirect: Redirect) -> Verdict | None:
        target = redirect.target
        if redirect.operator not in WRITING_OPERATORS:
            if target is not None and target.startswith(("/dev/tcp/", "/dev/udp/")):
                return self._walled("it talks to the network")
            return self._protected(redirect.maybe if target is None else (target,))
        if target is None:
            return self._ask("where it writes is known only at run time")
        if target in HARMLESS_TARGETS or (redirect.operator == ">&" and re.fullmatch(r"\d+-?|-", target)):
            return None
        for path in self._places.resolve(target):
            protected = self._keeps_out(path)
            if protected is not None:
                return Verdict(action=Action.ASK, reason=protected, by="protection")
            if not self._territory.is_open_to_commands(path):
                return self._walled(f"it would write {path}, which is outside the workspace")
        if self._mode in (Mode.AUTO, Mode.ACCEPT_EDITS):
            return None
        return self._by_mode(f"writing {target}")

    def _protected(self, words: Iterable[str]) -> Verdict | None:
        reason = secret_rules.protected(words, self._places.resolve, self._territory)
        return None if reason is None else Verdict(action=Action.ASK, reason=reason, by="protection")

    def _keeps_out(self, path: Path) -> str | None:
        return self._territory.protected(path, is_write=True) or self._territory.runs_later(path)


def _allow(reason: str) -> Verdict:
    return Verdict(action=Action.ALLOW, reason=reason, by="mode")


def _is_only_function(simple: SimpleCommand) -> bool:
    """Whether nothing but a function can be meant: elsewhere the name may be that of a program."""
    name = simple.words[0] or ""
    return not simple.is_passed and "/" not in name and name not in KNOWN and shutil.which(name) is None


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."
