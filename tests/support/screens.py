"""The UI for tests: a scripted model behind the real app, and its screen as plain text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from k3agent.config.settings import Settings
from k3agent.tui.app import K3App
from k3agent.tui.screens import answers
from k3agent.tui.start import UiOptions
from support.agents import Answer, ReplayClient

PATIENCE_S = 60.0


class Screen:
    """A running app. `shown` is what a user sees."""

    def __init__(self, app: K3App, pilot: Pilot[int], client: ReplayClient, workspace: Path) -> None:
        self.app, self.pilot, self.client, self.workspace = app, pilot, client, workspace

    @property
    def rows(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def shown(self) -> str:
        return "\n".join(self.rows)

    @property
    def chat(self) -> Any:
        return self.app.chat

    async def until(self, condition: Callable[[], bool] | str) -> None:
        """Wait until a text is on the screen, or a condition holds; fails with the screen."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not (condition in self.shown if isinstance(condition, str) else condition()):
            assert asyncio.get_running_loop().time() < deadline, f"{condition} did not come:\n{self.shown}"
            await self.pilot.pause(0.05)

    async def until_gone(self, text: str) -> None:
        await self.until(lambda: text not in self.shown)

    async def type(self, text: str) -> None:
        for char in text:
            await self.pilot.press({"\n": "ctrl+j", " ": "space"}.get(char, char))

    async def submit(self, text: str) -> None:
        await self.type(text)
        await self.pilot.press("enter")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def answer(self, key: str) -> None:
        """Wait until the question takes keys, then answer it."""
        await self.until(lambda: self.chat.panel.is_armed and self.app.focused is self.chat.panel)
        await self.pilot.press(key)


@asynccontextmanager
async def running(
    root: Path,
    answers_: Sequence[Answer] = (),
    *,
    size: tuple[int, int] = (100, 40),
    settings: Settings | None = None,
    client: Any = None,
    **options: Any,
) -> AsyncIterator[Screen]:
    """The app over `root`/ws with data in `root`/home, once its session is ready."""
    import os

    workspace = root / "ws"
    workspace.mkdir(exist_ok=True)
    environ = {"PATH": os.environ["PATH"], "HOME": str(root / "user"), **options.pop("environ", {})}
    is_ready = options.pop("is_ready", True)
    model = client or ReplayClient(answers_)
    app = K3App(
        UiOptions(cwd=workspace, environ=environ, home=root / "home", flags={}, **options),
        settings or Settings(),
    )
    app.make_client = lambda: model
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot, model, workspace)
        if is_ready:
            await screen.until(lambda: screen.chat.driver.session is not None)
            await pilot.pause()
        yield screen
        await app.chat.shut_down()


def quick(monkeypatch: Any) -> None:
    """Questions arm after a short pause, so that tests need not wait."""
    monkeypatch.setattr(answers, "ARM_S", 0.05)
    monkeypatch.setattr(answers, "MIN_WAIT_S", 0.05)
