"""Hosts to dialects, efforts to fields, ids and names to the wire."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.providers.dialects import (
    DIALECTS,
    WireIds,
    WireNames,
    dialect_for,
    effort_fields,
    empty_reasoning,
    is_kimi_model,
    is_loopback,
)
from k3agent.types import Effort


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.moonshot.ai/v1", "moonshot"),
        ("https://api.moonshot.cn/v1", "moonshot"),
        ("https://api.kimi.com/coding/v1", "kimi-code"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("http://127.0.0.1:8080/v1", "open"),
        ("https://api.moonshot.ai.evil.example/v1", "open"),
    ],
)
def test_the_host_decides(url: str, name: str) -> None:
    assert dialect_for(url).name == name
    assert dialect_for(url, "vllm").name == "vllm"


def test_one_effort_field_per_endpoint() -> None:
    effort = Effort.MAX
    assert effort_fields(DIALECTS["moonshot"], "kimi-k3", effort) == {"reasoning_effort": "max"}
    thinking = {"thinking": {"type": "enabled", "effort": "max", "keep": "all"}}
    assert effort_fields(DIALECTS["kimi-code"], "k3", effort) == thinking
    assert effort_fields(DIALECTS["open"], "moonshotai/Kimi-K3", effort) == {"reasoning_effort": "max"}
    assert effort_fields(DIALECTS["open"], "qwen2.5-coder", effort) == {}
    assert effort_fields(DIALECTS["moonshot"], "kimi-k2.7-code", effort) == {}


def test_empty_reasoning_by_model() -> None:
    assert empty_reasoning("kimi-k3") == ""
    assert empty_reasoning("kimi-k2.7-code") == ""
    assert empty_reasoning("kimi-k2.6") == " "
    assert empty_reasoning("moonshotai/Kimi-K2.5") == " "


@pytest.mark.parametrize(
    ("model", "is_kimi"),
    [("kimi-k3", True), ("moonshotai/Kimi-K3", True), ("k3", True), ("k3-256k", True), ("nano", True),
     ("accounts/fireworks/models/kimi-k3", True), ("qwen3", False), ("mock3", False), ("gpt-nano", False)],
)  # fmt: skip
def test_kimi_models_by_name(model: str, is_kimi: bool) -> None:
    assert is_kimi_model(model) is is_kimi


@given(st.lists(st.text(min_size=1, max_size=90), unique=True, max_size=30))
def test_ids_are_clean_stable_and_distinct(raws: list[str]) -> None:
    ids = WireIds()
    wires = [ids.wire(raw) for raw in raws]
    assert len(set(wires)) == len(raws)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire) for wire in wires)
    assert [ids.wire(raw) for raw in raws] == wires
    assert [ids.raw(wire) for wire in wires] == raws


@given(st.lists(st.text(min_size=1, max_size=90), unique=True, max_size=30))
def test_names_fit_the_rule(raws: list[str]) -> None:
    names = WireNames()
    wires = [names.wire(raw) for raw in raws]
    assert len(set(wires)) == len(raws)
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9-_]{2,63}", wire) for wire in wires)
    assert [names.raw(wire) for wire in wires] == raws


def test_k2_ids_stay_for_open_servers() -> None:
    assert WireIds(keeps_k2_ids=True).wire("functions.read:0") == "functions.read:0"
    assert WireIds().wire("read:0") == "read_0"


def test_loopback() -> None:
    assert is_loopback("http://127.0.0.1:1/v1")
    assert is_loopback("http://[::1]:1/v1")
    assert not is_loopback("http://127.0.0.1.example.com/v1")
