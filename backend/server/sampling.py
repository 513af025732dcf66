"""The fields of a request that say how tokens are chosen.

Kimi's own models are served with fixed values, as the vendor does; other models take the common fields and
the extensions of other servers (`top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `stop_token_ids`,
`ignore_eos`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from k3agent.backend.chat.template import Json
from k3agent.backend.engine.messages import SamplingParams
from k3agent.backend.server.fields import boolean, integer, number, refuse, shown

_MAX_TOP_LOGPROBS = 20
_MAX_STOP_IDS = 64
_NO_THINKING_TEMPERATURE = 0.6
_NEUTRAL = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "stop_token_ids": (),
    "ignore_eos": False,
}
_VENDOR_FIELDS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How requests are judged, and what is used where they say nothing."""

    is_strict: bool = False
    may_disable_thinking: bool = False
    takes_sampling: bool = False
    """Requests may say how tokens are chosen; else that is fixed, as for Kimi's own models."""
    temperature: float = 1.0
    top_p: float = 0.95


def read_sampling(body: Json, profile: Profile, thinking: bool, ignored: list[str]) -> SamplingParams:
    """The parameters without `max_tokens`; names of fields that are left out go to `ignored`."""
    count = body.get("n")
    if count is not None and (type(count) is not int or count != 1):
        refuse(f"invalid n: only 1 is allowed for this model, not {shown(count)}")
    values: dict[str, Any] = {"temperature": profile.temperature, "top_p": profile.top_p}
    if not thinking and not profile.takes_sampling:
        values["temperature"] = _NO_THINKING_TEMPERATURE
    fixed = {**_NEUTRAL, **values}
    for name, value in _given(body):
        if profile.takes_sampling:
            values[name] = value
        elif value == fixed[name]:
            continue
        elif profile.is_strict and name in _VENDOR_FIELDS:
            refuse(f"invalid {name}: only {fixed[name]:g} is allowed for this model")
        else:
            ignored.append(name)
    return SamplingParams(
        **values,
        seed=integer(body, "seed", -(2**63), 2**63 - 1),
        stop=stop_strings(body.get("stop")),
        logprobs=_logprobs(body),
    )


def _given(body: Json) -> Iterator[tuple[str, Any]]:
    """Fields that only some models take, with their checked values."""
    readers = {
        "temperature": number(body, "temperature", 0, 2),
        "top_p": number(body, "top_p", 0, 1),
        "presence_penalty": number(body, "presence_penalty", -2, 2),
        "frequency_penalty": number(body, "frequency_penalty", -2, 2),
        "top_k": _top_k(body),
        "min_p": number(body, "min_p", 0, 1),
        "repetition_penalty": number(body, "repetition_penalty", 0.01, 10),
        "min_tokens": integer(body, "min_tokens", 0, 2**31),
        "stop_token_ids": _stop_ids(body.get("stop_token_ids")),
        "ignore_eos": boolean(body, "ignore_eos", False) if body.get("ignore_eos") is not None else None,
    }
    for name, value in readers.items():
        if value is not None:
            yield name, value


def _top_k(body: Json) -> int | None:
    """-1 is how other servers say "all"."""
    value = integer(body, "top_k", -1, 2**31)
    return None if value is None else max(value, 0)


def _stop_ids(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) > _MAX_STOP_IDS
        or not all(type(item) is int and 0 <= item < 2**31 for item in value)
    ):
        refuse(f"stop_token_ids must be at most {_MAX_STOP_IDS} token ids, not {shown(value)}")
    return tuple(value)


def stop_strings(stop: object) -> tuple[str, ...]:
    """The strings that end the content: one, or up to five, of at most 32 bytes each."""
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or len(strings) > 5 or not all(isinstance(s, str) for s in strings):
        refuse("stop must be a string or at most 5 strings")
    try:
        sizes = [len(text.encode()) for text in strings]
    except UnicodeEncodeError:
        refuse(f"a stop string is no Unicode text: {shown(strings)}")
    if any(not 1 <= size <= 32 for size in sizes):
        refuse("each stop string must have 1 to 32 bytes")
    return tuple(strings)


def _logprobs(body: Json) -> int | None:
    """How many alternatives of each token are told; None: nothing at all."""
    wanted = boolean(body, "logprobs", False)
    top = integer(body, "top_logprobs", 0, _MAX_TOP_LOGPROBS)
    if top and not wanted:
        refuse("top_logprobs needs logprobs: true")
    return (top or 0) if wanted else None
