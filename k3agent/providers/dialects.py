"""What differs from endpoint to endpoint, and the known models.

The host decides the dialect unless the settings name one. Source of the facts: kimi-api.md sections 1,
2.4, 5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from k3agent.providers.base import Prices
from k3agent.types import Effort, JsonObject


class EffortField(StrEnum):
    """How an endpoint is told the effort."""

    TOP_LEVEL = "reasoning_effort"
    THINKING = "thinking"
    OPENROUTER = "reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """`reasoning_field` is only where to start: what the endpoint streams is what it gets back.

    `is_lenient`: the server may not parse the calls of its models, so calls in the text are looked for.
    `sends_cache_key`: `prompt_cache_key` is understood. `is_kimi`: every model behind it speaks K3's rules.
    `keeps_k2_ids`: ids of the form `functions.NAME:N` stay as they are, for templates that read names from
    them. `asks_progress`: the server tells how far it has read the prompt if it is asked to.
    """

    name: str
    effort_field: EffortField = EffortField.TOP_LEVEL
    reasoning_field: str = "reasoning_content"
    is_lenient: bool = False
    sends_cache_key: bool = False
    is_kimi: bool = False
    keeps_k2_ids: bool = False
    asks_progress: bool = False


MOONSHOT = Dialect(name="moonshot", sends_cache_key=True, is_kimi=True)
KIMI_CODE = Dialect(name="kimi-code", effort_field=EffortField.THINKING, sends_cache_key=True, is_kimi=True)
OPENROUTER = Dialect(name="openrouter", effort_field=EffortField.OPENROUTER, reasoning_field="reasoning")
VLLM = Dialect(name="vllm", reasoning_field="reasoning", is_lenient=True, keeps_k2_ids=True)
SGLANG = Dialect(name="sglang", is_lenient=True, keeps_k2_ids=True)
LLAMACPP = Dialect(name="llamacpp", is_lenient=True, keeps_k2_ids=True, asks_progress=True)
OPEN = Dialect(name="open", is_lenient=True, keeps_k2_ids=True)
BUNDLED = Dialect(name="bundled", is_kimi=True)

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (MOONSHOT, KIMI_CODE, OPENROUTER, VLLM, SGLANG, LLAMACPP, OPEN, BUNDLED)
}

_LOOPBACK = re.compile(r"127(?:\.\d{1,3}){3}\Z")
_MOONSHOT_HOSTS = ("api.moonshot.ai", "api.moonshot.cn")
_KIMI_CODE_HOSTS = ("api.kimi.ai", "api.kimi.com")
_OTHER_REGION = {
    "api.moonshot.ai": "api.moonshot.cn",
    "api.moonshot.cn": "api.moonshot.ai",
    "api.kimi.ai": "api.kimi.com",
    "api.kimi.com": "api.kimi.ai",
}


def host_of(base_url: str) -> str:
    try:
        return (urlsplit(base_url).hostname or "").lower()
    except ValueError:
        return ""  # brackets that hold no IPv6 address


def is_loopback(base_url: str) -> bool:
    host = host_of(base_url)
    return host in {"localhost", "::1"} or bool(_LOOPBACK.match(host))


def other_region(base_url: str) -> str | None:
    """The sister host whose keys are separate: worth naming when a key is refused."""
    return _OTHER_REGION.get(host_of(base_url))


def dialect_for(base_url: str, name: str | None = None) -> Dialect:
    """The dialect named, else the one of the host, else the lenient one for unknown servers."""
    if name in DIALECTS:
        return DIALECTS[name]
    host = host_of(base_url)
    if host in _MOONSHOT_HOSTS:
        return MOONSHOT
    if host in _KIMI_CODE_HOSTS:
        return KIMI_CODE
    if host == "openrouter.ai" or host.endswith(".openrouter.ai"):
        return OPENROUTER
    return OPEN


_KIMI_NAME = re.compile(r"(?:^|[/.\-_])(?:kimi|k3|k3p1|moonshot(?:ai)?)(?:$|[/.\-_])", re.IGNORECASE)


def is_kimi_model(model: str) -> bool:
    """Does the name say that this is a Kimi model, so that K3's rules for reasoning and effort hold?"""
    return bool(_KIMI_NAME.search(model)) or model == "nano"


_K2_NAME = re.compile(r"(?:^|[/.\-_])kimi-k2|(?:^|/)k2(?:$|[.\-_])", re.IGNORECASE)
_PICKY_K2 = re.compile(r"k2[.p]?[56](?:$|[.\-_])", re.IGNORECASE)


def empty_reasoning(model: str) -> str:
    """What stands in the reasoning field of a message without reasoning: K2.5 and K2.6 refuse an empty
    text.
    """
    return " " if _PICKY_K2.search(model) else ""


