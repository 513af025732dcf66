"""What the model may write next, so that its markup is always well-formed.

Think, response and argument bodies are free. Everything around them is forced or a choice among few
spellings: the tags, the names of declared tools, their parameters (required ones present, none twice), the
types that the schema allows, the running index. The state machine is a generator that yields what is
allowed and receives what was chosen; runs with a single possibility need no sampling and go through the
model in one step.
"""

import json
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from k3agent.backend.chat.template import Channel, json_type
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.json_grammar import JsonWalk, schemas_of
from k3agent.backend.errors import GrammarError

if TYPE_CHECKING:
    # the server imports this module, and never torch
    from torch import Tensor

MAX_VALUES = 10_000
"""More values that several branches of a schema list together are not held to."""
ALL_TYPES = ("string", "number", "boolean", "null", "object", "array")
_INTEGER = (re.compile(rb"-?(?:0|[1-9]\d*)?"), re.compile(rb"-?(?:0|[1-9]\d*)"))
_NUMBER = (
    re.compile(rb"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:(?<=\d)[eE][+-]?\d*)?)?"),
    re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"),
)


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What a request asks of the grammar; plain data, so that it can go through the pipe."""

    tools: tuple[dict[str, Any], ...] = ()
    channel: Channel = "think"
    tool_choice: str = "auto"
    parallel_calls: bool = True
    json_schema: str | None = None
    """A JSON schema, as text, that the response must fit; `{"type": "object"}` for any object."""


@dataclass(frozen=True, slots=True)
class Free:
    """Any token except `banned`."""

    banned: frozenset[int]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Only these tokens."""

    ids: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """All tokens but those that `is_forbidden`, [V], marks."""

    is_forbidden: "Tensor"


Allowed = Free | OneOf | Masked
_Walk = Generator[Allowed, int, None]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool: the types its value may have, and its values if they are listed."""

    types: tuple[str, ...] = ALL_TYPES
    is_integer: bool = False
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolShape:
    """A declared tool as the grammar needs it."""

    name: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    takes_more: bool = False
    """Keys beyond `parameters` are allowed."""

    @classmethod
    def from_declaration(cls, tool: dict[str, Any]) -> "ToolShape":
        """From an OpenAI-style declaration; what its schema does not say is not restricted."""
        function = tool.get("function") or {}
        schema = function.get("parameters") or {}
        properties = schema.get("properties")
        read = _Types(schema)
        parameters = (
            {str(key): read.parameter(value) for key, value in properties.items()}
            if isinstance(properties, dict)
            else {}
        )
        listed = schema.get("required")
        names = listed if isinstance(listed, list) else []
        required = frozenset(key for key in names if isinstance(key, str) and key in parameters)
        takes_more = bool(schema.get("additionalProperties", False)) or (schema != {} and properties is None)
        return cls(str(function.get("name") or ""), parameters, required, takes_more)


class _Types:
    """Reads types and values off the schemas of one tool: each reference once, or a few that lead to each
    other would take longer than any request may.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, tuple[set[str], list[Any]]] = {}

    def parameter(self, schema: Any) -> Parameter:
        types, values = self._of(schema, 0)
        names = tuple(
            name for name in ALL_TYPES if name in types or (name == "number" and "integer" in types)
        )
        return Parameter(names or ALL_TYPES, "integer" in types and "number" not in types, tuple(values))

    def _of(self, schema: Any, depth: int) -> tuple[set[str], list[Any]]:
        """JSON-schema types of a value (empty: any), and its values if the schema lists all of them."""
        if not isinstance(schema, dict) or depth > 8:
            return set(), []
        match schema:
            case {"const": value}:
                return {json_type(value)}, [value]
            case {"enum": list(values)} if values:
                return {json_type(value) for value in values}, list(values)
            case {"$ref": str(ref)}:
                if ref not in self._known:
                    # what leads back to itself says nothing
                    self._known[ref] = set(), []
                    self._known[ref] = self._of(self._target(ref), depth + 1)
                return self._known[ref]
            case {"anyOf": list(branches)} | {"oneOf": list(branches)} if branches:
                return self._of_any(branches, depth)
            case {"type": str(name)}:
                return {name}, []
            case {"type": list(names)}:
                return {str(name) for name in names}, []
        return set(), []

    def _target(self, ref: str) -> Any:
        target: Any = self._root
        for step in ref.removeprefix("#").strip("/").split("/") if ref != "#" else ():
            target = target.get(step) if isinstance(target, dict) else None
        return target

    def _of_any(self, branches: list[Any], depth: int) -> tuple[set[str], list[Any]]:
        parts = [self._of(branch, depth + 1) for branch in branches]
        if not all(types for types, _ in parts):
            return set(), []
        types = set[str]().union(*(types for types, _ in parts))
        is_listed = all(values or types == {"null"} for types, values in parts)
        if not is_listed or sum(len(values) for _, values in parts) > MAX_VALUES:
            return types, []
        return types, [value for _, values in parts for value in (values or [None])]


