"""What a mode says to one simple command, and what is dangerous enough to be asked about in every mode.

The lists name what is known to be harmless (everywhere allowed) and what reaches beyond the workspace or
destroys work. Between them lies the mode: `auto` runs the rest, the others ask.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from k3agent.agent import git_rules, program_rules, secret_rules, shell_values
from k3agent.agent.permissions import Action, Mode, Territory, Verdict
from k3agent.agent.program_rules import SETTING, asks_version, runs_text
from k3agent.agent.shell_syntax import FOUND, SHELLS, ParsedCommand, Redirect, SimpleCommand, Word
from k3agent.safety.paths import exists


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READERS = _words(
    """
    ls cat head tail wc pwd echo printf true false test [ : which type whoami id date uname file stat du
    df tree sort uniq cut tr diff cmp comm nl tac rev basename dirname realpath readlink grep egrep
    fgrep rg jq column paste join fold expand seq printenv ps uptime sleep md5sum sha1sum sha256sum od
    hexdump strings cd pushd popd read wait exit return break continue shift set local
    """
)
# Options with which a reader writes or runs something.
READER_EXCEPTIONS = {
    "sort": ("-o", "--output", "--compress-program"),
    "tree": ("-o", "-R"),
    "rg": ("--pre", "--hostname-bin"),
    "date": ("-s", "--set"),
    "file": ("-C", "--compile"),
    "printf": ("-v",),
}
WRAPPERS = _words(
    """
    env nice timeout xargs time stdbuf ionice nohup setsid command builtin exec busybox unbuffer watch
    flock chrt parallel eval find coproc
    """
)
WRITERS = _words(
    """
    rm rmdir mv cp ln touch mkdir mktemp tee dd install chmod chown chgrp truncate shred unlink rsync
    tar unzip gzip gunzip patch split csplit sed perl uniq ed ex vi vim chattr setfacl mkfifo mknod
    """
)
PRIVILEGED = _words("sudo su doas pkexec run0 chroot unshare nsenter")
SYSTEM = _words(
    """
    shutdown reboot halt poweroff fdisk parted mount umount systemctl service crontab at iptables nft
    useradd userdel usermod passwd insmod rmmod modprobe swapoff pkill killall mkfs
    """
)
NETWORK = _words("curl wget ssh scp sftp nc ncat netcat telnet ftp socat")
INTERPRETERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php"}
DANGEROUS_ENV = _words(
    """
    PATH LD_PRELOAD LD_LIBRARY_PATH BASH_ENV ENV PROMPT_COMMAND PS4 PS0 BASH_ALIASES
    SHELLOPTS BASHOPTS GIT_SSH_COMMAND GIT_EXTERNAL_DIFF PAGER
    CDPATH GIT_DIR GIT_WORK_TREE GIT_SSH GIT_EXEC_PATH GIT_CONFIG GIT_CONFIG_COUNT GIT_CONFIG_GLOBAL
    """
)
# Builtins that set variables named by their words.
SETTERS = _words("read printf local mapfile readarray getopts export declare typeset")
# A function by such a name would not be called where the real thing is, or would be mistaken for it.
BUILTINS = _words(
    """
    . source eval exec command builtin trap alias unalias hash enable set shopt cd pushd popd export read kill
    coproc mapfile readarray complete compgen : [ test echo printf pwd type wait exit return
    """
)
KNOWN = BUILTINS | READERS | WRAPPERS | WRITERS | PRIVILEGED | SYSTEM | NETWORK | INTERPRETERS | {"git"}
PUBLISH = {
    "npm": "publish",
    "pnpm": "publish",
    "yarn": "publish",
    "twine": "upload",
    "docker": "push",
    "cargo": "publish",
    "gh": "",
}
CONTAINERS = _words("docker podman nerdctl kubectl")
CONTAINER_READERS = _words("ps images logs version info inspect top stats port diff history get describe")
# Their words may begin with a slash and be no path.
PATTERN_PROGRAMS = _words("sed perl awk gawk mawk grep egrep fgrep rg bazel")
OUTPUT_OPTIONS = _words(
    """
    -o -O -C -d --output --out --outfile --output-file --output-dir --outdir --directory --dest --prefix
    --target --root --basetemp -out -fprint -fprint0 -fprintf -fls
    """
)
AWKS = _words("awk gawk mawk nawk")
AWK_ACTS = re.compile(r'\bsystem\s*\(|print[^;}]*[>|]\s*"|"\s*\|\s*getline')
TARGET_OPTIONS = ("-t", "--target-directory")
LOOKS_LIKE_PATH = re.compile(r"(/|~|\.\./|[^\s:()'\"]+/)[^\s()'\"]*|\.\.")
HARMLESS_ENV = re.compile(r"LC_\w+|LANG|LANGUAGE|TZ|NO_COLOR|COLUMNS|LINES|TERM|GIT_PAGER|CLICOLOR")
MAX_MATCHES = 200
MAX_FOLDERS = 16
HARMLESS_TARGETS = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"))
WRITING_OPERATORS = frozenset((">", ">>", "&>", "&>>", ">|", "<>", ">&"))


class Judge:
    """Judges the simple commands of one shell command. It keeps the folders that `cd` may have led to."""

    def __init__(self, territory: Territory, mode: Mode) -> None:
        self._territory = territory
        self._mode = mode
        self._bases: list[Path] = [territory.cwd]
        self._stray = ""
        self._resolved: dict[str, list[Path]] = {}

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
            self._enter(simple)
        shown = secret_rules.shown(simple, self._resolve, self._territory)
        if shown is not None:
            return self._ask(shown)
        danger = self._danger(simple, program)
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

    # --- dangers ------------------------------------------------------------------------------------------

    def _danger(self, simple: SimpleCommand, program: str) -> str | None:
        """Why even `auto` asks, or None."""
        named = simple.words[1:] if program in SETTERS else ()
        for name in (*simple.env, *named):
            if name in DANGEROUS_ENV:
                return f"it changes {name}, and so what other programs run"
        if program in PRIVILEGED:
            return "it asks for other rights"
        if program in SYSTEM or program.startswith("mkfs."):
            return "it acts on the whole system"
        if program in INTERPRETERS and any(name in ("curl", "wget") for name in simple.feeders):
            return "it runs what came from the network"
        if program in SHELLS and simple.is_fed and not runs_text(simple.words[1:]):
            return "it runs a text that was not looked at"
        reaching = self._danger_elsewhere(simple, program)
        if reaching is not None:
            return reaching
        if program == "rm":
            return self._danger_of_rm(simple)
        if program == "find":
            return self._danger_of_find(simple)
        if program == "git":
            return git_rules.danger(simple, self._names_file)
        if program == "kill" and "-1" in simple.words[2:]:
            return "it ends every process"
        return None

    def _danger_elsewhere(self, simple: SimpleCommand, program: str) -> str | None:
        """Why a command that reaches beyond this machine, or beyond its files, is asked about."""
        if program in NETWORK and asks_version(simple.words[1:]):
            return None
        if program in NETWORK and not program_rules.reaches_only(simple, self._territory.hosts):
            return "it talks to the network"
        if program in CONTAINERS and not self._looks_into_containers(simple):
            return "what runs in a container or cluster is not held in the workspace"
        if program in PUBLISH and (not PUBLISH[program] or PUBLISH[program] in simple.words):
            return "it publishes something"
        if program in AWKS and any(AWK_ACTS.search(word or "") for word in simple.words):
            return "its awk program writes files or runs commands"
        return program_rules.danger(simple)

    def _looks_into_containers(self, simple: SimpleCommand) -> bool:
        return len(simple.words) > 1 and simple.words[1] in CONTAINER_READERS

    def _danger_of_rm(self, simple: SimpleCommand) -> str | None:
        options = [word for word in simple.words[1:] if isinstance(word, str) and word.startswith("-")]
        targets = [word for word in simple.words[1:] if word is None or not word.startswith("-")]
        recursive = any(
            re.fullmatch(r"-[a-zA-Z]*[rR][a-zA-Z]*", word)
            or (len(word) > 3 and "--recursive".startswith(word))
            for word in options
        )
        # What `find` has found lies below where it starts, which is judged with `find` itself.
        if not recursive and targets == [None] and simple.feeders == FOUND:
            return None
        for target in targets:
            if target is None:
                return "what it removes is known only at run time"
            paths = self._resolve(target)
            for path in [*paths, *self._resolve(target.rstrip("*"))] if recursive else paths:
                if not self._territory.is_open_to_commands(path):
                    return f"it removes {path}, which is outside the workspace"
                if not recursive:
                    continue
                if self._territory.is_root(path):
                    return "it removes the whole workspace"
                if ".git" in path.parts:
                    return "it removes the repository's history"
        return None

    def _starts_outside(self, simple: SimpleCommand) -> str | None:
        for word in simple.words[1:]:
            if word is None:
                return "where it changes files is known only at run time"
            if word.startswith(("-", "(", "!")):
                break
            if any(not self._territory.is_open_to_commands(path) for path in self._resolve(word)):
                return f"it deletes or changes files below {word}, outside the workspace"
        return None

    def _danger_of_find(self, simple: SimpleCommand) -> str | None:
        removes = "-delete" in simple.words or program_rules.find_removes(simple.words)
        if not removes and not program_rules.find_changes(simple.words, READERS):
            return None
        outside = self._starts_outside(simple)
        if outside is not None or not removes:
            return outside
        if not any(isinstance(word, str) and word in ("-name", "-path", "-iname") for word in simple.words):
            return "it deletes everything that it finds"
        return None

    def _names_file(self, texts: list[str]) -> bool:
        """`git checkout FILE` without `--`: a word that is a file here, unless a new branch is made."""
        if any(text in ("-b", "-B", "--orphan") for text in texts):
            return False
        return any(
            text in (".", "*") or any(map(exists, self._resolve(text)))
            for text in texts
            if text and not text.startswith("-")
        )

    # --- places -------------------------------------------------------------------------------------------

    def _enter(self, simple: SimpleCommand) -> None:
        """Note where `cd` leads: later relative paths may be meant from there."""
        targets = [
            word for word in simple.words[1:] if word is None or not word.startswith("-") or word == "-"
        ]
        target = targets[0] if targets else "~"
        if target is None or target == "-":
            self._stray = "a folder known only at run time"
            return
        if len(self._bases) >= MAX_FOLDERS:  # each `cd` may double them
            self._stray = f"one of more than {MAX_FOLDERS} folders"
            return
        for path in self._resolve(target):
            if not self._territory.is_open_to_commands(path):
                self._stray = str(path)
        self._bases = list(dict.fromkeys((*self._bases, *self._resolve(target))))
        self._resolved.clear()

    def _wrong_place(self, simple: SimpleCommand, program: str) -> Verdict | None:
        if self._stray:
            return self._walled(f"`{_short(simple.text)}` would run in {self._stray}, outside the workspace")
        beyond = self._beyond(simple, program)
        if beyond is not None:
            return self._walled(f"`{_short(simple.text)}` names {beyond}, which is outside the workspace")
        if program not in WRITERS:
            return None
        paths = list(self._paths(simple))
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
                not self._territory.is_open_to_commands(path) for path in self._resolve(last)
            ):
                return self._walled(f"it would write {last}, which is outside the workspace")
        return self._write_by_mode(simple, program)

    def _beyond(self, simple: SimpleCommand, program: str) -> Path | None:
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
            for path in self._resolve(text):
                if self._territory.is_readable(path) or self._territory.is_open_to_commands(path):
                    continue
                if option in (TARGET_OPTIONS if copies else OUTPUT_OPTIONS):
                    return path
                # A copy names what it reads; where it goes is judged by itself.
                if not copies and not exists(path):
                    return path
        return None

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
        for path in self._resolve(target):
            protected = self._keeps_out(path)
            if protected is not None:
                return Verdict(action=Action.ASK, reason=protected, by="protection")
            if not self._territory.is_open_to_commands(path):
                return self._walled(f"it would write {path}, which is outside the workspace")
        if self._mode in (Mode.AUTO, Mode.ACCEPT_EDITS):
            return None
        return self._by_mode(f"writing {target}")

    def _protected(self, words: Iterable[str]) -> Verdict | None:
        reason = secret_rules.protected(words, self._resolve, self._territory)
        return None if reason is None else Verdict(action=Action.ASK, reason=reason, by="protection")

    def _keeps_out(self, path: Path) -> str | None:
        return self._territory.protected(path, is_write=True) or self._territory.runs_later(path)

    def _paths(self, simple: SimpleCommand) -> Iterable[Path]:
        """Every word that may name a file, resolved from each folder the command may be in."""
        skip_script = simple.program in ("sed", "perl", "ed", "ex", "vi", "vim")
        for word in simple.words[1:]:
            if word is None:
                continue
            if word.startswith("-"):
                if "=" not in word:
                    continue
                word = word.split("=", 1)[1]
            if skip_script and not any(map(exists, self._resolve(word))):
                continue
            if simple.program == "dd":
                word = word.removeprefix("of=")
            if word.startswith(("http://", "https://")):
                continue
            yield from self._resolve(word)

    def _resolve(self, word: Word) -> list[Path]:
        if word is None:
            return []
        if word not in self._resolved:
            self._resolved[word] = self._resolve_anew(word)
        return self._resolved[word]

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


def _allow(reason: str) -> Verdict:
    return Verdict(action=Action.ALLOW, reason=reason, by="mode")


def _is_only_function(simple: SimpleCommand) -> bool:
    """Whether nothing but a function can be meant: elsewhere the name may be that of a program."""
    name = simple.words[0] or ""
    return not simple.is_passed and "/" not in name and name not in KNOWN and shutil.which(name) is None


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."
