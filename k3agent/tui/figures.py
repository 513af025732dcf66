"""Numbers in few characters: tokens, money, time, bytes."""

from __future__ import annotations

import math

from k3agent.types import Usage

UNITS = ("bytes", "KB", "MB", "GB")


def tokens(count: int) -> str:
    if count < 1000:
        return str(count)
    if count < 100_000:
        return f"{count / 1000:.1f}k"
    return f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1_000_000:.2f}M"


def money(usd: float) -> str:
    if usd <= 0:
        return ""
    return f"${usd:.4f}" if usd < 0.1 else f"${usd:.2f}"


def seconds(value: float) -> str:
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f} tokens/s" if tokens_per_s >= 10 else f"{tokens_per_s:.1f} tokens/s"


def size(num_bytes: float) -> str:
    if num_bytes < 1000:
        return f"{num_bytes:.0f} bytes"
    power = min(int(math.log10(num_bytes) + 0.0005) // 3, 3)
    value = num_bytes / 1000**power
    return f"{value:.1f} {UNITS[power]}" if value < 10 else f"{value:,.0f} {UNITS[power]}"


def usage_line(usage: Usage, cost_usd: float) -> str:
    """`12.3k in (92 % cached) · 1.2k out · $0.0123`"""
    parts = []
    if usage.input_tokens:
        share = (
            f" ({100 * usage.cached_tokens // usage.input_tokens} % cached)" if usage.cached_tokens else ""
        )
        parts.append(f"{tokens(usage.input_tokens)} in{share}")
    if usage.output_tokens:
        parts.append(f"{tokens(usage.output_tokens)} out")
    if money(cost_usd):
        parts.append(money(cost_usd))
    return " · ".join(parts)
