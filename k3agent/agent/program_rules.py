"""What certain options make of programs that mostly look, or stay in the workspace: sed, tar, rsync, find."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from k3agent.agent.shell_syntax import SimpleCommand, Word
from k3agent.safety.paths import is_folder

RUNS = "it runs a text that was not looked at"
# The patterns go back and forth over a script; longer ones are programs that nobody writes on one line.
MAX_SCRIPT = 400
TAR_RUNS = (
    "--to-command",
    "--checkpoint-action",
    "--use-compress-program",
    "--info-script",
    "--new-volume",
)
_ELSEWHERE = r"\s*(/|~|\.\./)"
# `w FILE` after an address, a separator or the flags of `s`; `e` where a command may stand, or as a flag.
SED_WRITES = re.compile(r"(?:^|[;{}\n\d$/|,#gpIM!])\s*[wW]" + _ELSEWHERE)
SED_RUNS = re.compile(r"(?:^|[;{\n])\s*(?:\d+|\$|/[^/]*/)?(?:,(?:\d+|\$|/[^/]*/))?\s*e(?:\s|$)")
SED_SUBSTITUTE_RUNS = re.compile(r"(?:^|[;{}\n\d$/])\s*s([/|,#@!])(?:(?!\1).)*\1(?:(?!\1).)*\1[gpIiMm\d]*e")
_SED_PLACE = r"(?:\d+|\$|/(?:[^/\\\n]|\\.)*/I?)"
SED_PLAIN = re.compile(
    rf"\s*(?:{_SED_PLACE}(?:,{_SED_PLACE})?)?\s*!?\s*"
    r"(?:s([/|,#@!:])(?:(?!\1)[^\\\n]|\\.)*\1(?:(?!\1)[^\\\n]|\\.)*\1[gpIi\d]*|[dp])\s*"
)
SED_OPTION = re.compile(
    r"-[nErsz]*(i[.\w~]*)?|-e|--(expression|regexp-extended|quiet|silent|posix|in-place(=[.\w~]*)?)?"
)
SED_PRINT = re.compile(r"\d+(,(\d+|\$))?p")
LOOPBACK = re.compile(r"(https?://)?(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?(/.*)?")
# Programs that look, but have options with which they write or run something.
WITH_OPTIONS = frozenset({"git", "find", "sort", "tree", "rg", "date", "file", "sed"})
SYSTEM_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin")
# Variables by which programs find their settings, or what they start.
SETTING = re.compile(
    r"HOME|XDG_\w+|GIT_(?!PAGER$)\w+|(LD|DYLD|BASH|PYTHON|PERL|RUBY|NODE|LESS)\w*|RIPGREP_CONFIG_PATH|EDITOR|VISUAL"
    r"|MANPAGER|BROWSER|MAGIC|LOCPATH|GCONV_PATH|TERMINFO\w*|GLIBC_TUNABLES"
)
# How a shell is told to run the next word and nothing else: neither interactive nor with a file to start.
PLAIN_SHELL = re.compile(r"-[efhluvxn]+|-o|pipefail|errexit|nounset|--norc|--noprofile|--login|--posix")
REMOTE = re.compile(r"[\w.-]+(@[\w.-]+)?:(?!//).*|rsync://.*|[\w.@-]+::.*")


def danger(simple: SimpleCommand) -> str | None:
    """Why even `auto` asks about these programs, or None."""
    words = [word or "" for word in simple.words[1:]]
    match simple.program:
        case "sed":
            return _danger_of_sed(words)
        case "tar":
            return _danger_of_tar(words)
        case "rsync" if any(REMOTE.fullmatch(word) for word in words) or "-e" in words:
            return "it talks to the network"
    return None


def reaches_only(simple: SimpleCommand, hosts: Sequence[str]) -> bool:
    """Whether all its addresses are of this machine, or of `hosts` that the sandbox lets it reach."""
    files = ("-o", "--output") if simple.program == "curl" else ()
    operands = [
        word
        for before, word in pairwise(simple.words)
        if (word is None or not word.startswith("-")) and before not in files
    ]
    urls = [word for word in operands if word is None or "/" in word or ":" in word or "." in word]
    return bool(urls) and all(word is not None and _is_named(word, hosts) for word in urls)


def _is_named(url: str, hosts: Sequence[str]) -> bool:
    from k3agent.tools.sandbox.proxy import fits  # lazy: tools bring pydantic, 0.1 s

    if LOOPBACK.fullmatch(url):
        return True
    match = re.fullmatch(r"(https?)://([\w.-]+)(?::(\d{1,5}))?(?:[/?#]\S*)?", url)
    if match is None:
        return False
    port = int(match[3]) if match[3] else 443 if match[1] == "https" else 80
    return any(fits(pattern, match[2].lower(), port) for pattern in hosts)


def _danger_of_sed(words: Sequence[str]) -> str | None:
    if any(SED_WRITES.search(word) for word in words):
        return "its script writes a file outside the workspace"
    scripts = [word for word in words if not word.startswith("-") and len(word) < MAX_SCRIPT]
    if any(SED_SUBSTITUTE_RUNS.search(word) or SED_RUNS.search(word) for word in scripts):
        return RUNS
    return None


def _danger_of_tar(words: Sequence[str]) -> str | None:
    if any(is_option(word, name) for word in words for name in TAR_RUNS):
        return RUNS
    bunches = [
        word
        for at, word in enumerate(words)
        if re.fullmatch(r"-[a-zA-Z]+", word) or (at == 0 and word.isalpha())
    ]
    if any("P" in bunch for bunch in bunches) or "--absolute-names" in words:
        return "the archive may hold absolute paths"
    if any("I" in bunch or "F" in bunch for bunch in bunches):
        return RUNS
    if words and words[0].isalpha() and "C" in words[0]:
        return "which folder it works in is not clear; write -C FOLDER"
    return None


def sed_only_prints(words: Sequence[Word]) -> bool:
    """`sed -n 1,20p FILE...`, and nothing that changes a file or runs anything."""
    texts = [word or "" for word in words]
    options = {text for text in texts if text.startswith("-")}
    plain = [text for text in texts if not text.startswith("-")]
    return (
        "-n" in options
        and options <= {"-n", "-E", "-r", "-s", "--"}
        and SED_PRINT.fullmatch("".join(plain[:1])) is not None
    )


def sed_only_edits(words: Sequence[Word]) -> bool:
    """`sed -i s/a/b/ FILE...`: all options are known, and the scripts only replace, delete and print."""
    scripts: list[str] = []
    operands: list[str] = []
    before = ""
    for word in words:
        if word is None:
            return False
        if before in ("-e", "--expression"):
            scripts.append(word)
        elif not word.startswith("-"):
            operands.append(word)
        elif not SED_OPTION.fullmatch(word):
            return False
        before = word if before not in ("-e", "--expression") else ""
    return all(map(_is_plain_script, scripts or operands[:1]))


def _is_plain_script(script: str) -> bool:
    at = 0
    while found := SED_PLAIN.match(script, at):
        at = found.end() + 1
        if at > len(script):
            return True
        if script[at - 1] not in ";\n":
            return False
    return False


def find_changes(words: Sequence[Word], readers: Collection[str]) -> bool:
    """Whether `find -exec` runs something on what it finds that is not known only to look."""
    runs = ("-exec", "-execdir", "-ok", "-okdir")
    programs = [following for word, following in pairwise(words) if word in runs]
    return any(program is None or program.rsplit("/", 1)[-1] not in readers for program in programs)


def find_removes(words: Sequence[Word]) -> bool:
    """Whether `find` only removes what it finds, by `-exec rm`."""
    runs = ("-exec", "-execdir")
    programs = [following for word, following in pairwise(words) if word in runs]
    return bool(programs) and all(program in ("rm", "rmdir") for program in programs)


def may_be_option(words: Sequence[Word]) -> bool:
    """Whether a word that is known only at run time could be an option."""
    return None in (words[: words.index("--")] if "--" in words else words)


def landings(paths: Collection[Path]) -> list[Path]:
    """Where files may come to lie that are copied or moved into the folders among `paths`."""
    found: list[Path] = []
    folders = [path for path in paths if is_folder(path)]
    for path in paths:
        names = [path.name]
        with contextlib.suppress(OSError):
            # `cp -r FROM/. TO` copies what is inside.
            names += [inner.name for inner in path.iterdir() if inner.name.startswith(".")]
        found += [folder / name for folder in folders if folder != path for name in names]
    return found


def has_extra_operand(program: str, words: Sequence[Word]) -> bool:
    """`uniq FROM TO` writes a file, `date 01010000` the clock."""
    if program == "uniq":
        return num_operands(words, "-f", "-s", "-w") > 1
    values = ("-d", "-r", "-f", "--date", "--reference", "--file")
    return num_operands(words, *values) > sum(word is not None and word[:1] == "+" for word in words)


def num_operands(words: Sequence[Word], *with_value: str) -> int:
    """Words that are neither options nor the values of those in `with_value`."""
    before: Word = ""
    count = 0
    for word in words:
        count += (word is None or not word.startswith("-") or word == "-") and before not in with_value
        before = word
    return count


def is_option(word: Word, name: str) -> bool:
    """Whether `word` is the option `name`: with its value attached, in a bunch, or shortened if long."""
    if word is None:
        return False
    if name.startswith("--"):
        text = word.split("=", 1)[0]
        return len(text) > 2 and name.startswith(text)
    # What follows `-I` is its value: date -Iseconds.
    return re.match(r"-(?!I)[a-zA-Z]*?" + re.escape(name[1:]), word) is not None


def is_of_system(word: Word) -> bool:
    """Whether a program is looked for in PATH, or named where the system keeps its own."""
    return word is not None and ("/" not in word or word.rpartition("/")[0] in SYSTEM_FOLDERS)


def asks_version(words: Sequence[Word]) -> bool:
    return len(words) == 1 and words[0] in ("--version", "-V", "--help")


def runs_text(words: Sequence[Word]) -> bool:
    """Whether a shell with these words runs a text (`-c`), which is judged, and nothing else."""
    for word in words:
        if word is None or not PLAIN_SHELL.fullmatch(word):
            return word is not None and re.fullmatch(r"-[efhluvxn]*c[efhluvxn]*", word) is not None
    return False
