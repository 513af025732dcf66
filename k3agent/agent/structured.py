"""Answers that are to be JSON of a given schema: read, and asked for again where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from k3agent.events import TurnEnded, TurnOutcome
from k3agent.types import JsonObject

MAX_REPAIRS = 2


async def fitting(
    ended: TurnEnded, text: Callable[[], str], schema: JsonObject, ask: Callable[[str], Awaitable[TurnEnded]]
) -> tuple[TurnEnded, Any, str]:
    """The turn that gave the answer in the end, its value, and what is wrong with it, or "".

    ended: a turn that came to a good end; text: the model's last words by now; ask: runs another turn.
    """
    for _ in range(MAX_REPAIRS):
        value, problem = read_structured(text(), schema)
        if not problem:
            return ended, value, ""
        ended = await ask(
            f"Your answer does not fit the required JSON schema: {problem}. "
            "Answer again with the JSON alone, without any other text."
        )
        if ended.outcome is not TurnOutcome.SUCCESS:
            return ended, None, ""
    value, problem = read_structured(text(), schema)
    return ended, value, problem and f"the answer does not fit the JSON schema: {problem}"


def read_structured(text: str, schema: JsonObject) -> tuple[Any, str]:
    """(value, "") for an answer that is JSON valid against the schema, else (None, what is wrong with it).

    A code fence around the JSON is taken off: models add it against orders.
    """
    from jsonschema import Draft202012Validator  # lazy: 0.1 s, only with the flag

    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        bare = bare.partition("\n")[2].removesuffix("```").strip()
    try:
        value = json.loads(bare)
    except (ValueError, RecursionError) as error:
        return None, f"it is no JSON: {error}"
    problem = next(iter(Draft202012Validator(schema).iter_errors(value)), None)
    if problem is None:
        return value, ""
    place = "/".join(str(part) for part in problem.absolute_path) or "the root"
    return None, f"at {place}: {problem.message}"
