"""The grammar: whatever is sampled inside it parses without damage, and well-formed answers all fit."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_tokenizer import write_tiny_tokenizer

from k3agent.backend.chat.parser import OutputParser
from k3agent.backend.chat.template import render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.grammar import ALL_TYPES, Free, Grammar, GrammarSpec, OneOf, ToolShape
from k3agent.backend.errors import GrammarError


def tool(
    name: str, properties: dict[str, Any] | None = None, required: list[str] | None = None
) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if properties is not None:
        function["parameters"] = {"type": "object", "properties": properties, "required": required or []}
    return {"type": "function", "function": function}


TOOLS = (
    tool("read", {"path": {"type": "string"}, "offset": {"type": "integer"}}, ["path"]),
    tool("read_all", {"paths": {"type": "array", "items": {"type": "string"}}}, ["paths"]),
    tool(
        "mixed",
        {
            "s": {"type": "string"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "o": {"type": "object"},
            "e": {"enum": ["red", "green", 3]},
            "u": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
    ),
    tool("nothing", {}),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Tokenizer.from_dir(folder)


def babble(tokenizer: Tokenizer, spec: GrammarSpec, seed: int) -> list[int]:
    """Sample at random inside the grammar; bodies end after a few tokens."""
    dice = random.Random(seed)
    grammar = Grammar(tokenizer, spec)
    close = tokenizer.special("<|close|>")
    ids: list[int] = []
    while not grammar.is_done:
        ids += grammar.forced()
        if grammar.is_done:
            break
        allowed = grammar.allowed
        if isinstance(allowed, OneOf):
            choices = sorted(allowed.ids)
            token = close if close in choices and dice.random() < 0.3 else dice.choice(choices)
        else:
            assert isinstance(allowed, Free)
            ordinary = [i for i in range(tokenizer.vocab_size) if i not in allowed.banned]
            may_close = close not in allowed.banned
            token = close if may_close and dice.random() < 0.3 else dice.choice(ordinary)
        grammar.advance(token)
        ids.append(token)
        assert len(ids) < 20_000
    return ids


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9), choice=st.sampled_from(["auto", "none", "required"]), parallel=st.booleans()
)
def test_babble_is_well_formed(tiny: Tokenizer, seed: int, choice: str, parallel: bool) -> None:
    spec = GrammarSpec(TOOLS, tool_choice=choice, parallel_calls=parallel)
    parser = OutputParser(tiny, tools={t["function"]["name"] for t in TOOLS})
    parser.feed(babble(tiny, spec, seed))
    assert parser.is_ended
    assert parser.damage == []
    if choice == "none":
        assert not parser.calls
    if choice == "required":
        assert parser.calls
    if not parallel:
        assert len(parser.calls) <= 1
    for call in parser.calls:
        declared = next(t for t in TOOLS if t["function"]["name"] == call.name)["function"]["parameters"]
        pairs: list[tuple[str, Any]] = json.loads(call.arguments, object_pairs_hook=list)
        keys = [key for key, _ in pairs]
        assert len(set(keys)) == len(keys)
        assert set(declared["required"]) <= set(keys) <= set(declared["properties"])
        values = dict(pairs)
        assert isinstance(values.get("offset", 0), int)
        assert isinstance(values.get("b", True), bool)
        assert values.get("e", 3) in ("red", "green", 3)
        assert values.get("u") is None or isinstance(values["u"], int)


GOOD = [
    {"content": "Hi", "reasoning_content": "Greet."},
    {"content": "", "reasoning_content": "", "tool_calls": [("read", {"path": 'a "b" & c.py'})]},
    {
        "content": "x",
        "reasoning_content": "y",
        "tool_calls": [("read", {"offset": -12, "path": ""}), ("nothing", {})],
    },
    {"reasoning_content": "y", "tool_calls": [("read_all", {"paths": ["a", "b"]})]},
    {
        "reasoning_content": "all",
        "tool_calls": [
            ("mixed", {"u": None, "e": "green", "b": False, "n": -1.5e10, "o": {"k": [1]}, "s": "<|sep|>"})
        ],
    },
]


def message_of(given_message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in given_message.get("tool_calls", ())
    ]
    return {**given_message, "tool_calls": calls}


@pytest.mark.parametrize("message", GOOD)
def test_every_good_answer_fits(tiny: Tokenizer, message: dict[str, Any]) -> None:
    ids = render_assistant(tiny, message_of(message))
    grammar = Grammar(tiny, GrammarSpec(TOOLS))
    for token_id in ids:
        grammar.advance(token_id)
    assert grammar.is_done


@pytest.mark.parametrize(
    "call",
    [
        ("delete", {}),
        ("read", {"offset": 1}),
        ("read", {"path": "a", "mode": "x"}),
        ("read", {"path": 5}),
        ("read", {"path": "a", "offset": 1.5}),
        ("mixed", {"e": "blue"}),
        ("nothing", {"x": 1}),
    ],
)
def test_bad_calls_do_not_fit(tiny: Tokenizer, call: tuple[str, dict[str, Any]]) -> None:
    ids = render_assistant(tiny, message_of({"tool_calls": [call]}))
    grammar = Grammar(tiny, GrammarSpec(TOOLS))
    with pytest.raises(GrammarError):
        for token_id in ids:
            grammar.advance(token_id)


def test_open_schemas_take_any_key(tiny: Tokenizer) -> None:
    free = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ids = render_assistant(tiny, message_of({"tool_calls": [("f", {"any": 1, "key": "x"})]}))
    grammar = Grammar(tiny, GrammarSpec((free,)))
    for token_id in ids:
        grammar.advance(token_id)
    assert grammar.is_done


def test_a_tool_without_parameters_takes_none(tiny: Tokenizer) -> None:
    ids = render_assistant(tiny, message_of({"tool_calls": [("f", {})]}))
    grammar = Grammar(tiny, GrammarSpec((tool("f"),)))
    for token_id in ids:
        grammar.advance(token_id)
    assert grammar.is_done


def test_markup_is_forced_in_runs(tiny: Tokenizer) -> None:
    grammar = Grammar(tiny, GrammarSpec((tool("read", {"path": {"type": "string"}}, ["path"]),)))
    close, opener = tiny.special("<|close|>"), tiny.special("<|open|>")
    assert isinstance(grammar.allowed, Free)
    grammar.advance(close)
    assert tiny.decode(grammar.forced()) == "think<|sep|><|open|>response<|sep|>"
    grammar.advance(close)
    assert tiny.decode(grammar.forced()) == "response<|sep|>"
    assert grammar.allowed == OneOf(frozenset((opener, close)))
    grammar.advance(opener)
    # one tool with one required string: the whole way to the body has no alternative
    assert tiny.decode(grammar.forced()) == (
        'tools<|sep|><|open|>call tool="read" index="1"<|sep|>'
        '<|open|>argument key="path" type="string"<|sep|>'
    )
    grammar.advance(close)
    assert tiny.decode(grammar.forced()) == "argument<|sep|><|close|>call<|sep|>"


def test_references_are_followed(tiny: Tokenizer) -> None:
    declared = tool("f", {"x": {"$ref": "#/$defs/Colour"}})
    declared["function"]["parameters"]["$defs"] = {"Colour": {"enum": ["red"]}}
    ids = render_assistant(tiny, message_of({"tool_calls": [("f", {"x": "red"})]}))
    grammar = Grammar(tiny, GrammarSpec((declared,)))
    for token_id in ids:
        grammar.advance(token_id)
    bad = render_assistant(tiny, message_of({"tool_calls": [("f", {"x": "rex"})]}))
    grammar = Grammar(tiny, GrammarSpec((declared,)))
    with pytest.raises(GrammarError):
        for token_id in bad:
            grammar.advance(token_id)


def test_the_grammar_also_starts_in_the_response(tiny: Tokenizer, tmp_path: Path) -> None:
    ids = render_assistant(tiny, {"content": "x"}, thinking=False)
    grammar = Grammar(tiny, GrammarSpec(channel="response"))
    for token_id in ids:
        grammar.advance(token_id)
    assert grammar.is_done


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "required": 5, "properties": {"a": {}}},
        {"type": "object", "required": [5, {}, "a"], "properties": {"a": None}},
        {"type": "object", "properties": 5},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"$ref": 5},
    ],
)
def test_a_schema_that_makes_no_sense_restricts_nothing_and_breaks_nothing(
    parameters: dict[str, Any],
) -> None:
    shape = ToolShape.from_declaration({"function": {"name": "x", "parameters": parameters}})
    assert shape.required <= {"a"}


def test_references_that_multiply_are_read_once() -> None:
    """Followed one by one, these would keep the engine, and all that wait for it, for hours."""
    loop = {"anyOf": [{"$ref": "#/properties/a"}] * 500}
    grows = {"anyOf": [{"$ref": "#/$defs/few"}] * 500}
    more = {"anyOf": [{"$ref": "#/properties/b"}] * 500}
    parameters = {
        "type": "object",
        "properties": {"a": loop, "b": grows, "c": more, "d": {"$ref": "#/properties/c"}},
        "$defs": {"few": {"enum": ["x", "y"]}},
    }
    shape = ToolShape.from_declaration({"function": {"name": "f", "parameters": parameters}})
    assert shape.parameters["a"].types == ALL_TYPES
    assert set(shape.parameters["b"].values) == {"x", "y"}
    for name in ("c", "d"):
        assert shape.parameters[name].types == ("string",)
        assert shape.parameters[name].values == ()
