"""Settings and environment to one model client, and the reason for the choice in words.

A backend that was named wins; else a key or an address in the environment; else the bundled engine with
the embedded model.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from k3agent.errors import ConfigError, ProviderError, ProviderErrorKind, did_you_mean
from k3agent.providers.base import MAX_OUTPUT_TOKENS, ModelClient, ModelInfo, Prices, Profile
from k3agent.providers.dialects import (
    KNOWN_MODELS,
    LOCAL_PACKAGES,
    Dialect,
    dialect_for,
    host_of,
    is_kimi_model,
    known_model,
)
from k3agent.safety.writing import replace_text
from k3agent.types import Effort

log = logging.getLogger(__name__)

EMBEDDED_MODEL = "nano"
BUNDLED_NAME = "bundled"
_UNKNOWN_WINDOW = 32_768
_KIMI_WINDOW = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProvider:
    base_url: str
    key_variable: str
    model: str
    dialect: str


PROVIDERS: dict[str, KnownProvider] = {
    "moonshot": KnownProvider(
        base_url="https://api.moonshot.ai/v1",
        key_variable="MOONSHOT_API_KEY",
        model="kimi-k3",
        dialect="moonshot",
    ),
    "moonshot-cn": KnownProvider(
        base_url="https://api.moonshot.cn/v1",
        key_variable="MOONSHOT_API_KEY",
        model="kimi-k3",
        dialect="moonshot",
    ),
    "kimi-code": KnownProvider(
        base_url="https://api.kimi.com/coding/v1",
        key_variable="KIMI_API_KEY",
        model="k3",
        dialect="kimi-code",
    ),
    "openrouter": KnownProvider(
        base_url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        model="moonshotai/kimi-k3",
        dialect="openrouter",
    ),
}
_HOST_KEYS = {
    "api.moonshot.ai": "MOONSHOT_API_KEY",
    "api.moonshot.cn": "MOONSHOT_API_KEY",
    "api.kimi.com": "KIMI_API_KEY",
    "api.kimi.ai": "KIMI_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY",
}


class NamedProvider(Protocol):
    """What is read of a `[providers.NAME]` table."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key_env(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def dialect(self) -> str: ...
    @property
    def context_window(self) -> int | None: ...
    @property
    def max_output_tokens(self) -> int | None: ...
    @property
    def price_input(self) -> float: ...
    @property
    def price_cached_input(self) -> float: ...
    @property
    def price_output(self) -> float: ...