def effort_fields(dialect: Dialect, model: str, effort: Effort) -> JsonObject:
    """The one effort field of a request; nothing for foreign models on open servers, which may refuse the
    field.
    """
    if dialect.effort_field is EffortField.THINKING:
        return {"thinking": {"type": "enabled", "effort": effort.value, "keep": "all"}}
    if dialect.effort_field is EffortField.OPENROUTER:
        return {"reasoning": {"effort": effort.value}}
    if _K2_NAME.search(model):
        # Their thinking is on or off, not more or less; the field is refused.
        return {}
    if dialect.is_kimi or is_kimi_model(model):
        return {"reasoning_effort": effort.value}
    return {}


_FREE = Prices()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """`context_window` is what to assume when the endpoint does not say."""

    id: str
    provider: str
    context_window: int
    max_output_tokens: int
    prices: Prices = _FREE
    note: str = ""


_K3_WINDOW = 1_048_576
_K2_WINDOW = 262_144

KNOWN_MODELS: tuple[KnownModel, ...] = (
    KnownModel(
        id="kimi-k3", provider="moonshot", context_window=_K3_WINDOW, max_output_tokens=32_000,
        prices=Prices(input=3.0, cached_input=0.30, output=15.0),
    ),
    KnownModel(
        id="kimi-k3.1-pro", provider="moonshot", context_window=_K3_WINDOW, max_output_tokens=32_000,
        prices=Prices(input=2.0, cached_input=0.20, output=10.0),
    ),
    KnownModel(
        id="kimi-k3.1-pro-highspeed", provider="moonshot",
        context_window=_K3_WINDOW, max_output_tokens=32_000,
        prices=Prices(input=4.0, cached_input=0.20, output=20.0),
    ),
    KnownModel(
        id="kimi-k2.7-code", provider="moonshot", context_window=_K2_WINDOW, max_output_tokens=32_000,
        prices=Prices(input=0.95, cached_input=0.19, output=4.0),
    ),
    KnownModel(
        id="kimi-k2.6", provider="moonshot", context_window=_K2_WINDOW, max_output_tokens=32_000,
        prices=Prices(input=0.95, cached_input=0.16, output=4.0),
    ),
    KnownModel(
        id="k3", provider="kimi-code", context_window=_K2_WINDOW, max_output_tokens=32_000,
        note="subscription; up to 1 M tokens by plan",
    ),
    KnownModel(
        id="k3-256k", provider="kimi-code", context_window=_K2_WINDOW, max_output_tokens=32_000,
        note="subscription",
    ),
    KnownModel(
        id="kimi-for-coding", provider="kimi-code", context_window=_K2_WINDOW, max_output_tokens=32_000,
        note="subscription; the server picks the model",
    ),
    KnownModel(
        id="moonshotai/kimi-k3", provider="openrouter", context_window=_K3_WINDOW, max_output_tokens=32_000,
        prices=Prices(input=3.0, cached_input=0.30, output=15.0),
    ),
    KnownModel(
        id="nano", provider="bundled", context_window=16_384, max_output_tokens=2_048,
        note="embedded: small narrow tasks, offline",
    ),
)  # fmt: skip


def known_model(model: str, provider: str | None = None) -> KnownModel | None:
    """The entry of that name, preferring the provider's own."""
    hits = [entry for entry in KNOWN_MODELS if entry.id == model]
    return next((entry for entry in hits if entry.provider == provider), hits[0] if hits else None)


# What the bundled engine needs besides the agent's own packages.
LOCAL_PACKAGES = ("torch", "safetensors", "tiktoken", "starlette", "uvicorn")

_CLEAN_ID = re.compile(r"[^A-Za-z0-9_-]")
_K2_ID = re.compile(r"functions\.[A-Za-z_][\w-]*:\d+\Z")


class WireIds:
    """Raw ids of a session to what may stand on the wire, the same way every time, without collisions."""

    def __init__(self, *, keeps_k2_ids: bool = False) -> None:
        self._keeps_k2_ids = keeps_k2_ids
        self._wire: dict[str, str] = {}
        self._raw: dict[str, str] = {}

    def wire(self, raw: str) -> str:
        known = self._wire.get(raw)
        if known is not None:
            return known
        clean = self._clean(raw)
        wire, number = clean, 2
        while wire in self._raw:
            suffix = f"_{number}"
            wire = clean[: 64 - len(suffix)] + suffix
            number += 1
        self._wire[raw] = wire
        self._raw[wire] = raw
        return wire

    def raw(self, wire: str) -> str:
        """The session's own word for a wire form; an unknown form is its own raw form."""
        return self._raw.get(wire, wire)

    def _clean(self, raw: str) -> str:
        if self._keeps_k2_ids and _K2_ID.match(raw):
            return raw
        return _CLEAN_ID.sub("_", raw)[:64] or "call"


class WireNames(WireIds):
    """Tool names: 3 to 64 characters that begin with a letter or an underscore."""

    def _clean(self, raw: str) -> str:
        clean = super()._clean(raw)
        is_fine = len(clean) >= 3 and (clean[0].isalpha() or clean[0] == "_")
        return clean if is_fine else f"t_{clean}"[:64]
