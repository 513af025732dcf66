"""Takes a shell command apart with the Bash grammar: every simple command of it, wherever it stands.

Lists, pipes, substitutions, loops, functions and here-documents are walked; `env`, `xargs`, `bash -c` and
their like are followed to the command that they run. What the grammar cannot read is a problem, and a
problem is asked about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from k3agent.agent import shell_texts, shell_values
from k3agent.agent.shell_wrappers import (
    TEXT_OPTIONS,
    WITH_OPERAND,
    WITH_VALUE,
    WITHOUT_VALUE,
    Word,
    after_options,
    after_replacing,
)

MAX_DEPTH = 4
MAX_COMMANDS = 2_000
# Of texts that variables are given, and of what unknown words may be: looking at more would take too long.
MAX_VALUES = 500
MAX_GUESSES = 5_000
# The feeders of a command whose unknown words are nothing but what `find` has found.
FOUND = ("find",)


@dataclass(frozen=True, slots=True)
class Redirect:
    """`maybe`: what an unknown target may be, as far as the command's text shows."""

    operator: str
    target: Word
    maybe: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """`words[0]` is the program. `is_fed`: its standard input comes from a pipe, here-document or file.
    `feeder`: the program before it in the pipe. `env`: names of variables set in front of it. `is_passed`:
    another program runs it, so it cannot be one of the shell's functions. `maybe`: what its unknown words
    may be, as far as the command's text shows.
    """

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    is_fed: bool = False
    feeders: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    is_passed: bool = False
    maybe: tuple[str, ...] = ()

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
    """`problem` says why a command cannot be judged; then `commands` may be incomplete. `assigned`: names of
    variables that it sets for all that follows; `values`: texts that it gives to variables. `hidden`: why a
    value may be run as a command, or "".
    """

    commands: list[SimpleCommand] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    problem: str | None = None
    hidden: str = ""
    values: shell_values.Values = field(default_factory=dict)
    num_guesses: int = 0


@cache
def _parser() -> Any:
    import tree_sitter_bash  # lazy: 30 ms with tree_sitter
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(command: str) -> ParsedCommand:
    """All simple commands in the order of the text, those run by wrappers included."""
    found = ParsedCommand()
    try:
        _parse_into(command, found, 0)
    except RecursionError:
        found.problem = "its parts are nested too deeply"
    except UnicodeEncodeError:
        found.problem = "it contains half a surrogate pair"
    return found


def _parse_into(command: str, found: ParsedCommand, depth: int) -> None:
    if depth > MAX_DEPTH:
        found.problem = "shells within shells, too deep"
        return
    if "\0" in command:
        found.problem = "it contains a NUL character"
        return
    if _SPLIT_WORD.search(command):
        # The grammar takes it for two words, bash for one.
        found.problem = "a word goes on in the next line"
        return
    tree = _parser().parse(command.encode())
    if shell_texts.is_deep(tree.root_node):
        found.problem = "its parts are nested too deeply"
        return
    if tree.root_node.has_error:
        found.problem = "the shell syntax is not understood"
    elif not shell_texts.are_all_seen(tree.root_node, command.encode()):
        found.problem = "it holds a command in a place that is not understood"
    found.hidden = found.hidden or shell_texts.hidden(tree.root_node)
    shell_values.collect(tree.root_node, found.values)
    if len(shell_values.texts_of(found.values)) > MAX_VALUES:
        found.problem = f"it gives its variables more than {MAX_VALUES} values"
        return
    before = len(found.commands)
    _walk(tree.root_node, found, ())
    for simple in found.commands[before:]:
        _follow(simple, found, depth)


def _walk(node: Any, found: ParsedCommand, feeders: tuple[str, ...]) -> None:
    """Collect the simple commands below `node`. `feeders`: programs that write into this part's standard
    input.
    """
    if len(found.commands) > MAX_COMMANDS:
        found.problem = f"it holds more than {MAX_COMMANDS} commands"
        return
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
        _walk_parts_of_command(node, found)
        return
    if kind == "function_definition":
        name = node.child_by_field_name("name")
        if name is not None:
            found.functions.add(name.text.decode())
    elif kind in ("variable_assignment", "for_statement"):
        name = node.child_by_field_name("name" if kind == "variable_assignment" else "variable")
        if name is not None:
            found.assigned.add(name.text.decode())
    elif kind == "unset_command" or (
        kind == "expansion" and any(child.type in ("=", ":=") for child in node.children)
    ):
        # Without a PATH the shell takes what is in the folder.
        names = [
            child for child in node.named_children if kind != "expansion" or child.type == "variable_name"
        ]
        found.assigned |= {_word(child) or child.text.decode() for child in names}
    elif kind == "file_redirect":
        # Only those that hang below no statement come here: a function's, which are in force at each call.
        found.redirects.append(_redirect(node, found))
    for child in node.named_children:
        _walk(child, found, feeders)


