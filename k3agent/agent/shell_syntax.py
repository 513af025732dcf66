"""Takes a shell command apart with the Bash grammar: every simple command of it, wherever it stands.

Lists, pipes, substitutions, loops, functions and here-documents are walked; `env`, `xargs`, `bash -c` and
their like are followed to the command that they run. What the grammar cannot read is a problem, and a
problem is asked about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

MAX_DEPTH = 4

Word = str | None
"""A word's text, or None when it depends on what is known only at run time."""


@dataclass(frozen=True, slots=True)
class Redirect:
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """`words[0]` is the program. `is_fed`: its standard input comes from a pipe, here-document or file.
    `feeder`: the program before it in the pipe. `env`: names of variables set in front of it.
    """

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    is_fed: bool = False
    feeders: tuple[str, ...] = ()
    env: tuple[str, ...] = ()

    @property
    def program(self) -> Word:
        """The program's name without its folder."""
        if not self.words or self.words[0] is None:
            return None
        return self.words[0].rsplit("/", 1)[-1]

    @property
    def text(self) -> str:
        """One line for rules and people; `…` stands for what is not known."""
        return " ".join("…" if word is None else word for word in self.words)


@dataclass(slots=True)
class ParsedCommand:
    """`problem` says why a command cannot be judged; then `commands` may be incomplete."""

    commands: list[SimpleCommand] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    problem: str | None = None


@cache
def _parser() -> Any:
    import tree_sitter_bash  # lazy: 30 ms with tree_sitter
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(command: str) -> ParsedCommand:
    """All simple commands in the order of the text, those run by wrappers included."""
    found = ParsedCommand()
    _parse_into(command, found, 0)
    return found


def _parse_into(command: str, found: ParsedCommand, depth: int) -> None:
    if depth > MAX_DEPTH:
        found.problem = "shells within shells, too deep"
        return
    if "\0" in command:
        found.problem = "it contains a NUL character"
        return
    tree = _parser().parse(command.encode())
    if tree.root_node.has_error:
        found.problem = "the shell syntax is not understood"
    before = len(found.commands)
    _walk(tree.root_node, found, ())
    for simple in found.commands[before:]:
        _follow(simple, found, depth)


def _walk(node: Any, found: ParsedCommand, feeders: tuple[str, ...]) -> None:
    """Collect the simple commands below `node`. `feeders`: programs that write into this part's standard
    input.
    """
    kind = node.type
    if kind == "pipeline":
        before = feeders
        for child in node.named_children:
            _walk(child, found, before)
            before = (*before, *_programs(child))
        return
    if kind == "redirected_statement":
        _walk_redirected(node, found, feeders)
        return
    if kind == "command":
        found.commands.append(_simple(node, (), feeders, found))
    elif kind == "function_definition":
        name = node.child_by_field_name("name")
        if name is not None:
            found.functions.add(name.text.decode())
    elif kind in ("declaration_command", "unset_command", "test_command", "variable_assignment"):
        pass
    for child in node.named_children:
        if kind == "command" and child.type == "command_name":
            _walk_inside(child, found)
            continue
        _walk(child, found, feeders if kind != "command" else ())


def _walk_inside(node: Any, found: ParsedCommand) -> None:
    """Substitutions inside a word."""
    for child in node.named_children:
        _walk(child, found, ())


def _walk_redirected(node: Any, found: ParsedCommand, feeders: tuple[str, ...]) -> None:
    redirects: list[Redirect] = []
    fed = feeders
    for child in node.named_children:
        if child.type in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
            operator = next((part.type for part in child.children if not part.is_named), "<<")
            target = child.child_by_field_name("destination")
            if child.type == "file_redirect":
                redirects.append(Redirect(operator, None if target is None else _word(target)))
            if operator.startswith("<"):
                fed = (*fed, "<")
            for part in child.named_children:
                # The grammar hangs what follows on the line of `<<EOF` below the here-document.
                _walk(part, found, () if part.type in ("heredoc_body", "word") else (*feeders, "<"))
    body = node.child_by_field_name("body")
    if body is None:
        found.redirects.extend(redirects)
        return
    if body.type == "command":
        found.commands.append(_simple(body, tuple(redirects), fed, found))
        for child in body.named_children:
            _walk_inside(child, found) if child.type == "command_name" else _walk(child, found, ())
        return
    found.redirects.extend(redirects)
    _walk(body, found, fed)


def _programs(node: Any) -> tuple[str, ...]:
    """Names of the programs directly below `node`, for what feeds a pipe."""
    if node.type == "command":
        name = node.child_by_field_name("name")
        return () if name is None else (name.text.decode().rsplit("/", 1)[-1],)
    names: tuple[str, ...] = ()
    for child in node.named_children:
        names += _programs(child)
    return names


