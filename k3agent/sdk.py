"""k3agent from Python: a run in one call, or an agent that is talked to and watched.

    import k3agent

    result = k3agent.run("Fix the failing test", cwd="repo", checks=["pytest -q"])
    print(result.outcome, result.files_changed, result.text)

    async with k3agent.Agent(cwd="repo") as agent:
        async for event in agent.stream("Where is the parser?"):
            ...
        result = await agent.run("Now add a docstring to it.")

Settings are those of the command line: the user's file, the repository's where it is trusted, the
environment, then the arguments here. What `k3agent.__all__` names is stable: it changes only with the
first number of the version.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from k3agent.agent.options import Limits, SessionOptions
from k3agent.agent.session import Session
from k3agent.agent.structured import fitting
from k3agent.config.keys import with_stored_keys
from k3agent.config.paths import data_home
from k3agent.config.settings import load_settings
from k3agent.errors import ConfigError, K3AgentError
from k3agent.events import AnyEvent, ApprovalAsked, Decision, MessageAdded, TurnEnded, TurnOutcome
from k3agent.providers.base import ModelClient
from k3agent.providers.registry import choose_client
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, Role, Usage

MODES = ("plan", "default", "accept-edits", "auto")

Reader = Callable[[AnyEvent], None]
Approve = Callable[[ApprovalAsked], bool | str]
"""Answers a question before a call: True runs it, False does not, a text does not and tells the model why.
For a question of the tool `ask` the text is the answer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one prompt came to; `Agent` has the sums over all of them."""

    outcome: TurnOutcome
    text: str
    """The model's last words."""
    detail: str
    """Why it did not come to a good end; empty if it did."""
    session_id: str
    files_changed: tuple[str, ...]
    """Relative to the folder."""
    usage: Usage
    cost_usd: float
    """0 where prices are not known."""
    checks: tuple[Mapping[str, Any], ...] = ()
    """{command, exit_code, passed} of the last round."""
    denials: tuple[Mapping[str, Any], ...] = ()
    """{call_id, tool, summary, reason} of calls that were not allowed."""
    value: Any = None
    """The answer as JSON, where a schema was given."""

    @property
    def is_success(self) -> bool:
        """Did it end well, with all checks passed? A turn whose last call was denied did not: its outcome is
        `error_permission`, whether a rule or `approve` said no. Calls that work after it make it good again.
        """
        return self.outcome is TurnOutcome.SUCCESS