def _walk_parts_of_command(node: Any, found: ParsedCommand) -> None:
    """Substitutions in a command's words; its own redirections and assignments are read by `_simple`."""
    for child in node.named_children:
        if child.type in ("command_name", "variable_assignment", "file_redirect"):
            _walk_inside(child, found)
        else:
            _walk(child, found, ())


def _redirect(node: Any, found: ParsedCommand) -> Redirect:
    operator = next((part.type for part in node.children if not part.is_named), ">")
    target = node.child_by_field_name("destination")
    word = None if target is None else _word(target)
    return Redirect(operator, word, () if target is None or word is not None else _maybe(target.text, found))


def _maybe(text: bytes, found: ParsedCommand) -> tuple[str, ...]:
    if found.num_guesses > MAX_GUESSES:
        found.problem = "its variables may stand for too much"
        return ()
    guesses = shell_values.expand(text.decode("utf-8", "replace"), found.values)
    found.num_guesses += len(guesses)
    return guesses


def _words_behind(node: Any) -> list[Word]:
    """The grammar takes all words behind `> FILE` for targets; to the shell they are the command's."""
    return [_word(part) for part in node.children_by_field_name("destination")[1:]]


def _walk_inside(node: Any, found: ParsedCommand) -> None:
    """Substitutions inside a word."""
    for child in node.named_children:
        _walk(child, found, ())


def _walk_redirected(node: Any, found: ParsedCommand, feeders: tuple[str, ...]) -> None:
    redirects: list[Redirect] = []
    behind: list[Word] = []
    fed = feeders
    for child in node.named_children:
        if child.type in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
            operator = "<<"
            if child.type == "file_redirect":
                redirects.append(_redirect(child, found))
                behind += _words_behind(child)
                operator = redirects[-1].operator
            behind += [_word(part) for part in child.children_by_field_name("argument")]
            if operator.startswith("<"):
                fed = (*fed, "<")
            for part in child.named_children:
                # The grammar hangs what follows on the line of `<<EOF` below the here-document.
                if part.type == "file_redirect":
                    redirects.append(_redirect(part, found))
                    behind += _words_behind(part)
                    _walk_inside(part, found)
                    continue
                _walk(part, found, () if part.type in ("heredoc_body", "word") else (*feeders, "<"))
    body = node.child_by_field_name("body")
    if body is None:
        found.redirects.extend(redirects)
        return
    if body.type == "command":
        simple = _simple(body, tuple(redirects), fed, found)
        found.commands.append(replace(simple, words=(*simple.words, *behind)))
        _walk_parts_of_command(body, found)
        return
    found.redirects.extend(redirects)
    _walk(body, found, fed)
    if behind:
        # `a && b > FILE words` has the whole list as its body; the words are those of its last command.
        last = body
        while last.type in ("list", "pipeline", "negated_command") and last.named_children:
            last = last.named_children[-1]
        if last.type == "command":
            simple = _simple(last, (), fed, found)
            found.commands.append(replace(simple, words=(*simple.words, *behind)))


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
    maybe: tuple[str, ...] = ()
    for child in node.named_children:
        if child.type == "variable_assignment":
            name = child.child_by_field_name("name")
            env.append("" if name is None else name.text.decode())
        elif child.type in ("file_redirect",):
            own.append(_redirect(child, found))
        elif child.type in ("heredoc_redirect", "herestring_redirect"):
            feeders = (*feeders, "<")
        elif child.type == "command_name":
            words.append(_word(child.named_children[0]) if child.named_children else child.text.decode())
        elif child.type != "comment":
            # The grammar parts `$x/$a$b/y` before the `b`; to the shell it is one word.
            before = child.prev_sibling if words else None
            is_parted = before is not None and before.end_byte == child.start_byte
            word = None if is_parted else _word(child)
            words[-1 if is_parted else len(words) :] = [word]
            if word is None:
                text = child.text if before is None or not is_parted else before.text + child.text
                maybe += _maybe(text, found)
    return SimpleCommand(tuple(words), tuple(own), bool(feeders), feeders, tuple(env), maybe=maybe)