def _simple(
    node: Any, redirects: tuple[Redirect, ...], feeders: tuple[str, ...], found: ParsedCommand
) -> SimpleCommand:
    words: list[Word] = []
    env: list[str] = []
    own: list[Redirect] = list(redirects)
    for child in node.named_children:
        if child.type == "variable_assignment":
            name = child.child_by_field_name("name")
            env.append("" if name is None else name.text.decode())
        elif child.type in ("file_redirect",):
            operator = next((part.type for part in child.children if not part.is_named), ">")
            target = child.child_by_field_name("destination")
            own.append(Redirect(operator, None if target is None else _word(target)))
        elif child.type in ("heredoc_redirect", "herestring_redirect"):
            feeders = (*feeders, "<")
        elif child.type == "command_name":
            words.append(_word(child.named_children[0]) if child.named_children else child.text.decode())
        elif child.type != "comment":
            words.append(_word(child))
    return SimpleCommand(tuple(words), tuple(own), bool(feeders), feeders, tuple(env))


def _word(node: Any) -> Word:
    """The text that the shell would pass on, quotes removed; None when only known at run time."""
    kind = node.type
    text: str = node.text.decode("utf-8", "replace")
    if kind in ("number", "word", "extglob_pattern", "regex"):
        if re.search(r"(?<!\\)[{}]", text) and re.search(r"\{[^}]*(,|\.\.)[^}]*\}", text):
            return None
        return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
    if kind == "raw_string":
        return text[1:-1]
    if kind == "string":
        if all(child.type == "string_content" for child in node.named_children):
            return re.sub(r'\\([$`"\\\n])', r"\1", text[1:-1])
        return None
    if kind == "concatenation":
        pieces = [_word(child) for child in node.children]
        if any(piece is None for piece in pieces):
            return None
        joined = "".join(piece or "" for piece in pieces)
        return None if re.search(r"\{[^}]*(,|\.\.)[^}]*\}", text) else joined
    if kind == "command_name" and node.named_children:
        return _word(node.named_children[0])
    if kind in ("{", "}", "[", "]", "=", "=="):
        return text
    return None


# Programs that run another command: how many of their own words come first is found by skipping options.
_WITH_VALUE = {
    "env": {"-u", "-C", "-S", "--unset", "--chdir"},
    "nice": {"-n"},
    "timeout": {"-s", "-k", "--signal", "--kill-after"},
    "xargs": {"-I", "-n", "-P", "-L", "-d", "-a", "-E", "-s"},
    "time": {"-o", "-f"},
    "stdbuf": {"-i", "-o", "-e"},
    "ionice": {"-c", "-n"},
    "nohup": set(),
    "setsid": set(),
    "command": set(),
    "builtin": set(),
    "exec": {"-a"},
    "busybox": set(),
    "unbuffer": set(),
    "watch": {"-n", "--interval"},
    "flock": {"-w", "-E"},
    "chrt": set(),
    "parallel": {"-j", "--jobs"},
}
_RUNS_TEXT = re.compile(r"-[a-z]*c[a-z]*")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})


def _follow(simple: SimpleCommand, found: ParsedCommand, depth: int) -> None:
    """Add the commands that `simple` runs in its turn."""
    program = simple.program
    if program is None:
        return
    rest = simple.words[1:]
    if program in SHELLS or program == "eval":
        _follow_shell(simple, found, depth)
    elif program == "find":
        for index, word in enumerate(rest):
            if word in ("-exec", "-execdir", "-ok", "-okdir"):
                stop = next((at for at in range(index + 1, len(rest)) if rest[at] in (";", "+")), len(rest))
                words = tuple(None if part == "{}" else part for part in rest[index + 1 : stop])
                _add(SimpleCommand(words, (), False, ("find",)), found, depth)
    elif program in _WITH_VALUE:
        words = _after_options(rest, _WITH_VALUE[program])
        if program in ("timeout", "flock") and words:
            words = words[1:]
        if program == "env":
            if any(isinstance(word, str) and word.startswith(("-S", "--split-string")) for word in rest):
                found.problem = "env -S builds a command from text"
            while words and isinstance(words[0], str) and re.match(r"\w+=", words[0]):
                words = words[1:]
        if program == "xargs":
            # The words that come from the pipe are not known.
            words = (*words, None) if words else ()
        if words:
            feeders = () if program == "xargs" else simple.feeders
            _add(SimpleCommand(words, (), bool(feeders), feeders, simple.env), found, depth)


def _follow_shell(simple: SimpleCommand, found: ParsedCommand, depth: int) -> None:
    rest = simple.words[1:]
    if simple.program == "eval":
        script: Word = None if any(word is None for word in rest) else " ".join(word or "" for word in rest)
    else:
        at = next(
            (
                i
                for i, word in enumerate(rest)
                if isinstance(word, str) and re.fullmatch(r"-[a-z]*c[a-z]*", word)
            ),
            None,
        )
        if at is None:
            return
        script = rest[at + 1] if at + 1 < len(rest) else None
    if script is None:
        found.problem = f"{simple.program} runs a text that is known only at run time"
        return
    _parse_into(script, found, depth + 1)


def _after_options(words: tuple[Word, ...], with_value: set[str]) -> tuple[Word, ...]:
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[index + 1 :]
        if word is None or not word.startswith("-") or word == "-":
            return words[index:]
        index += 2 if word in with_value else 1
    return ()


def _add(simple: SimpleCommand, found: ParsedCommand, depth: int) -> None:
    if depth > MAX_DEPTH:
        found.problem = "commands within commands, too deep"
        return
    found.commands.append(simple)
    _follow(simple, found, depth + 1)