class ClientSettings(Protocol):
    """What is read of the settings; the settings themselves are another part's."""

    @property
    def model(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    @property
    def context_window(self) -> int | None: ...
    @property
    def max_output_tokens(self) -> int | None: ...
    @property
    def providers(self) -> Mapping[str, Any]: ...
    @property
    def retry_max_retries(self) -> int: ...
    @property
    def retry_max_time_s(self) -> float: ...
    @property
    def retry_max_retry_after_s(self) -> float: ...
    @property
    def network_connect_timeout_s(self) -> float: ...
    @property
    def network_idle_timeout_s(self) -> float: ...
    @property
    def server_idle_timeout_s(self) -> float: ...
    def origin(self, key: str) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which backend, and why. `key` is the API key; `table` the user's own table for it."""

    provider: str
    base_url: str
    model: str
    why: str
    dialect: str = ""
    key: str = ""
    table: NamedProvider | None = None


def choose(settings: ClientSettings, environ: Mapping[str, str]) -> Choice:
    """The rule, without side effects. Raises ConfigError for an unknown provider, ProviderError without a
    key.
    """
    if settings.provider:
        return _named(settings, environ)
    if settings.base_url:
        return _by_url(settings, environ, settings.base_url, _said(settings, "base_url"))
    if settings.model:
        return _by_model(settings, environ)
    return _by_environment(settings, environ) or Choice(
        provider=BUNDLED_NAME,
        base_url="",
        model=EMBEDDED_MODEL,
        why="no provider is configured and no API key is in the environment",
    )


def choose_client(
    settings: ClientSettings,
    environ: Mapping[str, str],
    home: Path,
    notify: Callable[[str], None] | None = None,
) -> ModelClient:
    """The client for the chosen backend. `home` is the data folder; `notify` is told of slow starts."""
    from k3agent.providers.chat import ChatClient, Endpoint, Timeouts  # lazy: brings the HTTP client
    from k3agent.providers.retry import RetryPolicy

    choice = choose(settings, environ)
    retry = RetryPolicy(
        max_retries=settings.retry_max_retries,
        max_time_s=settings.retry_max_time_s,
        max_retry_after_s=settings.retry_max_retry_after_s,
    )
    timeouts = Timeouts(connect_s=settings.network_connect_timeout_s, idle_s=settings.network_idle_timeout_s)
    if choice.provider == BUNDLED_NAME:
        from k3agent.providers.bundled import BundledClient  # lazy: only for the local engine

        return BundledClient(
            _bundled_info(choice, settings),
            home,
            environ,
            model=choice.model,
            idle_timeout_s=settings.server_idle_timeout_s,
            notify=notify,
            retry=retry,
            timeouts=timeouts,
        )
    dialect = dialect_for(choice.base_url, choice.dialect or None)
    info = _info(choice, settings, dialect)
    endpoint = Endpoint(base_url=choice.base_url, api_key=choice.key)

    async def prepare() -> Endpoint:
        return endpoint

    memory = EndpointMemory(home / "endpoints.json")
    return ChatClient(
        info,
        dialect,
        prepare,
        retry=retry,
        timeouts=timeouts,
        reasoning_field=memory.reasoning_field(choice.base_url),
        on_learned=lambda field: memory.learn(choice.base_url, field),
        has_fixed_window=_fixed_window(choice, settings) is not None,
    )


class EndpointMemory:
    """In which field each endpoint carries reasoning: learned once, used from a session's first request
    on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def reasoning_field(self, base_url: str) -> str | None:
        field = self._load().get(base_url)
        return field if field in {"reasoning", "reasoning_content"} else None

    def learn(self, base_url: str, field: str) -> None:
        known = {**self._load(), base_url: field}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self._path, json.dumps(known, indent=1))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)

    def _load(self) -> dict[str, str]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}


def _said(settings: ClientSettings, key: str) -> str:
    origin = settings.origin(key)
    return f"{key} was given as a flag" if origin == "flag" else f"{key} is set in {origin}"


def _named(settings: ClientSettings, environ: Mapping[str, str]) -> Choice:
    name, why = settings.provider, _said(settings, "provider")
    if name == BUNDLED_NAME:
        return Choice(provider=name, base_url="", model=settings.model or EMBEDDED_MODEL, why=why)
    known, table = PROVIDERS.get(name), settings.providers.get(name)
    if known is None and table is None:
        names = ", ".join([*PROVIDERS, BUNDLED_NAME, *settings.providers])
        raise ConfigError(
            f"provider {name!r} is unknown. Known: {names}. Add a [providers.{name}] table to your config."
        )
    base_url = settings.base_url or (table.base_url if table else "") or (known.base_url if known else "")
    if not base_url:
        raise ConfigError(f"[providers.{name}] has no base_url")
    _checked_host(base_url)
    variable = (table.api_key_env if table else "") or (known.key_variable if known else "")
    key = _key(environ, variable)
    if known is not None and not key:
        raise _no_key(name, variable)
    return Choice(
        provider=name,
        base_url=base_url,
        model=settings.model or (table.model if table else "") or (known.model if known else ""),
        why=why,
        dialect=(table.dialect if table else "") or (known.dialect if known else ""),
        key=key,
        table=table,
    )


def _checked_host(base_url: str) -> str:
    host = host_of(base_url)
    if not host or not base_url.lower().startswith(("http://", "https://")):
        raise ConfigError(f"base_url {base_url!r} is no address like http://127.0.0.1:8333/v1")
    return host


def _by_url(settings: ClientSettings, environ: Mapping[str, str], base_url: str, why: str) -> Choice:
    host = _checked_host(base_url)
    # K3AGENT_API_KEY is what `k3agent serve` asks for; OPENAI_BASE_URL comes with a key of its own.
    own = "OPENAI_API_KEY" if settings.base_url != base_url else "K3AGENT_API_KEY"
    variable = _HOST_KEYS.get(host, own if environ.get(own) else "OPENAI_API_KEY")
    name = next((name for name, known in PROVIDERS.items() if host_of(known.base_url) == host), "")
    return Choice(
        provider=name or host,
        base_url=base_url,
        model=settings.model or (PROVIDERS[name].model if name else ""),
        why=why,
        key=_key(environ, variable),
    )


def _by_model(settings: ClientSettings, environ: Mapping[str, str]) -> Choice:
    """Only the model is named: the provider it is known from, else the server that the environment names."""
    why = _said(settings, "model")
    known = known_model(settings.model)
    if known is not None and known.provider == BUNDLED_NAME:
        return Choice(provider=BUNDLED_NAME, base_url="", model=settings.model, why=why)
    from_environment = _by_environment(settings, environ)
    if known is not None and known.provider in PROVIDERS:
        provider = PROVIDERS[known.provider]
        key = _key(environ, provider.key_variable)
        if key:
            return Choice(
                provider=known.provider, base_url=provider.base_url, model=settings.model, why=why,
                dialect=provider.dialect, key=key,
            )  # fmt: skip
        if from_environment is None:
            raise _no_key(known.provider, provider.key_variable)
    if from_environment is None:
        raise _unknown_model(settings.model)
    return from_environment


def _unknown_model(model: str) -> ConfigError:
    known = list(dict.fromkeys(entry.id for entry in KNOWN_MODELS))
    hint = did_you_mean(model, known, f" Known: {', '.join(known)}.")
    return ConfigError(
        f"model {model!r} is not known here, and no provider or base_url says where it is.{hint}"
        " For another one name --provider or --base-url; `k3agent models` shows where each can be reached."
    )


def _by_environment(settings: ClientSettings, environ: Mapping[str, str]) -> Choice | None:
    if environ.get("MOONSHOT_API_KEY"):
        return _known("moonshot", "MOONSHOT_API_KEY", settings, environ)
    key = environ.get("KIMI_API_KEY", "")
    if key:
        # The same variable is used for keys of the platform and of the subscription; theirs begin with
        # sk-kimi-.
        name = "kimi-code" if key.strip().startswith("sk-kimi-") else "moonshot"
        return _known(name, "KIMI_API_KEY", settings, environ, environ.get("KIMI_BASE_URL", ""))
    if environ.get("OPENAI_BASE_URL"):
        return _by_url(settings, environ, environ["OPENAI_BASE_URL"], "OPENAI_BASE_URL is set")
    return None


def _known(
    name: str, variable: str, settings: ClientSettings, environ: Mapping[str, str], base_url: str = ""
) -> Choice:
    provider = PROVIDERS[name]
    return Choice(
        provider=name,
        base_url=base_url or provider.base_url,
        model=settings.model or provider.model,
        why=f"{variable} is set",
        dialect=provider.dialect,
        key=_key(environ, variable),
    )


def _key(environ: Mapping[str, str], variable: str) -> str:
    return environ.get(variable, "").strip() if variable else ""


def _no_key(provider: str, variable: str) -> ProviderError:
    return ProviderError(
        f"No key for {provider}: set {variable or 'its key'} in the environment, or name another provider "
        "(`--provider bundled` works without a key).",
        kind=ProviderErrorKind.AUTH,
    )


def _fixed_window(choice: Choice, settings: ClientSettings) -> int | None:
    return settings.context_window or (choice.table.context_window if choice.table else None)


def _info(choice: Choice, settings: ClientSettings, dialect: Dialect) -> ModelInfo:
    known = known_model(choice.model, choice.provider)
    is_kimi = dialect.is_kimi or is_kimi_model(choice.model)
    guess = known.context_window if known else _KIMI_WINDOW if is_kimi else _UNKNOWN_WINDOW
    limit = settings.max_output_tokens or (choice.table.max_output_tokens if choice.table else None)
    is_list_price = known is not None and choice.provider.startswith(known.provider)
    prices = known.prices if known is not None and is_list_price else Prices()
    if choice.table is not None and (choice.table.price_input or choice.table.price_output):
        prices = Prices(
            input=choice.table.price_input,
            cached_input=choice.table.price_cached_input,
            output=choice.table.price_output,
        )
    return ModelInfo(
        provider=choice.provider,
        model=choice.model,
        base_url=choice.base_url,
        context_window=_fixed_window(choice, settings) or guess,
        max_output_tokens=limit or (known.max_output_tokens if known else MAX_OUTPUT_TOKENS),
        prices=prices,
        why=choice.why,
    )


def _bundled_info(choice: Choice, settings: ClientSettings) -> ModelInfo:
    is_nano = choice.model == EMBEDDED_MODEL
    from k3agent.providers.bundled import reads_instructions  # lazy: only where it is used

    known = known_model(EMBEDDED_MODEL)
    assert known is not None
    return ModelInfo(
        provider=BUNDLED_NAME,
        # A folder is served under its own name.
        model=Path(choice.model).name,
        base_url="",
        context_window=settings.context_window or (known.context_window if is_nano else _KIMI_WINDOW),
        max_output_tokens=settings.max_output_tokens
        or (known.max_output_tokens if is_nano else MAX_OUTPUT_TOKENS),
        efforts=(Effort.LOW,) if is_nano else tuple(Effort),
        default_effort=Effort.LOW if is_nano else Effort.HIGH,
        profile=Profile.COMPACT if is_nano else Profile.FULL,
        why=choice.why,
        reads_instructions=not is_nano or reads_instructions(),
    )


def reachable_models(
    environ: Mapping[str, str], tables: Mapping[str, NamedProvider]
) -> list[dict[str, str | int]]:
    """Known models and those of the user's own tables, with how to reach each; nothing is asked over the
    network.
    """
    from k3agent.providers.bundled import has_weights  # lazy: only for the list

    rows = []
    for model in KNOWN_MODELS:
        if model.provider == BUNDLED_NAME:
            missing = [name for name in LOCAL_PACKAGES if importlib.util.find_spec(name) is None]
            reach = f"needs {', '.join(missing)}: see k3agent doctor" if missing else "ready, offline"
            if not missing and not has_weights(model.id):
                reach = "its weights are not installed: see k3agent doctor"
        else:
            variable = PROVIDERS[model.provider].key_variable
            reach = f"{variable} is set" if environ.get(variable) else f"set {variable}"
        rows.append(_model_row(model.id, model.provider, model.context_window, reach, model.note))
    for name, table in tables.items():
        is_ready = not table.api_key_env or environ.get(table.api_key_env)
        reach = table.base_url if is_ready else f"set {table.api_key_env}"
        rows.append(_model_row(table.model or "(the server's)", name, table.context_window or 0, reach, ""))
    return rows


def _model_row(model: str, provider: str, window: int, reach: str, note: str) -> dict[str, str | int]:
    return {"model": model, "provider": provider, "context_window": window, "reach": reach, "note": note}
