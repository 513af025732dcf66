"""Which backend is taken, and why."""

from pathlib import Path

import pytest

from k3agent.config.settings import ProviderSettings, Settings
from k3agent.errors import ConfigError, ProviderError, ProviderErrorKind
from k3agent.providers import bundled
from k3agent.providers.base import Profile
from k3agent.providers.registry import EndpointMemory, choose, choose_client
from k3agent.types import Effort

MOONSHOT = {"MOONSHOT_API_KEY": "sk-m"}


def settings(**fields) -> Settings:
    return Settings(**fields, origins=dict.fromkeys(fields, "flag"))


@pytest.mark.parametrize(
    ("fields", "environ", "provider", "model", "why"),
    [
        ({}, {}, "bundled", "nano", "no provider is configured"),
        ({}, MOONSHOT, "moonshot", "kimi-k3", "MOONSHOT_API_KEY is set"),
        ({}, {"KIMI_API_KEY": "sk-kimi-1"}, "kimi-code", "k3", "KIMI_API_KEY is set"),
        ({}, {"KIMI_API_KEY": "sk-1"}, "moonshot", "kimi-k3", "KIMI_API_KEY is set"),
        ({}, {"OPENAI_BASE_URL": "http://h:1/v1"}, "h", "", "OPENAI_BASE_URL is set"),
        ({}, {"OPENAI_API_KEY": "sk-o"}, "bundled", "nano", "no provider is configured"),
        ({"provider": "bundled"}, MOONSHOT, "bundled", "nano", "provider was given as a flag"),
        ({"model": "nano"}, MOONSHOT, "bundled", "nano", "model was given as a flag"),
        ({"model": "kimi-k3.1-pro"}, MOONSHOT, "moonshot", "kimi-k3.1-pro", "model was given"),
        ({"model": "q"}, {"OPENAI_BASE_URL": "http://h:1/v1"}, "h", "q", "OPENAI_BASE_URL"),
        ({"base_url": "https://api.moonshot.ai/v1"}, MOONSHOT, "moonshot", "kimi-k3", "base_url was given"),
        ({"base_url": "http://127.0.0.1:1/v1"}, MOONSHOT, "127.0.0.1", "", "base_url was given"),
    ],
)
def test_choice(fields: dict, environ: dict, provider: str, model: str, why: str) -> None:
    choice = choose(settings(**fields), environ)
    assert (choice.provider, choice.model) == (provider, model)
    assert why in choice.why


def test_keys_go_only_where_they_belong() -> None:
    environ = {
        **MOONSHOT,
        "OPENAI_API_KEY": "sk-o",
        "OPENAI_BASE_URL": "http://h:1/v1",
        "K3AGENT_API_KEY": "sk-s",
    }
    assert choose(settings(base_url="http://127.0.0.1:1/v1"), environ).key == "sk-s"
    assert choose(settings(base_url="https://api.moonshot.cn/v1"), environ).key == "sk-m"
    del environ["MOONSHOT_API_KEY"]
    assert choose(settings(), environ).key == "sk-o"


def test_own_provider_table() -> None:
    table = ProviderSettings(
        base_url="http://h:2/v1",
        api_key_env="MINE",
        model="m",
        dialect="moonshot",
        context_window=9000,
        price_input=2.0,
    )
    given = Settings(provider="mine", providers={"mine": table}, origins={"provider": "/c.toml"})
    choice = choose(given, {"MINE": " sk-mine\n"})
    assert (choice.base_url, choice.key, choice.model, choice.dialect) == (
        "http://h:2/v1",
        "sk-mine",
        "m",
        "moonshot",
    )
    assert choice.why == "provider is set in /c.toml"
    client = choose_client(given, {"MINE": "sk-mine"}, Path("/nowhere"))
    assert client.info.context_window == 9000
    assert client.info.prices.input == 2.0


def test_unknown_provider_model_and_missing_key() -> None:
    with pytest.raises(ConfigError, match="moonshoot"):
        choose(settings(provider="moonshoot"), {})
    for url in ("localhost:8080", "ftp://h/v1", "http://"):
        with pytest.raises(ConfigError, match="no address"):
            choose(settings(base_url=url), {})
    with pytest.raises(ConfigError, match="--base-url"):
        choose(settings(model="unheard-of"), {})
    for fields in ({"provider": "moonshot"}, {"model": "kimi-k3"}):
        with pytest.raises(ProviderError) as caught:
            choose(settings(**fields), {})
        assert caught.value.kind is ProviderErrorKind.AUTH
        assert "MOONSHOT_API_KEY" in str(caught.value)


def test_embedded_model_has_the_compact_profile(tmp_path: Path) -> None:
    info = choose_client(settings(), {}, tmp_path).info
    assert (info.profile, info.default_effort, info.context_window) == (Profile.COMPACT, Effort.LOW, 16_384)
    info = choose_client(settings(), MOONSHOT, tmp_path).info
    assert (info.profile, info.context_window, info.prices.input) == (Profile.FULL, 1_048_576, 3.0)
    assert info.reads_instructions


@pytest.mark.parametrize(
    ("config", "reads"),
    [
        ('{"k3agent": {"instructions": false}}', False),
        ('{"k3agent": {"instructions": true}}', True),
        ('{"k3agent": {"instructions": "yes"}}', False),
        ("[]", False),
        ("no JSON", False),
        (None, False),
    ],
)
def test_weights_say_whether_they_follow_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, reads: bool
) -> None:
    monkeypatch.setattr(bundled, "weights_folder", lambda model="nano": tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert choose_client(settings(), {}, tmp_path).info.reads_instructions is reads


def test_endpoint_memory_survives_and_forgives(tmp_path: Path) -> None:
    memory = EndpointMemory(tmp_path / "deep" / "endpoints.json")
    assert memory.reasoning_field("http://a") is None
    memory.learn("http://a", "reasoning")
    memory.learn("http://b", "reasoning_content")
    again = EndpointMemory(tmp_path / "deep" / "endpoints.json")
    assert again.reasoning_field("http://a") == "reasoning"
    (tmp_path / "deep" / "endpoints.json").write_text('{"http://a": "system"')
    assert again.reasoning_field("http://a") is None


@pytest.mark.parametrize(
    ("model", "said"), [("kimi-k4", r"Did you mean kimi-k3\?"), ("xx", "Known: kimi-k3, ")]
)
def test_an_unknown_model_is_told_what_there_is(model: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose(Settings(model=model), {})