class Grammar:
    """The state of one answer. Use: `forced`, then `allowed` to mask, then `advance` with the sampled id."""

    def __init__(self, tokenizer: Tokenizer, spec: GrammarSpec) -> None:
        self.is_done = False
        self._tokenizer = tokenizer
        self._words = words_of(tokenizer)
        self._spec = spec
        self._json = schemas_of(tokenizer).walk(spec.json_schema) if spec.json_schema is not None else None
        self._tools = {tool.name: tool for tool in map(ToolShape.from_declaration, spec.tools) if tool.name}
        self._walk = self._answer()
        self._allowed: Allowed = next(self._walk)

    @property
    def allowed(self) -> Allowed:
        return self._allowed

    def advance(self, token_id: int) -> None:
        """Take the next token; it must be an allowed one."""
        allowed = self._allowed
        match allowed:
            case OneOf(ids):
                is_allowed = token_id in ids
            case Free(banned):
                is_allowed = token_id not in banned
            case Masked(is_forbidden):
                is_allowed = not is_forbidden[token_id]
        if self.is_done or not is_allowed:
            raise GrammarError(f"token {token_id} does not fit the grammar here")
        try:
            self._allowed = self._walk.send(token_id)
        except StopIteration:
            self.is_done = True

    def forced(self) -> list[int]:
        """Advance over all tokens that have no alternative, and return them."""
        run: list[int] = []
        while not self.is_done and isinstance(self._allowed, OneOf) and len(self._allowed.ids) == 1:
            (token_id,) = self._allowed.ids
            run.append(token_id)
            self.advance(token_id)
        return run

    # --- the answer, top down

    def _answer(self) -> _Walk:
        words = self._words
        if self._spec.channel == "think":
            yield from _free(words)
            yield from _exactly([*words.tag("think"), *words.opening("response")])
        may_call = bool(self._tools) and self._spec.tool_choice != "none"
        must_call = may_call and self._spec.tool_choice == "required"
        if self._json is None:
            yield from _free(words)
        elif (yield from _json_value(words, self._json, may_be_empty=may_call)):
            must_call = True
        yield from _exactly(words.tag("response"))
        if (yield from _choose(words, may_open=may_call, may_close=not must_call)):
            yield from _exactly(words.tag("tools"))
            yield from self._calls()
            yield from _exactly([*words.tag("tools"), words.close])
        yield from _exactly([*words.tag("message"), words.end])

    def _calls(self) -> _Walk:
        """All calls, up to and with the marker that begins to close the tools element."""
        words = self._words
        index = 1
        while True:
            if index == 1:
                yield from _exactly([words.open])
            elif not (yield from _choose(words, may_open=self._spec.parallel_calls)):
                return
            yield from self._call(index)
            index += 1

    def _call(self, index: int) -> _Walk:
        words = self._words
        yield from _exactly([*words.text("call"), *words.text(" tool"), *words.text('="')])
        tail = [*words.text('"'), *words.attribute("index", str(index)), words.sep]
        spellings = {name: (*words.text(_escape(name)), *tail) for name in self._tools}
        tool = self._tools[(yield from _spell(spellings))]
        missing = dict(tool.parameters)
        while True:
            may_open = bool(missing) or tool.takes_more
            if not (yield from _choose(words, may_open, may_close=not (tool.required & missing.keys()))):
                break
            yield from self._argument(tool, missing)
        yield from _exactly(words.tag("call"))

    def _argument(self, tool: ToolShape, missing: dict[str, Parameter]) -> _Walk:
        """One argument element; takes its key out of `missing`."""
        words = self._words
        yield from _exactly([*words.text("argument"), *words.text(" key"), *words.text('="')])
        if tool.takes_more and not tool.required & missing.keys():
            written = yield from _free(words, words.quote, words.no_quotes)
            parameter = missing.pop(self._tokenizer.decode(written), Parameter())
        else:
            heads = {key: (*words.text(_escape(key)), *words.text('"')) for key in missing}
            parameter = missing.pop((yield from _spell(heads)))
        yield from _exactly([*words.text(" type"), *words.text('="')])
        kinds = {kind: (*words.text(kind), *words.text('"'), words.sep) for kind in parameter.types}
        kind = yield from _spell(kinds)
        yield from self._value(kind, parameter)
        yield from _exactly(words.tag("argument"))

    def _value(self, kind: str, parameter: Parameter) -> _Walk:
        """The body of an argument, up to and with the marker that begins to close it."""
        words = self._words
        listed = [value for value in parameter.values if json_type(value) == kind]
        if kind in ("boolean", "null") and not listed:
            listed = [True, False] if kind == "boolean" else [None]
        if listed:
            texts = {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in listed}
            yield from _spell({text: (*words.text(text), words.close) for text in texts})
        elif kind == "number":
            yield from self._number(_INTEGER if parameter.is_integer else _NUMBER)
        elif kind == "string":
            yield from _free(words)
        else:
            first = yield Free(words.specials)
            assert first not in words.specials
            yield from _free(words)

    def _number(self, patterns: tuple[re.Pattern[bytes], re.Pattern[bytes]]) -> _Walk:
        words = self._words
        begins, is_whole = patterns
        text = b""
        while True:
            ids = {i for i, piece in words.numeric.items() if begins.fullmatch(text + piece)}
            if is_whole.fullmatch(text):
                ids.add(words.close)
            token_id = yield OneOf(frozenset(ids))
            if token_id == words.close:
                return
            text += words.numeric[token_id]


