"""Where the model runs and how it is doing: server, window, prefix cache, queue, speed.

The server is asked only while this is open, and only if it is on this machine; else the panel says what the
client knows.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from k3agent.providers.base import ModelClient, ModelInfo
from k3agent.providers.dialects import is_loopback
from k3agent.tui import figures
from k3agent.tui.safe import safe_line
from k3agent.tui.screens.dialog import TextScreen
from k3agent.tui.served import Served, address_of, look
from k3agent.tui.theme import Palette

AGAIN_S = 1.0
BAR = 20
TIERS = {"device": "on the device", "host": "in main memory", "disk": "on disk", "staging": "being moved"}
NOT_YET = "there is no model yet: see the conversation, then /retry"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the model is served. `pid` is that of our own server, else 0."""

    base_url: str = ""
    key: str = ""
    pid: int = 0
    is_bundled: bool = False

    @property
    def may_be_asked(self) -> bool:
        return bool(self.base_url) and is_loopback(self.base_url)


async def place_of(client: ModelClient) -> Place:
    from k3agent.providers.bundled import BundledClient  # lazy: loaded with the session, not with the screen
    from k3agent.providers.chat import ChatClient

    if isinstance(client, BundledClient):
        state = client.server.state
        if state is None:
            return Place(is_bundled=True)
        return Place(state.base_url, state.token, state.pid, is_bundled=True)
    if isinstance(client, ChatClient) and is_loopback(client.info.base_url):
        endpoint = await client.endpoint()
        return Place(endpoint.base_url, endpoint.api_key)
    return Place(client.info.base_url)


class EngineScreen(TextScreen):
    """Looks again once a second until it is closed."""

    def __init__(self) -> None:
        super().__init__("Engine", str, classes="dialog small")
        self._is_looking = False

    async def on_mount(self) -> None:
        await super().on_mount()
        self.set_interval(AGAIN_S, self._again)

    def _again(self) -> None:
        if not self._is_looking:
            self.run_worker(self._show())

    async def _show(self) -> None:
        self._is_looking = True
        try:
            driver = self.app.chat.driver
            session = driver.session
            if session is None:
                self.content.update(Text(NOT_YET))
                return
            # The client of a session that is only watched is another process's.
            client = None if driver.is_watching else driver.client
            place = Place(session.info.base_url) if client is None else await place_of(client)
            served = await asyncio.to_thread(look, place.base_url, place.key) if place.may_be_asked else None
            self.content.update(self._text(session.info, place, served))
        finally:
            self._is_looking = False

    # --- what it says ---

    def _text(self, info: ModelInfo, place: Place, served: Served | None) -> Table:
        rows = [
            ("engine", _where(info, place)),
            ("model", f"{safe_line(info.model, 60)} · window {figures.tokens(info.context_window)} tokens"),
            *self._now(),
            ("", ""),
            *self._last(),
        ]
        if served is not None:
            rows += [("", ""), *_server(served)]
        elif not place.is_bundled:
            rows += [("", ""), ("server", "not on this machine: it is not asked how it is doing")]
        return _table(rows, self.app.palette)

    def _now(self) -> list[tuple[str, str]]:
        chat = self.app.chat
        status, prefill = chat.line.status, chat.presenter.pace.prefill
        if prefill is not None and prefill[1] > 0:
            share = min(prefill[0] / prefill[1], 1.0)
            return [
                ("now", f"reads the prompt {_bar(share)} {share:.0%} of {figures.tokens(prefill[1])} tokens")
            ]
        return [("now", status.activity or "idle")]

    def _last(self) -> list[tuple[str, str]]:
        """The last request and the session, as the client counted them."""
        status, pace = self.app.chat.line.status, self.app.chat.presenter.pace
        step, total = status.step, status.total
        if not step.input_tokens:
            return [("last request", "none yet")]
        share = step.cached_tokens / step.input_tokens
        fresh = step.input_tokens - step.cached_tokens
        rows = [
            ("last request", f"{_bar(share)} {share:.0%} of the prompt from the cache"),
            (
                "",
                f"{step.cached_tokens:,} cached + {fresh:,} fresh tokens read,"
                f" {step.output_tokens:,} written",
            ),
        ]
        if pace.first_s:
            speed = f" · then {figures.rate(pace.rate)}" if pace.rate else ""
            rows.append(("", f"first piece after {pace.first_s:.1f} s{speed}"))
        if status.window:
            used = status.context_tokens
            rows.append(("window", f"{_bar(used / status.window)} {used:,} of {status.window:,} tokens"))
        if total.input_tokens:
            rows.append(("session", figures.usage_line(total, status.cost_usd)))
        return rows


def _where(info: ModelInfo, place: Place) -> str:
    if place.is_bundled:
        words = ["comes with k3agent"]
        words += [f"process {place.pid}", address_of(place.base_url)] if place.pid else ["not started"]
    else:
        words = [safe_line(info.provider, 40), address_of(place.base_url)]
    return " · ".join(dict.fromkeys(filter(None, words)))


def _server(served: Served) -> list[tuple[str, str]]:
    version = f" · version {served.version}" if served.version else ""
    rows = [("server", f"{served.status}{version}")]
    if not served.is_up:
        return rows
    if served.running is not None:
        waiting = f" · {served.waiting:,.0f} waiting" if served.waiting is not None else ""
        again = f" · restarts of the engine: {served.num_restarts:,.0f}" if served.num_restarts else ""
        rows.append(("queue", f"{served.running:,.0f} running{waiting}{again}"))
    speeds = [
        f"{verb} {figures.rate(value)}"
        for verb, value in (("reads", served.prefill_rate), ("writes", served.decode_rate))
        if value
    ]
    if speeds:
        rows.append(("speed", f"{' · '.join(speeds)} (mean of its answers)"))
    if served.read_tokens and served.cached_tokens is not None:
        share = min(served.cached_tokens / served.read_tokens, 1.0)
        total = figures.tokens(int(served.read_tokens))
        rows.append(("prefix hits", f"{_bar(share)} {share:.0%} of {total} tokens since its start"))
    sizes = [
        f"{figures.size(size)} {TIERS.get(tier, tier)}" for tier, size in served.tier_bytes.items() if size
    ]
    if served.tier_bytes:
        rows.append(("cache", " · ".join(sizes) or "empty"))
    if len(rows) == 1:
        rows.append(("", "it has no figures to tell: no /metrics that is known here"))
    return rows


def _bar(share: float) -> str:
    filled = round(BAR * min(max(share, 0.0), 1.0))
    return "█" * filled + "░" * (BAR - filled)


def _table(rows: list[tuple[str, str]], palette: Palette) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, words in rows:
        text = Text(words, palette.style("text"))
        text.highlight_regex("█+", palette.style("good"))
        text.highlight_regex("░+", palette.style("faint"))
        table.add_row(Text(name, palette.style("dim")), text)
    return table
