"""What is known of git: which commands only look, and which throw work away or reach others."""

from __future__ import annotations

import re
from collections.abc import Callable

from k3agent.agent.shell_programs import names
from k3agent.agent.shell_syntax import SimpleCommand, Word

READERS = names(
    """
    status log diff show rev-parse ls-files blame grep describe shortlog cat-file ls-tree merge-base
    rev-list name-rev for-each-ref whatchanged version help
    """
)
# Settings whose value is a program, a folder of programs or another file of settings.
RUNNING_KEYS = re.compile(
    r"(?i)(alias|pager|include|includeif|filter|difftool|mergetool|credential|url|gpg|uploadpack|trailer)\."
    r"|core\.(hookspath|fsmonitor|pager|editor|sshcommand|askpass|attributesfile|worktree|gitproxy|alternaterefs)"
    r"|(diff|merge)\..*(external|command|textconv|driver|tool)|sequence\.editor|interactive\.difffilter"
    r"|(remote|submodule)\..*\.(vcs|uploadpack|receivepack|update|proxy)|protocol\."
)
# Options of git itself without a value. The others name what it works on or with, some in the next word.
PLAIN_OPTIONS = names(
    """
    -p --paginate -P --no-pager -v --version -h --help --html-path --man-path --info-path --no-advice
    --no-replace-objects --no-lazy-fetch --no-optional-locks --literal-pathspecs --glob-pathspecs
    --noglob-pathspecs --icase-pathspecs
    """
)
WRITING_OPTIONS = (
    "--output",
    "--output-directory",
    "--open-files-in-pager",
    "--ext-diff",
    "--textconv",
    "--filters",
)
LOST = "it throws away uncommitted work"
GONE = "it makes lost commits unrecoverable"
REWRITES = "it overwrites or deletes what others may have"
# Subcommand, first word ('' for any), options of which one must be there (none: always), options that make it
# harmless, and why it is asked about. The first row that fits counts.
DANGERS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], str], ...] = (
    ("reset", "", ("--hard", "--merge"), (), LOST),
    ("clean", "", ("-f", "--force"), ("-n", "--dry-run"), "it deletes files that git does not know"),
    ("checkout", "", ("-f", "--force"), (), LOST),
    ("restore", "", ("--worktree", "-W"), (), LOST),
    ("restore", "", (), ("--staged", "-S"), LOST),
    ("switch", "", ("-f", "--force", "--discard-changes"), (), LOST),
    ("stash", "drop", (), (), "it drops stashed work"),
    ("stash", "clear", (), (), "it drops stashed work"),
    ("branch", "", ("-D",), (), "it deletes a branch that may not be merged"),
    ("push", "", ("-f", "--force", "--force-with-lease", "--delete", "--mirror", "-d"), (), REWRITES),
    ("push", "", (), (), "it publishes commits"),
    ("worktree", "remove", ("-f", "--force"), (), LOST),
    ("rm", "", ("-f", "--force"), (), LOST),
    ("filter-branch", "", (), (), "it rewrites history"),
    ("filter-repo", "", (), (), "it rewrites history"),
    ("update-ref", "", ("-d",), (), "it deletes a reference"),
    ("reflog", "expire", (), (), GONE),
    ("reflog", "delete", (), (), GONE),
    ("gc", "", ("--prune",), (), GONE),
    ("config", "", ("--global", "--system", "--file", "-f"), (), "it changes settings outside the workspace"),
    ("grep", "", ("-O", "--open-files-in-pager"), (), "it runs a program that was not looked at"),
    ("difftool", "", ("-x", "--extcmd"), (), "it runs a program that was not looked at"),
    ("submodule", "foreach", (), (), "it runs a text that was not looked at"),
)


def danger(simple: SimpleCommand, names_file: Callable[[list[str]], bool]) -> str | None:
    """Why this git command is asked about in every mode, or None. `names_file`: does a word name a file
    here?
    """
    sub, words, option = parts_of(simple)
    if option:
        return f"the option {option} can make git run or touch anything"
    if sub is None:
        return "which git command it is, is known only at run time"
    texts = [word or "" for word in words]
    if sub == "checkout" and ("--" in texts or names_file(texts)):
        return LOST
    if sub == "branch" and _has(texts, ("-d", "--delete")) and _has(texts, ("-f", "--force")):
        return "it deletes a branch that may not be merged"
    if sub == "grep" and any(re.match(r"-[a-zA-Z]*O", text) for text in texts):
        return "it runs a program that was not looked at"
    if sub == "config" and not is_reading(simple) and any(RUNNING_KEYS.match(text) for text in texts):
        return "git runs what this setting says"
    if sub == "push" and any(text.startswith(("+", ":")) for text in texts):
        return REWRITES
    for name, first, needed, excused, why in DANGERS:
        if sub != name or (first and texts[:1] != [first]):
            continue
        if (not needed or _has(texts, needed)) and not _has(texts, excused):
            return why
    return None


def _has(texts: list[str], names: tuple[str, ...]) -> bool:
    return any(_is_option(text, name) for text in texts for name in names)


def _is_option(text: str, name: str) -> bool:
    """Git takes unique beginnings of long options, and short ones in a bunch."""
    if name.startswith("--"):
        text = text.split("=", 1)[0]
        return text == name or (len(text) > 4 and name.startswith(text))
    return re.fullmatch(r"-[a-zA-Z]+", text) is not None and name[1] in text


def parts_of(simple: SimpleCommand) -> tuple[Word, tuple[Word, ...], str]:
    """Subcommand, its words, and a global option that forbids a judgement ('' if there is none)."""
    words = simple.words[1:]
    index = 0
    while index < len(words):
        word = words[index]
        if word is None or not word.startswith("-"):
            break
        if word not in PLAIN_OPTIONS:
            return "", (), word
        index += 1
    if index == len(words):
        return "help", (), ""
    return words[index], words[index + 1 :], ""


def is_reading(simple: SimpleCommand) -> bool:
    sub, words, options = parts_of(simple)
    if options or sub is None:
        return False
    texts = [word or "" for word in words]
    if any(
        re.match(r"-[a-zA-Z]*O", text) or _is_option(text, name) for text in texts for name in WRITING_OPTIONS
    ):
        return False
    if sub in READERS:
        return True
    if sub == "branch":
        return all(text in ("-a", "-r", "-v", "-vv", "--list", "--show-current", "--all") for text in texts)
    if sub == "remote":
        return texts in ([], ["-v"])
    if sub == "reflog":
        return texts[:1] in ([], ["show"]) or (texts[0].startswith("-") and "--rewrite" not in texts)
    if sub == "stash":
        return texts[:1] in (["list"], ["show"])
    if sub == "tag":
        return texts == [] or texts[0] in ("-l", "--list")
    return sub == "config" and texts[:1] in (["--get"], ["--list"], ["-l"])