class Words:
    """Ids that the grammar is made of, and classes of tokens; one per tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.open = tokenizer.special("<|open|>")
        self.close = tokenizer.special("<|close|>")
        self.sep = tokenizer.special("<|sep|>")
        self.end = tokenizer.special("<|end_of_msg|>")
        self.text = tokenizer.encode_memo
        pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        unused = {i for i, piece in enumerate(pieces) if not piece}
        self.specials = frozenset(tokenizer.special_tokens.values()) | unused
        self.body = self.specials - {self.close}
        (self.quote,) = tokenizer.encode('"')
        self.no_quotes = self.specials | {i for i, piece in enumerate(pieces) if b'"' in piece} - {self.quote}
        numeric = frozenset(b"0123456789+-.eE")
        self.numeric = {
            i: piece
            for i, piece in enumerate(pieces)
            if piece and numeric.issuperset(piece) and i not in self.specials
        }

    def tag(self, name: str) -> list[int]:
        """The rest of a marker whose first token was chosen already."""
        return [*self.text(name), self.sep]

    def opening(self, name: str) -> list[int]:
        return [self.open, *self.tag(name)]

    def attribute(self, key: str, value: str) -> list[int]:
        return [*self.text(" " + key), *self.text('="'), *self.text(value), *self.text('"')]


_words: dict[int, tuple[Tokenizer, Words]] = {}


def words_of(tokenizer: Tokenizer) -> Words:
    """The words of a tokenizer, made once: the scan of the vocabulary takes a moment."""
    known = _words.get(id(tokenizer))
    if known is None or known[0] is not tokenizer:
        known = _words[id(tokenizer)] = (tokenizer, Words(tokenizer))
    return known[1]


def _escape(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _exactly(ids: Iterable[int]) -> _Walk:
    for token_id in ids:
        yield OneOf(frozenset((token_id,)))


def _free(
    words: Words, end: int | None = None, banned: frozenset[int] | None = None
) -> Generator[Allowed, int, list[int]]:
    """Free text up to and with `end` (a close marker); returns the ids before it."""
    end = words.close if end is None else end
    allowed = Free(words.body if banned is None else banned)
    written: list[int] = []
    while True:
        token_id = yield allowed
        if token_id == end:
            return written
        written.append(token_id)


def _json_value(words: Words, walk: JsonWalk, may_be_empty: bool) -> Generator[Allowed, int, bool]:
    """A JSON value up to and with the close marker behind it; whether there is none."""
    is_first = True
    while True:
        forced = [] if is_first and may_be_empty else walk.forced()
        for token_id in forced:
            yield OneOf(frozenset((token_id,)))
            walk.advance(token_id)
        forbidden = walk.forbidden()
        if is_first and may_be_empty:
            forbidden[words.close] = False
        token_id = yield Masked(forbidden)
        if token_id == words.close:
            return is_first and not forced
        walk.advance(token_id)
        is_first = False


def _choose(words: Words, may_open: bool = True, may_close: bool = True) -> Generator[Allowed, int, bool]:
    """Begin a further element (true) or the end of the one around it (false)."""
    ids = ([words.open] if may_open else []) + ([words.close] if may_close else [])
    token_id = yield OneOf(frozenset(ids))
    return token_id == words.open


def _spell(spellings: Mapping[str, Sequence[int]]) -> Generator[Allowed, int, str]:
    """One of several id sequences, chosen token by token; none may be the beginning of another."""
    left = spellings
    depth = 0
    while True:
        token_id = yield OneOf(frozenset(ids[depth] for ids in left.values()))
        left = {name: ids for name, ids in left.items() if ids[depth] == token_id}
        depth += 1
        for name, ids in left.items():
            if len(ids) == depth:
                return name
