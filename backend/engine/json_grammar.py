"""Holds the text of a response to a JSON schema, token by token.

The library compiles a schema against the vocabulary; compiled ones are kept, and each answer walks a copy.
The closing marker of the response is its end token: it is allowed as soon as the value is complete.
"""

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.errors import GrammarError, SchemaError

if TYPE_CHECKING:
    import torch
    from llguidance import LLMatcher, LLTokenizer

MAX_COMPILED = 64
MAX_SCHEMA_CHARS = 1 << 20
# compact, as Kimi's API answers; and an open-ended run of blanks is how small models lose themselves
_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


class JsonWalk:
    """Where one answer stands in its schema."""

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def forbidden(self) -> "torch.Tensor":
        """[V], true for tokens that may not come next."""
        # lazy: the server imports the grammar for its spec, and neither of these
        import numpy as np
        import torch

        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        bits = np.unpackbits(mask, bitorder="little")[: self._vocab_size]
        return torch.from_numpy(bits == 0)

    def forced(self) -> list[int]:
        """Tokens that must come next, as the tokenizer would spell them."""
        return self._matcher.compute_ff_tokens()

    def advance(self, token_id: int) -> None:
        """Take a token that was allowed."""
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the JSON schema of this answer broke off: {self._matcher.get_error()}")


class JsonSchemas:
    """Compiled schemas of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._library_tokenizer = _library_tokenizer(tokenizer)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def walk(self, schema: str) -> JsonWalk:
        """A walk from the beginning; SchemaError for what cannot be enforced."""
        matcher = self._compiled.get(schema)
        if matcher is None:
            matcher = self._compiled[schema] = self._compile(schema)
        self._compiled.move_to_end(schema)
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return JsonWalk(matcher.deep_copy(), self._vocab_size)

    def _compile(self, schema: str) -> "LLMatcher":
        from llguidance import LLMatcher  # lazy: loaded with the first schema

        if len(schema) > MAX_SCHEMA_CHARS:
            raise SchemaError(
                f"the JSON schema has {len(schema)} characters, at most {MAX_SCHEMA_CHARS} can be"
            )
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise SchemaError(f"the JSON schema is not valid JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise SchemaError(f"a JSON schema is an object, not {schema[:40]}")
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
        except ValueError as error:
            # halves of surrogate pairs, for one, are JSON to Python and not to the library
            raise SchemaError(f"the JSON schema cannot be read: {error}") from error
        matcher = LLMatcher(self._library_tokenizer, grammar, log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().strip().splitlines()
            text = reason[-1] if reason else "unknown reason"
            raise SchemaError(
                f"the JSON schema cannot be enforced: {text}. Remove what is named, or ask for json_object"
            )
        return matcher


def _library_tokenizer(tokenizer: Tokenizer) -> "LLTokenizer":
    try:
        from llguidance import LLTokenizer, TokenizerWrapper  # lazy: see above
    except ImportError as error:
        raise SchemaError(
            "answers cannot be held to a JSON schema, because the package llguidance is not installed;"
            ' install it with `pip install "k3agent[local]"`'
        ) from error
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)))


class _Vocabulary:
    """The vocabulary as the library reads it: bytes of every token; a marker begins with a byte that is in no
    text."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.special("<|close|>")
        names = {token_id: name for name, token_id in tokenizer.special_tokens.items()}
        self.special_token_ids = sorted(names)
        self.tokens = [
            b"\xff" + names[i].encode() if i in names else tokenizer.token_bytes(i) or b"\xff<unused %d>" % i
            for i in range(tokenizer.vocab_size)
        ]

    def __call__(self, data: bytes) -> list[int]:
        return self._tokenizer.encode(data.decode("utf-8", "replace"))


_schemas: dict[int, tuple[Tokenizer, JsonSchemas]] = {}


def schemas_of(tokenizer: Tokenizer) -> JsonSchemas:
    """The schemas of a tokenizer, made once."""
    known = _schemas.get(id(tokenizer))
    if known is None or known[0] is not tokenizer:
        known = _schemas[id(tokenizer)] = (tokenizer, JsonSchemas(tokenizer))
    return known[1]
