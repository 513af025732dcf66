"""What a shell command may destroy, as far as its words show: what is saved before it runs beyond the rule.

Wrong in one direction only: a command that cannot be read counts as one that has effects, and words that are
known only at run time may mean everything below the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from k3agent.agent import git_rules
from k3agent.agent.permissions import Action, Mode, Territory
from k3agent.agent.shell_places import MAX_FOLDERS
from k3agent.agent.shell_programs import names
from k3agent.agent.shell_rules import Judge
from k3agent.agent.shell_syntax import ParsedCommand, SimpleCommand, Word, parse
from k3agent.config.paths import repository_root
from k3agent.store.filetree import IGNORED, REPOSITORY, SPECIAL, TOO_LARGE, UNREADABLE

REMOVERS = names("rm unlink shred truncate mv rmdir dd tee")
GLOB = re.compile(r"[*?\[{]")
# What work in progress can consist of besides the files that are saved as a rule.
WORK = frozenset((TOO_LARGE, UNREADABLE))
NOT_GIT = frozenset((IGNORED, TOO_LARGE, REPOSITORY, SPECIAL, UNREADABLE))
# Subcommands that overwrite files, or drop stashes or branches, in some of their forms.
GIT_DESTROYERS = names(
    """
    reset checkout restore clean rm switch stash branch worktree read-tree checkout-index update-ref tag
    filter-branch filter-repo reflog gc prune rebase merge pull am apply cherry-pick revert submodule
    """
)
GLOBAL_WITH_VALUE = ("-c", "--exec-path", "--namespace", "--config-env", "--super-prefix")


@dataclass(frozen=True, slots=True)
class Threat:
    """A place that a command may destroy: everything there, or what is left out for one of `reasons`."""

    place: Path
    reasons: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """`only_looks`: nothing needs to be saved. `destroyer`: the words of the first command that throws files
    away, or ''. `threats`: what it reaches that is not saved as a rule. `drops_refs`: branches, tags or
    stashes may go.
    """

    only_looks: bool = False
    destroyer: str = ""
    threats: tuple[Threat, ...] = ()
    drops_refs: bool = False


def effects_of(command: str, territory: Territory) -> Effects:
    parsed = parse(command)
    if _only_looks(parsed, territory):
        return Effects(only_looks=True)
    reading = _Reading(territory.cwd)
    for simple in parsed.commands:
        reading.read(simple)
    for redirect in (*parsed.redirects, *(one for simple in parsed.commands for one in simple.redirects)):
        if redirect.operator in (">", "&>", ">|") and redirect.target is not None:
            reading.threats += reading.threats_of((redirect.target,))
    return Effects(
        destroyer=reading.destroyer,
        threats=tuple(reading.threats),
        drops_refs=reading.drops_refs,
    )


def _only_looks(parsed: ParsedCommand, territory: Territory) -> bool:
    """What plan mode would run without asking changes nothing."""
    if parsed.problem is not None:
        return False
    judge = Judge(territory, Mode.PLAN)
    for simple in parsed.commands:
        verdicts = [judge.judge(simple, parsed), *judge.judge_redirects(simple.redirects)]
        if any(verdict.action is not Action.ALLOW for verdict in verdicts):
            return False
    return not judge.judge_redirects(parsed.redirects) and not judge.judge_variables(parsed.assigned)


class _Reading:
    """Goes through the simple commands of one command, and remembers where `cd` leads."""

    def __init__(self, cwd: Path) -> None:
        self._bases = [cwd]
        self.destroyer = ""
        self.threats: list[Threat] = []
        self.drops_refs = False

    def read(self, simple: SimpleCommand) -> None:
        program, words = simple.program, simple.words[1:]
        if program in ("cd", "pushd"):
            target = next((word for word in words if word is not None and not word.startswith("-")), None)
            if target is not None:
                self._enter(target)
        elif program == "git":
            self._read_git(simple)
        elif program in REMOVERS:
            self._destroys(simple, self.threats_of(words))
        elif program == "find" and any(
            word in ("-delete", "-exec", "-execdir", "-ok", "-okdir") for word in words
        ):
            starts: list[Word] = []
            for word in words:
                if word is not None and word.startswith(("-", "(", "!")):
                    break
                starts.append(word)
            self._destroys(simple, self.threats_of(starts or (".",)))
        elif program == "rsync":
            self._destroys(simple, self.threats_of(words[-1:]))

    def _enter(self, target: str) -> None:
        """Each `cd` may double the folders; of many only the last one is followed."""
        if len(self._bases) > 4 * MAX_FOLDERS:
            return
        last = self._bases if len(self._bases) <= MAX_FOLDERS else self._bases[-1:]
        entered = [Path(os.path.normpath(base / target)) for base in last]
        self._bases += [base for base in dict.fromkeys(entered) if base not in self._bases]

    def _destroys(self, simple: SimpleCommand, threats: Iterable[Threat]) -> None:
        self.destroyer = self.destroyer or simple.text
        self.threats += threats

    def threats_of(self, words: Iterable[Word]) -> list[Threat]:
        """The places that words name. A pattern may mean all that lies where it begins, but no `.git`."""
        found: list[Threat] = []
        for word in words:
            if word is None or word == "{}":
                found += [Threat(base, NOT_GIT) for base in self._bases]
            elif not word.startswith("-") or word == "-":
                text = word.removeprefix("of=")
                pattern = GLOB.search(text)
                if pattern is not None:
                    text = text[: pattern.start()].rpartition("/")[0]
                # A pattern of names that begin with a dot fits `.git`, too.
                reasons = NOT_GIT if pattern is not None and ".*" not in word and ".?" not in word else None
                found += [Threat(Path(os.path.normpath(base / text)), reasons) for base in self._bases]
        return found

    def _read_git(self, simple: SimpleCommand) -> None:
        bases, words = self._git_words(simple.words[1:])
        sub = words[0] if words else "help"
        if sub is not None and sub not in GIT_DESTROYERS:
            return
        texts = [word or "" for word in words[1:]]
        short = "".join(text[1:] for text in texts if re.fullmatch(r"-[A-Za-z]+", text))
        reasons = WORK
        if sub is None or (sub == "clean" and ("x" in short or "X" in short)):
            reasons = NOT_GIT - {REPOSITORY}
        if sub is None or (sub == "clean" and short.count("f") > 1) or sub == "submodule":
            reasons |= {REPOSITORY}
        own = repository_root(self._bases[0])
        places = [repository_root(base) for base in bases]
        # A repository inside the workspace is left alone as a rule.
        threats = [Threat(place, reasons | ({REPOSITORY} if place != own else set())) for place in places]
        if not git_rules.is_reading(simple):
            self.drops_refs = True
            self._destroys(simple, threats)

    def _git_words(self, words: tuple[Word, ...]) -> tuple[list[Path], tuple[Word, ...]]:
        """(the folders it works in, subcommand and its words)."""
        bases = list(self._bases)
        at = 0
        while at < len(words):
            word = words[at]
            if word == "-C" and at + 1 < len(words):
                bases = [Path(os.path.normpath(base / (words[at + 1] or ""))) for base in bases]
                at += 2
            elif word in GLOBAL_WITH_VALUE:
                at += 2
            elif word is not None and word.startswith("-"):
                at += 1
            else:
                break
        return bases, words[at:]