@dataclass(slots=True, kw_only=True)
class Agent:
    """One session of the agent in one folder. Use it in `async with`, in one event loop, a prompt at a time.

    cwd: the folder to work in. session: the id, or a beginning of it, of a session to go on with.
    model, provider, base_url, effort: as the flags of `k3agent run`; None leaves them to the settings.
    permission_mode: plan, default, accept-edits or auto. allow, deny: rules on top of the settings'.
    approve: asked where the rules ask; without it nobody is there, and such calls are denied with a reason.
    checks: commands that must pass before the work counts as done. limits: None leaves them to the settings.
    schema: a JSON schema that the answer must fit. ephemeral: store nothing that outlives the agent.
    environ: the environment to read settings and keys from; default that of the process.
    client: an own ModelClient in place of the one that the settings choose; the caller closes it.
    """

    cwd: str | os.PathLike[str] = "."
    session: str | None = None
    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    effort: str | None = None
    permission_mode: str = "auto"
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    approve: Approve | None = None
    checks: Sequence[str] = ()
    limits: Limits | None = None
    append_system_prompt: str | None = None
    schema: JsonObject | None = None
    ephemeral: bool = False
    environ: Mapping[str, str] | None = None
    client: ModelClient | None = None
    _session: Session | None = field(default=None, init=False, repr=False)
    _own_client: ModelClient | None = field(default=None, init=False, repr=False)
    _scratch: Path | None = field(default=None, init=False, repr=False)
    _readers: list[Reader] = field(default_factory=list, init=False, repr=False)

    async def __aenter__(self) -> Self:
        """Open the session. Raises ConfigError, StoreError (it is in use, or not there), ProviderError."""
        if self._session is not None:
            raise ConfigError("this agent is open already; make another for another session")
        try:
            self._session = await self._open()
            self._session.subscribe(self._hear)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def run(self, prompt: str) -> Result:
        """One prompt to its end. Expected failures are the result's outcome, not exceptions."""
        words = _LastWords()
        session = self._opened()
        before = dataclasses.replace(session.receipt)
        num_denials = len(before.denials)
        session.receipt.begin_prompt()
        with self._heard_by(words):
            ended, value, problem = await self._submit(session, prompt), None, ""
            if self.schema is not None and ended.outcome is TurnOutcome.SUCCESS:
                ended, value, problem = await fitting(
                    ended, lambda: words.text, self.schema, lambda text: self._submit(session, text)
                )
        receipt = session.receipt
        result = Result(
            outcome=ended.outcome,
            text=words.text,
            detail="" if ended.outcome is TurnOutcome.SUCCESS else ended.detail or ended.outcome.value,
            session_id=str(session.id),
            files_changed=tuple(receipt.latest_files),
            usage=receipt.usage - before.usage,
            cost_usd=receipt.cost_usd - before.cost_usd,
            checks=tuple(receipt.checks),
            denials=tuple(receipt.denials[num_denials:]),
        )
        if problem:
            return dataclasses.replace(result, outcome=TurnOutcome.EXECUTION, detail=problem)
        return dataclasses.replace(result, value=value)

    async def stream(self, prompt: str) -> AsyncIterator[AnyEvent]:
        """The events of one prompt as they come; the last is TurnEnded. Leaving early interrupts it."""
        session = self._opened()
        queue: asyncio.Queue[AnyEvent] = asyncio.Queue()
        with self._heard_by(queue.put_nowait):
            work = asyncio.create_task(self._submit(session, prompt))
            work.add_done_callback(lambda _: queue.put_nowait(_NOTHING))
            try:
                while (event := await queue.get()) is not _NOTHING:
                    yield event
                await work
            finally:
                if not work.done():
                    session.interrupt("the reader of the events left")
                    with contextlib.suppress(asyncio.CancelledError):
                        await work

    def steer(self, text: str) -> None:
        """Words for the running turn: the model gets them after the calls that run now."""
        self._opened().steer(text)

    def interrupt(self) -> None:
        """End the running prompt; what has arrived stays. Safe at any moment."""
        self._opened().interrupt("the caller asked for it")

    @property
    def session_id(self) -> str:
        """The whole id, to go on with later."""
        return str(self._opened().id)

    @property
    def files_changed(self) -> tuple[str, ...]:
        """By all prompts since the agent was opened."""
        return tuple(self._opened().receipt.files_changed)

    @property
    def usage(self) -> Usage:
        """Of all prompts since the agent was opened."""
        return self._opened().receipt.usage

    @property
    def cost_usd(self) -> float:
        """Of all prompts since the agent was opened."""
        return self._opened().receipt.cost_usd

    # --- inside

    def _opened(self) -> Session:
        if self._session is None:
            raise ConfigError("the agent is not open: use it in `async with Agent(...) as agent`")
        return self._session

    async def _open(self) -> Session:
        if self.permission_mode not in MODES:
            raise ConfigError(f"permission_mode {self.permission_mode!r} is not one of {', '.join(MODES)}")
        cwd = self._folder()
        own = dict(os.environ if self.environ is None else self.environ)
        home = data_home(own)
        environ = with_stored_keys(own, home)
        options = self._options(environ, cwd, home)
        if self.session is None:
            return await Session.create(options)
        store = SessionStore(home)
        try:
            found = str(store.resolve(self.session))
        finally:
            store.close()
        return await Session.resume(found, options)

    def _folder(self) -> Path:
        cwd = Path(self.cwd).expanduser().absolute()
        if not cwd.is_dir():
            raise ConfigError(f"cwd {str(self.cwd)!r}: no such folder")
        return cwd

    def _options(self, environ: dict[str, str], cwd: Path, home: Path) -> SessionOptions:
        names = ("model", "provider", "base_url", "effort", "permission_mode", "append_system_prompt")
        settings = load_settings(environ, cwd, {name: getattr(self, name) for name in names})
        settings = dataclasses.replace(
            settings,
            allow=(*settings.allow, *self.allow),
            deny=(*settings.deny, *self.deny),
            checks_commands=(*settings.checks_commands, *self.checks),
        )
        if self.ephemeral:
            if self.session is not None:
                raise ConfigError("ephemeral=True has no earlier sessions to go on with")
            self._scratch = Path(tempfile.mkdtemp(prefix="k3agent-"))
        if self.client is None:
            self._own_client = choose_client(settings, environ, home)
        client = self.client or self._own_client
        assert client is not None
        options = SessionOptions.from_settings(
            settings, cwd=cwd, client=client, home=home, environ=environ, default_mode="auto", extra_dirs=()
        )
        return dataclasses.replace(
            options,
            # Trust, logins and lists of tools are the user's; only what is stored of the session is not kept.
            home=self._scratch or home,
            user_home=home,
            limits=self.limits or options.limits,
            response_schema=self.schema,
            is_interactive=self.approve is not None,
            is_program_asked=True,
        )

    @contextlib.contextmanager
    def _heard_by(self, reader: Reader) -> Iterator[None]:
        self._readers.append(reader)
        try:
            yield
        finally:
            self._readers.remove(reader)

    def _hear(self, event: AnyEvent) -> None:
        for reader in tuple(self._readers):
            reader(event)
        if isinstance(event, ApprovalAsked) and self.approve is not None:
            # Not while the event is being told: the answer is an event of its own.
            asyncio.get_running_loop().call_soon(self._reply, self._opened(), event)

    async def _submit(self, session: Session, prompt: str) -> TurnEnded:
        if not prompt.strip():
            raise ConfigError("the prompt is empty")
        return await session.submit(prompt)

    def _reply(self, session: Session, event: ApprovalAsked) -> None:
        assert self.approve is not None
        try:
            answer = self.approve(event)
        except BaseException:
            # The call would wait for its answer for ever.
            session.interrupt("the function that answers questions failed")
            raise
        if event.tool == "ask" and isinstance(answer, str):
            session.reply(event.call_id, answer)
        elif answer is True:
            session.answer(event.call_id, Decision.ALLOW)
        else:
            session.answer(event.call_id, Decision.DENY, reason=answer if isinstance(answer, str) else "")

    async def _close(self) -> None:
        session, self._session = self._session, None
        client, self._own_client = self._own_client, None
        scratch, self._scratch = self._scratch, None
        if session is not None:
            await session.aclose()
        if client is not None:
            await client.aclose()
        if scratch is not None:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


def run(prompt: str, **options: Any) -> Result:
    """One prompt to its end, from code without an event loop. `options` are those of `Agent`.

    Raises ConfigError, StoreError or ProviderError when it cannot begin; later failures are the result's
    outcome.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise K3AgentError("run() blocks, and an event loop runs here: use `async with Agent(...) as agent`")

    async def whole() -> Result:
        async with Agent(**options) as agent:
            return await agent.run(prompt)

    return asyncio.run(whole())


class _LastWords:
    """Keeps the text of the model's last message."""

    text = ""

    def __call__(self, event: AnyEvent) -> None:
        if isinstance(event, MessageAdded) and event.message.role is Role.ASSISTANT:
            self.text = event.message.text


_NOTHING: Any = object()