def _word(node: Any) -> Word:
    """The text that the shell would pass on, quotes removed; None when only known at run time."""
    kind = node.type
    text: str = node.text.decode("utf-8", "replace")
    if kind in ("number", "word", "extglob_pattern", "regex"):
        if re.search(r"(?<!\\)[{}]", text) and shell_texts.is_braced(text):
            return None
        return re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""), flags=re.DOTALL)
    if kind == "raw_string":
        return text[1:-1]
    if kind in ("string", "concatenation", "simple_expansion", "expansion"):
        home = _HOME.match(text)
        if home is not None and not re.search(r"[$`{}]", text[home.end() :]):
            # Quotes inside are not names' characters; that it may be too strict does no harm.
            return "~" + re.sub(r"[\"']", "", text[home.end() :])
    if kind == "string":
        if all(child.type == "string_content" for child in node.named_children):
            return re.sub(r'\\([$`"\\])', r"\1", text[1:-1].replace("\\\n", ""))
        return None
    if kind == "concatenation":
        pieces = [_word(child) for child in node.children]
        if any(piece is None for piece in pieces):
            return None
        joined = "".join(piece or "" for piece in pieces)
        return None if shell_texts.is_braced(text) else joined
    if kind == "command_name" and node.named_children:
        return _word(node.named_children[0])
    if kind in ("{", "}", "[", "]", "=", "=="):
        return text
    return None


_SPLIT_WORD = re.compile(r"""[\w"'./~$)}-]\\\n[\w"'./~$({-]""")
_HOME = re.compile(r'"?\$(HOME\b|\{HOME\})"?(?=/|"?$)')
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})


def _follow(simple: SimpleCommand, found: ParsedCommand, depth: int) -> None:
    """Add the commands that `simple` runs in its turn."""
    program = simple.program
    if program is None:
        return
    rest = simple.words[1:]
    _follow_text(simple, found, depth)
    if program == "watch":
        # A shell gets its words as one text.
        texts = after_options(rest, WITH_VALUE[program], None)
        if None in texts:
            found.problem = "watch runs a text that is known only at run time"
        _parse_into(" ".join(text or "" for text in texts), found, depth + 1)
    if program in SHELLS or program == "eval":
        _follow_shell(simple, found, depth)
    elif program == "find":
        _follow_find(rest, simple.maybe, found, depth)
    elif program in WITH_VALUE:
        env = simple.env
        words = after_options(rest, WITH_VALUE[program], WITHOUT_VALUE.get(program))
        if program in WITH_OPERAND and words:
            words = words[1:]
        if program == "env":
            words, names = _after_variables(rest, words, found)
            env = (*env, *names)
        if program == "xargs":
            words = after_replacing(rest, words)
        if words:
            feeders = () if program == "xargs" else simple.feeders
            passed = SimpleCommand(words, (), bool(feeders), feeders, env, True, simple.maybe)
            _add(passed, found, depth)


def _follow_find(rest: tuple[Word, ...], maybe: tuple[str, ...], found: ParsedCommand, depth: int) -> None:
    for index, word in enumerate(rest):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            stop = next((at for at in range(index + 1, len(rest)) if rest[at] in (";", "+")), len(rest))
            inner = rest[index + 1 : stop]
            words = tuple(None if part is None or "{}" in part else part for part in inner)
            feeders = ("find", "?") if None in inner else FOUND
            _add(SimpleCommand(words, (), False, feeders, (), True, maybe), found, depth)


def _after_variables(
    rest: tuple[Word, ...], words: tuple[Word, ...], found: ParsedCommand
) -> tuple[tuple[Word, ...], list[str]]:
    """What `env` runs, and the names that it sets; its options that hide what or where are a problem."""
    names: list[str] = []
    own = [word or "" for word in rest[: len(rest) - len(words)]]
    if any(re.match(r"-[a-zA-Z]*S|--s", word) for word in own):
        found.problem = "env -S builds a command from text"
    if any(re.match(r"-[a-zA-Z]*C|--c", word) for word in own):
        found.problem = "env -C runs in another folder"
    while words and isinstance(words[0], str) and re.match(r"\w+=", words[0]):
        names.append(words[0].partition("=")[0])
        words = words[1:]
    return words, names


def _follow_text(simple: SimpleCommand, found: ParsedCommand, depth: int) -> None:
    """What a program runs that gets it as one word: `trap 'text' EXIT`, `script -c text`."""
    program, rest = simple.program or "", simple.words[1:]
    texts: list[Word] = []
    if program == "trap":
        texts = [word for word in rest if word is None or not word.startswith("-")][:1]
    for option in TEXT_OPTIONS.get(program, ()):
        for index, word in enumerate(rest):
            if word is None or not word.startswith("-"):
                continue
            if word.startswith(option + "=") or (
                len(word) > 2 and not option.startswith("--") and word[:2] == option
            ):
                texts.append(word[len(option) :].removeprefix("="))
            elif word == option or (option[1:2] == word[-1:] and re.fullmatch(r"-[a-zA-Z]+", word)):
                texts += rest[index + 1 : index + 2]
    for text in texts:
        if text is None:
            found.problem = f"{program} runs a text that is known only at run time"
        else:
            _parse_into(text, found, depth + 1)


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


def _add(simple: SimpleCommand, found: ParsedCommand, depth: int) -> None:
    if depth > MAX_DEPTH:
        found.problem = "commands within commands, too deep"
        return
    found.commands.append(simple)
    _follow(simple, found, depth + 1)
