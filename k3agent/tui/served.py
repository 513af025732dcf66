"""What a model server on this machine says of itself: `/health` and the Prometheus text of `/metrics`.

Names of k3agent's own server and of the usual others. Nothing of an answer is trusted: it is cut to a size,
numbers must be finite, words are cleaned.
"""

from __future__ import annotations

import http.client
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from k3agent.tui.safe import safe_line

LIMIT_S = 2.0
MAX_BYTES = 1_000_000
# name of the metric, labels, value
_LINE = re.compile(r"([A-Za-z_:][\w:]{0,199})(?:\{([^{}]{0,500})\})? (\S{1,40})")
_LABEL = re.compile(r'(\w+)="([^"\\]*)"')
_TIER = re.compile(r"[a-z]{1,20}\Z")

# for each figure the names that servers have for it: k3agent's, then vLLM's, SGLang's, llama.cpp's
_RUNNING = (
    "k3agent_engine_running_requests",
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
)
_WAITING = (
    "k3agent_engine_waiting_requests",
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
)
_READ = (
    "k3agent_engine_prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "sglang:prompt_tokens_total",
)
_CACHED = ("k3agent_engine_cached_tokens_total", "vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
_PREFILL = ("k3agent_prefill_tokens_per_second", "llamacpp:prompt_tokens_seconds")
_DECODE = ("k3agent_decode_tokens_per_second", "sglang:gen_throughput", "llamacpp:predicted_tokens_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """None and empty: the server does not say. Rates are tokens a second; the sums are since its start."""

    status: str
    is_up: bool = False
    version: str = ""
    running: float | None = None
    waiting: float | None = None
    read_tokens: float | None = None
    cached_tokens: float | None = None
    num_restarts: float | None = None
    prefill_rate: float | None = None
    decode_rate: float | None = None
    tier_bytes: Mapping[str, float] = field(default_factory=dict)


def look(base_url: str, key: str) -> Served:
    """Ask the server once; blocks for at most a few seconds. A failure is a status in words."""
    try:
        code, body = _get(base_url, "/health", key)
        said = _object(body)
        status = safe_line(str(said.get("status") or ("ok" if code == 200 else f"answers {code}")), 40)
        version = safe_line(str(said.get("version") or ""), 40)
        code, body = _get(base_url, "/metrics", key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Served(status=f"does not answer: {safe_line(str(error) or type(error).__name__, 120)}")
    if code in (401, 403):
        status += ", its figures need a key"
    return read_metrics(body if code == 200 else "", status, version)


def read_metrics(text: str, status: str, version: str = "") -> Served:
    """The figures of a Prometheus text."""
    sums, tiers = _parse(text)
    return Served(
        status=status,
        is_up=True,
        version=version,
        running=_first(sums, _RUNNING),
        waiting=_first(sums, _WAITING),
        read_tokens=_first(sums, _READ),
        cached_tokens=_first(sums, _CACHED),
        num_restarts=sums.get("k3agent_engine_restarts_total"),
        prefill_rate=_rate(sums, _PREFILL),
        decode_rate=_rate(sums, _DECODE),
        tier_bytes=tiers,
    )


def address_of(base_url: str) -> str:
    """Host and port, without what else may stand in an address (a password)."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    host = f"[{host}]" if ":" in host else host
    return safe_line(f"{host}:{port}" if port else host, 100)


def _get(base_url: str, path: str, key: str) -> tuple[int, str]:
    parts = urlsplit(base_url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=LIMIT_S)
    try:
        root = parts.path.rstrip("/").removesuffix("/v1")
        connection.request("GET", f"{root}{path}", headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_BYTES).decode("utf-8", "replace")
    finally:
        connection.close()


def _object(body: str) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _parse(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Values by name, those of several labels added up; and the bytes of each tier of the cache."""
    sums: dict[str, float] = {}
    tiers: dict[str, float] = {}
    for line in text.splitlines():
        hit = _LINE.match(line)
        if hit is None or hit[1].endswith("_bucket"):
            continue
        try:
            value = float(hit[3])
        except ValueError:
            continue
        if not math.isfinite(value) or value < 0:
            continue
        sums[hit[1]] = sums.get(hit[1], 0.0) + value
        tier = dict(_LABEL.findall(hit[2] or "")).get("tier", "")
        if hit[1] == "k3agent_cache_tier_bytes" and _TIER.match(tier):
            tiers[tier] = value
    return sums, tiers


def _first(sums: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((sums[name] for name in names if name in sums), None)


def _rate(sums: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """A level, or the mean of a histogram."""
    for name in names:
        count = sums.get(f"{name}_count", 0.0)
        value = sums[f"{name}_sum"] / count if count and f"{name}_sum" in sums else sums.get(name)
        if value:
            return value
    return None
