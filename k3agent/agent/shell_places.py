"""Where the words of a shell command lead: the folders that `cd` may have come to, the paths they name."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path

from k3agent.agent.permissions import Territory
from k3agent.agent.shell_programs import names
from k3agent.agent.shell_syntax import SimpleCommand, Word
from k3agent.safety.paths import exists

# Their words may begin with a slash and be no path.
PATTERN_PROGRAMS = names("sed perl awk gawk mawk grep egrep fgrep rg bazel")
OUTPUT_OPTIONS = names(
    """
    -o -O -C -d --output --out --outfile --output-file --output-dir --outdir --directory --dest --prefix
    --target --root --basetemp -out -fprint -fprint0 -fprintf -fls
    """
)
TARGET_OPTIONS = ("-t", "--target-directory")
LOOKS_LIKE_PATH = re.compile(r"(/|~|\.\./|[^\s:()'\"]+/)[^\s()'\"]*|\.\.")
MAX_MATCHES = 200
MAX_FOLDERS = 16
HARMLESS_TARGETS = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"))


class Places:
    """The places of one shell command, simple command after simple command. `stray`: where outside of the
    territory it may be by now, or ''.
    """

    def __init__(self, territory: Territory) -> None:
        self._territory = territory
        self._bases: list[Path] = [territory.cwd]
        self.stray = ""
        self._resolved: dict[str, list[Path]] = {}

    def enter(self, simple: SimpleCommand) -> None:
        """Note where `cd` leads: later relative paths may be meant from there."""
        targets = [
            word for word in simple.words[1:] if word is None or not word.startswith("-") or word == "-"
        ]
        target = targets[0] if targets else "~"
        if target is None or target == "-":
            self.stray = "a folder known only at run time"
            return
        if len(self._bases) >= MAX_FOLDERS:  # each `cd` may double them
            self.stray = f"one of more than {MAX_FOLDERS} folders"
            return
        for path in self.resolve(target):
            if not self._territory.is_open_to_commands(path):
                self.stray = str(path)
        self._bases = list(dict.fromkeys((*self._bases, *self.resolve(target))))
        self._resolved.clear()

    def resolve(self, word: Word) -> list[Path]:
        if word is None:
            return []
        if word not in self._resolved:
            self._resolved[word] = self._resolve_anew(word)
        return self._resolved[word]

    def named(self, simple: SimpleCommand) -> Iterable[Path]:
        """Every word that may name a file, resolved from each folder the command may be in."""
        skip_script = simple.program in ("sed", "perl", "ed", "ex", "vi", "vim")
        for word in simple.words[1:]:
            if word is None:
                continue
            if word.startswith("-"):
                if "=" not in word:
                    continue
                word = word.split("=", 1)[1]
            if skip_script and not any(map(exists, self.resolve(word))):
                continue
            if simple.program == "dd":
                word = word.removeprefix("of=")
            if word.startswith(("http://", "https://")):
                continue
            yield from self.resolve(word)

    def beyond(self, simple: SimpleCommand, program: str) -> Path | None:
        """A place outside that any program would write to, as far as its words show: the value of an option
        for output, or a path that is not there yet. What is there may be read.
        """
        if program in PATTERN_PROGRAMS:
            return None
        copies = program in ("cp", "rsync", "install", "ln", "mv")
        before = ""
        for word in simple.words[1:]:
            text, option = word or "", before
            before = text
            if text.startswith("-") and "=" in text:
                option, text = text.split("=", 1)
            elif text[:2] in OUTPUT_OPTIONS or (copies and text[:2] == "-t"):
                option, text = text[:2], text[2:]
            if copies and re.fullmatch(r"-[a-zA-Z]+t", option):
                option = "-t"
            if not LOOKS_LIKE_PATH.fullmatch(text) or text in HARMLESS_TARGETS:
                continue
            for path in self.resolve(text):
                if self._territory.is_readable(path) or self._territory.is_open_to_commands(path):
                    continue
                if option in (TARGET_OPTIONS if copies else OUTPUT_OPTIONS):
                    return path
                # A copy names what it reads; where it goes is judged by itself.
                if not copies and not exists(path):
                    return path
        return None

    def _resolve_anew(self, word: str) -> list[Path]:
        home = self._territory.user_home
        if word == "~" or word.startswith("~/"):
            word = (str(home) if home is not None else "/") + word[1:]
        try:
            found = [Path(os.path.realpath(base / word)) for base in self._bases]
            if re.match(r"~[\w.+-]", word) and not any(map(exists, found)):
                return [Path("/")]  # somebody's home, or the folder before the last `cd`
            if any(sign in word for sign in "*?["):
                found += self._matches(word)
            return found
        except (OSError, ValueError):
            return [Path("/")]

    def _matches(self, pattern: str) -> list[Path]:
        """What the shell would put in the place of `pattern`; the first ones of many."""
        texts = itertools.chain.from_iterable(
            # Not Path.glob: that one takes no absolute pattern and leaves nothing hidden.
            glob.iglob(pattern, root_dir=base)  # noqa: PTH207
            for base in self._bases
        )
        places = (base / text for text in itertools.islice(texts, MAX_MATCHES) for base in self._bases)
        return [Path(os.path.realpath(place)) for place in places]
