"""JSON schemas: whatever is sampled fits them; what cannot be enforced is refused; tools stay possible."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("llguidance")
torch = pytest.importorskip("torch")

from k3agent.backend.chat.parser import OutputParser  # noqa: E402  # after the skip
from k3agent.backend.chat.tokenizer import Tokenizer  # noqa: E402
from k3agent.backend.engine.grammar import Free, Grammar, GrammarSpec, Masked, OneOf  # noqa: E402
from k3agent.backend.errors import SchemaError  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "inner": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "age", "inner"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(tiny_dir)


def walk(tokenizer: Tokenizer, grammar: Grammar, seed: int) -> list[int]:
    """Sample at random inside the grammar; leave whenever that is possible."""
    dice = random.Random(seed)
    close = tokenizer.special("<|close|>")
    ids: list[int] = []
    while not grammar.is_done:
        ids += grammar.forced()
        if grammar.is_done:
            break
        match grammar.allowed:
            case Masked(is_forbidden):
                choices = (~is_forbidden).nonzero().flatten().tolist()
                # printable pieces mostly, or strings of odd bytes would never be closed
                plain = [i for i in choices if tokenizer.token_bytes(i).isascii()]
                choices = plain or choices
            case OneOf(allowed):
                choices = sorted(allowed)
            case Free(banned):
                choices = [i for i in range(tokenizer.vocab_size) if i not in banned]
        token = close if close in choices else dice.choice(choices)
        grammar.advance(token)
        ids.append(token)
        assert len(ids) < 20_000
    return ids


def response(tokenizer: Tokenizer, ids: list[int], tools: list[str]) -> OutputParser:
    parser = OutputParser(tokenizer, "response", tools)
    parser.feed(ids)
    parser.finish()
    assert parser.is_ended and parser.damage == []
    return parser


@pytest.mark.parametrize("schema", [PERSON, {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_sampled_fits_the_schema(tokenizer: Tokenizer, schema: dict[str, Any], seed: int) -> None:
    grammar = Grammar(tokenizer, GrammarSpec(channel="response", json_schema=json.dumps(schema)))
    parser = response(tokenizer, walk(tokenizer, grammar, seed), [])
    value = json.loads(parser.message()["content"])
    jsonschema.validate(value, schema)


def test_forced_keys_need_no_sampling(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"k": {"type": "null"}}, "required": ["k"]}
    grammar = Grammar(tokenizer, GrammarSpec(channel="response", json_schema=json.dumps(schema)))
    assert tokenizer.decode(grammar.forced()) == '{"k":null'


def test_reasoning_stays_free(tokenizer: Tokenizer) -> None:
    grammar = Grammar(tokenizer, GrammarSpec(channel="think", json_schema=json.dumps(PERSON)))
    assert isinstance(grammar.allowed, Free)


def test_with_tools_the_value_or_a_call(tokenizer: Tokenizer) -> None:
    spec = GrammarSpec((TOOL,), channel="response", json_schema='{"type": "object"}')
    close = tokenizer.special("<|close|>")
    grammar = Grammar(tokenizer, spec)
    assert isinstance(grammar.allowed, Masked)
    grammar.advance(close)
    called = response(tokenizer, [close, *walk(tokenizer, grammar, 1)], ["f"])
    assert called.calls and not called.message()["content"]
    grammar = Grammar(tokenizer, spec)
    (brace,) = tokenizer.encode("{")
    grammar.advance(brace)
    answered = response(tokenizer, [brace, *walk(tokenizer, grammar, 2)], ["f"])
    assert isinstance(json.loads(answered.message()["content"]), dict)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("nonsense", "not valid JSON"),
        ("[1]", "object, not"),
        ('{"type": 5}', "type"),
        ('{"not": {"type": "string"}}', "not"),
        ('{"$ref": "#/nowhere"}', "nowhere"),
        ("false", "false"),
        ('{"type": "string", "pattern": "(?=a)b"}', "look-around"),
        (json.dumps({"enum": ["\ud800"]}), "cannot be read"),
    ],
)
def test_schemas_that_cannot_be_enforced_are_refused(tokenizer: Tokenizer, schema: str, named: str) -> None:
    with pytest.raises(SchemaError, match=named):
        Grammar(tokenizer, GrammarSpec(json_schema=schema))


def test_compiled_schemas_are_kept(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    from k3agent.backend.engine.json_grammar import JsonSchemas

    schemas = JsonSchemas(tokenizer)
    compiled: list[str] = []
    compile_once = schemas._compile

    def count(schema: str) -> Any:
        compiled.append(schema)
        return compile_once(schema)

    monkeypatch.setattr(schemas, "_compile", count)
    first, second = schemas.walk(json.dumps(PERSON)), schemas.walk(json.dumps(PERSON))
    assert len(compiled) == 1
    (brace,) = tokenizer.encode("{")
    first.advance(brace)
    assert not bool(second.forbidden()[brace])
