"""The session behind the screen: starts it after the first frame, queues prompts, runs one turn at a time.

A session that another process runs is watched; when that process lets go, it goes on here. It knows the
agent and no widget. What happens is told through `on_event` (the session's own events),
`on_ready` and `on_failed`; all are called in the app's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3agent.config.settings import Settings
from k3agent.errors import K3AgentError, SessionInUseError
from k3agent.events import AnyEvent, TurnEnded, TurnOutcome
from k3agent.safety.images import image_type
from k3agent.tui.start import UiOptions
from k3agent.types import ImagePart

if TYPE_CHECKING:
    from k3agent.agent.live import Broadcast
    from k3agent.agent.session import Session
    from k3agent.agent.watched import WatchedSession
    from k3agent.providers.base import ModelClient

log = logging.getLogger(__name__)

CLOSE_LIMIT_S = 3.0
# So often, so many seconds apart, a session is tried that its process is letting go.
TRIES, RETRY_S = 25, 0.2


@dataclass(slots=True)
class Queued:
    """A prompt that waits for the running turn."""

    text: str
    images: Sequence[ImagePart] = ()


@dataclass(slots=True)
class Driver:
    """`mode` may be changed before the session is there."""

    options: UiOptions
    settings: Settings
    on_event: Callable[[AnyEvent], None]
    on_ready: Callable[[Session | WatchedSession], None]
    on_failed: Callable[[str], None]
    #: a turn is over, and no other has begun
    on_idle: Callable[[], None] = lambda: None
    on_notify: Callable[[str], None] = lambda text: None
    make_client: Callable[[], ModelClient] | None = None
    #: what is on the screen, and the part of it that may be written to
    session: Session | WatchedSession | None = None
    own: Session | None = None
    client: ModelClient | None = None
    queue: list[Queued] = field(default_factory=list)
    mode: str = ""
    #: a session that was watched is being taken over
    is_going_on: bool = False
    _task: asyncio.Task[None] | None = None
    _broadcast: Broadcast | None = None
    _is_closed: bool = False

    @property
    def is_busy(self) -> bool:
        if self.is_watching:
            return self.session is not None and self.session.is_running
        return self._task is not None and not self._task.done()

    @property
    def is_watching(self) -> bool:
        return self.session is not None and self.own is None

    async def open(self, resume_id: str | None = None, *, forks: bool = False) -> None:
        """Load the agent, connect, open the session. Failures are told, not raised."""
        try:
            await asyncio.to_thread(_load)
            await self._open_or_watch(resume_id, forks=forks)
        except K3AgentError as error:
            self.on_failed(str(error))
        finally:
            # All that was loaded stays until the end: it need not be looked through again and again.
            gc.freeze()
            gc.enable()

    async def _open_or_watch(self, resume_id: str | None, *, forks: bool) -> None:
        for attempt in range(TRIES):
            try:
                await self._open(resume_id, forks=forks)
                return
            except SessionInUseError as error:
                if await self._watch(error.session_id):
                    return
                # It cannot be watched, or is just being closed.
                if attempt == TRIES - 1 or (not attempt and not self.is_going_on):
                    raise
            await asyncio.sleep(RETRY_S)

    async def _watch(self, session_id: str) -> bool:
        from k3agent.agent.watched import WatchedSession

        session = await WatchedSession.open(self.options.home, session_id)
        if session is None:
            return False
        if self._is_closed:
            await session.aclose()
            return True
        self.session = session
        session.on_over = lambda: self._watched_is_over(session)
        self.on_ready(session)
        session.subscribe(self.on_event)
        return True

    def _watched_is_over(self, session: WatchedSession) -> None:
        if self.session is session and not self._is_closed:
            self._task = asyncio.create_task(self._take_over(session))

    async def _take_over(self, session: WatchedSession) -> None:
        """The other process has let go: the session goes on here."""
        self.session = None
        await session.aclose()
        self.is_going_on = True
        try:
            await self.open(session.id)
        finally:
            self.is_going_on = False
        self._task = None
        self._next()

    async def _open(self, resume_id: str | None, *, forks: bool) -> None:
        from k3agent.agent.live import Broadcast
        from k3agent.agent.session import Session

        if self.client is None:
            self.client = self._client()
        options = self._session_options(self.client)
        if resume_id is None:
            session = await Session.create(options)
        elif forks:
            session = await Session.fork(resume_id, options)
        else:
            session = await Session.resume(resume_id, options)
        if self._is_closed:
            await session.aclose()
            return
        self.session = self.own = session
        self._broadcast = Broadcast(session, self.options.home)
        await self._broadcast.start()
        self.on_ready(session)
        session.subscribe(self.on_event)
        self._next()

    def _client(self) -> ModelClient:
        if self.make_client is not None:
            return self.make_client()
        from k3agent.providers.registry import choose_client

        return choose_client(self.settings, self.options.environ, self.options.home, self.on_notify)

    def _session_options(self, client: ModelClient) -> Any:
        from k3agent.agent.options import SessionOptions

        options, settings = self.options, self.settings
        told = SessionOptions.from_settings(
            settings,
            cwd=options.cwd,
            client=client,
            home=options.home,
            environ=options.environ,
            default_mode="default",
            extra_dirs=options.extra_dirs,
        )
        return dataclasses.replace(
            told,
            permission_mode=self.mode or told.permission_mode,
            allow=(*settings.allow, *options.allow),
            deny=(*settings.deny, *options.deny),
            is_interactive=True,
        )

    async def switch(self, resume_id: str | None, *, forks: bool = False) -> None:
        """Close this session and open another (None: a new one)."""
        await self._end_session()
        self.queue.clear()
        await self.open(resume_id, forks=forks)

    # --- turns ---

    def submit(self, text: str, images: Sequence[ImagePart] = ()) -> bool:
        """Run it now, or queue it; whether it was queued. A turn that is watched has no next one: what is
        said goes into it.
        """
        if self.is_watching and not images and self.steer(text):
            return False
        self.queue.append(Queued(text, images))
        if self.session is None or self.is_busy:
            return True
        self._next()
        return False

    def steer(self, text: str) -> bool:
        """Into the running turn; False when none runs."""
        if self.session is None or not self.is_busy:
            return False
        self.session.steer(text)
        return True

    def continue_turn(self) -> None:
        """Go on with a turn that was left unfinished."""
        if self.own is not None and not self.is_busy:
            self._task = asyncio.create_task(self._run(self.own, None))

    def send_queued(self) -> None:
        self._next()

    def _next(self) -> None:
        if self.own is not None and not self.is_busy and self.queue and not self._is_closed:
            self._task = asyncio.create_task(self._run(self.own, self.queue.pop(0)))

    async def _run(self, session: Session, item: Queued | None) -> None:
        try:
            if item is None:
                ended = await session.continue_turn(reopen=True)
            else:
                ended = await session.submit(item.text, item.images)
        except K3AgentError as error:
            self._task = None
            self.on_failed(str(error))
            return
        left = session.take_back_steering()
        self.queue[:0] = [Queued(text) for text in left]
        self._after(ended)

    def _after(self, ended: TurnEnded | None) -> None:
        # What waited behind a turn that went wrong would be said into a situation its writer did not know.
        self._task = None
        if ended is None or ended.outcome is TurnOutcome.SUCCESS:
            self._next()
        if not self.is_busy:
            self.on_idle()

    def interrupt(self, reason: str) -> bool:
        if self.session is None or not self.is_busy:
            return False
        self.session.interrupt(reason)
        return True

    # --- the end ---

    async def _end_session(self) -> None:
        if self.is_going_on and self._task is not None:
            # A session that is being taken over would come up beside the next one.
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        session, self.session, self.own = self.session, None, None
        if session is None:
            return
        if self._broadcast is not None:
            await self._broadcast.aclose()
            self._broadcast = None
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await session.aclose()
                if self._task is not None:
                    await asyncio.gather(self._task, return_exceptions=True)
        except TimeoutError:
            log.warning("session %s did not close within %s s", session.id, CLOSE_LIMIT_S)

    async def drop_client(self, settings: Settings) -> None:
        """Leave this model; the next `open` chooses by `settings`."""
        self.settings = settings
        await self._end_session()
        client, self.client = self.client, None
        if client is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_LIMIT_S):
                    await client.aclose()

    async def close(self) -> None:
        """Children, sockets, files: ended or left behind within the limit."""
        self._is_closed = True
        await self.drop_client(self.settings)

    def newest_here(self) -> str:
        """The id of this folder's newest session. Raises StoreError when there is none."""
        from k3agent.store.sessions import newest_session  # lazy: sqlite, after the first frame

        return newest_session(self.options.home, self.options.cwd)


def _load() -> None:
    """The agent and what it brings: 0.3 s, in a thread while the screen is already there."""
    import k3agent.agent.live
    import k3agent.agent.session
    import k3agent.providers.chat
    import k3agent.providers.registry  # noqa: F401
    from k3agent.agent.building import load_tools

    load_tools()


def shell_environ(options: UiOptions) -> dict[str, str]:
    """What a command of the user's own (`!`) gets: everything, and no pager that would wait for keys."""
    return {**options.environ, "PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb"}


def image_part(path: Path) -> ImagePart:
    """An image file by its content. Raises ConfigError's parent for files that are none."""
    data = path.read_bytes()
    mime = image_type(data)
    if mime is None:
        raise K3AgentError(f"{path} is no PNG, JPEG, GIF, WebP or BMP file")
    return ImagePart(mime=mime, data=data)
