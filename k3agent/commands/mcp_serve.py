"""`k3agent mcp serve`: k3agent as a tool of other agents, over standard input and output.

Three tools: `run` a task, `resume` a session, `status`. Nobody can be asked, so rules and mode decide as in
`k3agent run`. A task may work on in the background; sessions are those of every other front end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from k3agent import __version__
from k3agent.acp import stdio
from k3agent.agent.live import Broadcast
from k3agent.agent.options import SessionOptions
from k3agent.agent.session import Session
from k3agent.config.flags import add_model_and_rules
from k3agent.config.keys import with_stored_keys
from k3agent.config.paths import data_home
from k3agent.config.settings import SANDBOXES, load_settings
from k3agent.errors import K3AgentError
from k3agent.events import AnyEvent, CallProposed, MessageAdded, TurnEnded
from k3agent.headless.arguments import Parser
from k3agent.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Peer, RpcError
from k3agent.logs import start_logging
from k3agent.providers.base import ModelClient
from k3agent.providers.registry import choose_client
from k3agent.safety.paths import is_folder
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, Role

log = logging.getLogger(__name__)

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NUM_LISTED = 20
MAX_REPORTS = 200
ABOUT = (
    "k3agent is a coding agent. `run` hands it a task in a folder: it reads, edits, runs commands"
    " in a sandbox, and reports. `resume` says more in the same session. With `background` both come back at"
    " once; `status` tells how it stands."
)


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


_BACKGROUND = {"type": "boolean", "description": "Come back at once; ask `status` later."}
TOOLS: list[JsonObject] = [
    {
        "name": "run",
        "description": "Hand k3agent a coding task and get its report.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "prompt": _text("The task, with all that must be known for it."),
                "cwd": _text("The folder to work in, relative to the server's own. Default: that one."),
                "max_turns": {"type": "integer", "minimum": 1, "description": "Model calls at most."},
                "background": _BACKGROUND,
            },
            "required": ["prompt"],
        },
    },
    {
        "name": "resume",
        "description": "Say something in an earlier session; without a prompt, finish its unfinished turn.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "session_id": _text("As `run` gave it."),
                "prompt": _text("What to say."),
                "background": _BACKGROUND,
            },
            "required": ["session_id"],
        },
    },
    {
        "name": "status",
        "description": "How a session stands, or the newest sessions of the server's folder.",
        "inputSchema": {
            "type": "object",
            "properties": {"session_id": _text("Default: list the newest.")},
        },
    },
]


def serve(argv: Sequence[str]) -> int:
    """Serve until the other side closes standard input, or a signal comes."""
    parser = Parser(
        "mcp serve", "k3agent as an MCP server over standard input and output: run, resume, status."
    )
    add_model_and_rules(parser, "auto")
    parser.add_argument(
        "--sandbox", choices=SANDBOXES, help="strict fails where no sandbox works (default: auto)"
    )
    parser.add_argument("--cwd", type=Path, metavar="DIR", help="tasks work in DIR and below (default: here)")
    args = parser.parse(argv)
    home = data_home(os.environ)
    start_logging(home, os.environ)
    cwd = (args.cwd or Path.cwd()).expanduser().resolve()
    if not is_folder(cwd):
        parser.error(f"--cwd {args.cwd}: no such folder.")
    names = ("model", "provider", "base_url", "effort", "permission_mode", "sandbox")
    server = AgentServer(
        environ=with_stored_keys(os.environ, home),
        home=home,
        cwd=cwd,
        flags={name: getattr(args, name) for name in names},
        allow=tuple(args.allow),
        deny=tuple(args.deny),
    )
    signum = asyncio.run(stdio.serve(server))
    # The thread that reads standard input may wait for ever.
    os._exit(128 + signum if signum else 0)


@dataclasses.dataclass(slots=True)
class _Task:
    """A session at work, or closed again. `said` is the last answer, `report` what was told at the end."""

    session: Session
    client: ModelClient
    broadcast: Broadcast
    said: str = ""
    doing: str = ""
    ended: TurnEnded | None = None
    error: str = ""
    work: asyncio.Task[None] | None = None
    report: JsonObject | None = None

    def event(self, event: AnyEvent) -> None:
        if isinstance(event, MessageAdded) and event.message.role is Role.ASSISTANT:
            self.said = event.message.text or self.said
        elif isinstance(event, CallProposed):
            self.doing = event.summary


class AgentServer:
    """`peer` is set before the first message comes."""

    peer: Peer

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        home: Path,
        cwd: Path,
        flags: Mapping[str, Any],
        allow: tuple[str, ...],
        deny: tuple[str, ...],
    ) -> None:
        self._environ, self._home, self._cwd = environ, home, cwd
        self._flags, self._allow, self._deny = flags, allow, deny
        self._tasks: dict[str, _Task] = {}

    async def request(self, method: str, params: JsonObject) -> Any:
        match method:
            case "initialize":
                wanted = params.get("protocolVersion")
                return {
                    "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "k3agent", "version": __version__},
                    "instructions": ABOUT,
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": TOOLS}
            case "tools/call":
                return await self._call(params)
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"unknown method {method!r:.80}")

    def notification(self, method: str, params: JsonObject) -> None:
        if method == "notifications/cancelled":
            self.peer.cancel(params.get("requestId"))

    async def aclose(self) -> None:
        for task in self._tasks.values():
            task.session.interrupt("the server of the tool has ended")
        works = [task.work for task in self._tasks.values() if task.work is not None]
        await asyncio.gather(*works, return_exceptions=True)

    # --- tools --------------------------------------------------------------------------------------------

    async def _call(self, params: JsonObject) -> JsonObject:
        name, given = params.get("name"), params.get("arguments")
        arguments = given if isinstance(given, dict) else {}
        known = next((tool for tool in TOOLS if tool["name"] == name), None)
        if known is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool {name!r:.80}; there are run, resume and status")
        try:
            _check(arguments, known["inputSchema"])
            if name == "status":
                return _result(self._status(arguments.get("session_id")))
            meta = params.get("_meta")
            token = meta.get("progressToken") if isinstance(meta, dict) else None
            return await self._work(arguments, token, is_new=name == "run")
        except (K3AgentError, ValueError) as error:
            if isinstance(error, RpcError):
                raise
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}

    async def _work(self, arguments: JsonObject, token: Any, *, is_new: bool) -> JsonObject:
        prompt = arguments.get("prompt", "")
        if is_new:
            task = await self._open(None, self._folder(arguments.get("cwd", "")), arguments.get("max_turns"))
        else:
            task = await self._reopen(arguments["session_id"])
        report = self._progress(token)
        task.session.subscribe(
            lambda event: report(event.summary) if isinstance(event, CallProposed) else None
        )
        task.work = asyncio.create_task(self._turn(task, prompt))
        if arguments.get("background") is True:
            return _result({"session_id": task.session.id, "state": "running"})
        try:
            await asyncio.shield(task.work)
        except asyncio.CancelledError:
            task.session.interrupt("the client cancelled the call")
            raise
        assert task.report is not None
        return _result(task.report, is_error=bool(task.error))

    async def _turn(self, task: _Task, prompt: str) -> None:
        try:
            if prompt.strip():
                task.ended = await task.session.submit(prompt)
            else:
                task.ended = await task.session.continue_turn(reopen=True)
                if task.ended is None:
                    task.error = "there is nothing to finish in this session: give a prompt"
        except K3AgentError as error:
            task.error = str(error)
        finally:
            # Closed at once: other programs, and a later `resume`, may go on with it.
            task.report = self._report(task, is_over=True)
            await task.session.aclose()
            await task.broadcast.aclose()
            await task.client.aclose()

    def _progress(self, token: Any) -> Callable[[str], None]:
        count = 0

        def report(text: str) -> None:
            nonlocal count
            count += 1
            if isinstance(token, int | str):
                self.peer.notify(
                    "notifications/progress",
                    {"progressToken": token, "progress": count, "message": text[:300]},
                )

        return report

    def _folder(self, text: str) -> Path:
        folder = (self._cwd / text).resolve()
        if not folder.is_relative_to(self._cwd):
            raise ValueError(f"cwd {text!r} is outside of {self._cwd}, in which this server works")
        if not is_folder(folder):
            raise ValueError(f"cwd {text!r} is not a folder of {self._cwd}")
        return folder

    async def _reopen(self, session_id: str) -> _Task:
        known = self._tasks.get(session_id)
        if known is not None and known.report is None:
            raise ValueError(f"session {session_id} is at work: ask status, and wait for its end")
        store = SessionStore(self._home)
        try:
            stored = store.load(store.resolve(session_id))
        finally:
            store.close()
        folder = Path(stored.cwd)
        if not folder.is_relative_to(self._cwd):
            raise ValueError(f"session {session_id} works in {folder}, outside of {self._cwd}")
        return await self._open(stored.id, folder, None)

    async def _open(self, session_id: str | None, cwd: Path, max_turns: int | None) -> _Task:
        settings = load_settings(self._environ, cwd, self._flags)
        client = choose_client(settings, self._environ, self._home, log.info)
        options = SessionOptions.from_settings(
            settings,
            cwd=cwd,
            client=client,
            home=self._home,
            environ=self._environ,
            # As in `k3agent run`: nobody can be asked.
            default_mode="auto",
            extra_dirs=(),
        )
        limits = options.limits
        if max_turns is not None and max_turns < (limits.max_turns or max_turns + 1):
            sources = {**limits.sources, "max_turns": "max_turns of the call"}
            limits = dataclasses.replace(limits, max_turns=max_turns, sources=sources)
        options = dataclasses.replace(
            options,
            allow=(*settings.allow, *self._allow),
            deny=(*settings.deny, *self._deny),
            limits=limits,
        )
        try:
            if session_id is None:
                session = await Session.create(options)
            else:
                session = await Session.resume(session_id, options)
        except BaseException:
            await client.aclose()
            raise
        task = _Task(session, client, Broadcast(session, self._home))
        await task.broadcast.start()
        session.subscribe(task.event)
        self._tasks[session.id] = task
        closed = [name for name, old in self._tasks.items() if old.report is not None]
        for name in closed[:-MAX_REPORTS]:
            del self._tasks[name]
        return task

    # --- reports ------------------------------------------------------------------------------------------

    def _report(self, task: _Task, *, is_over: bool = False) -> JsonObject:
        session, receipt = task.session, task.session.receipt
        # A turn that has just ended has not said yet how.
        is_running = not is_over and task.ended is None and not task.error
        state = "running" if is_running else "failed"
        if task.ended is not None:
            state = task.ended.outcome.value
        report: JsonObject = {
            "session_id": session.id,
            "state": state,
            "answer": "" if is_running else task.said,
            "detail": task.error or (task.ended.detail if task.ended is not None else ""),
            "files_changed": list(receipt.files_changed),
            "denials": [f"{denial['summary']}: {denial['reason']}" for denial in receipt.denials],
            "num_turns": receipt.num_turns,
            "cost_usd": receipt.cost_usd,
        }
        if is_running:
            report["doing"] = task.doing
        return report

    def _status(self, session_id: str | None) -> JsonObject:
        task = self._tasks.get(session_id or "")
        if task is not None:
            return task.report or self._report(task)
        store = SessionStore(self._home)
        try:
            if session_id is not None:
                found = store.resolve(session_id)
                last = store.last_turn(found)
                state = "new" if last is None else last.outcome or "unfinished"
                answers = [
                    message.text for message in store.messages(found) if message.role is Role.ASSISTANT
                ]
                return {"session_id": found, "state": state, "answer": answers[-1] if answers else ""}
            rows = [row for row in store.shown_sessions() if Path(row.cwd).is_relative_to(self._cwd)]
        finally:
            store.close()
        listed = [
            {
                "session_id": row.id,
                "title": row.title,
                "cwd": row.cwd,
                "updated_at": row.updated_at.isoformat(),
                "is_running": row.id in self._tasks and self._tasks[row.id].report is None,
            }
            for row in rows
        ]
        return {"sessions": listed[:NUM_LISTED]}


def _check(arguments: JsonObject, schema: JsonObject) -> None:
    """Raises ValueError for arguments that the schema does not allow."""
    import jsonschema  # lazy: 0.1 s, with the first call

    problem = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(arguments)), None)
    if problem is not None:
        raise ValueError(f"bad arguments: {problem.message}")


def _result(value: JsonObject, *, is_error: bool = False) -> JsonObject:
    """For programs, and the same in words for models: the answer first."""
    import json  # lazy: loaded by now

    rest = {key: item for key, item in value.items() if key != "answer" and item not in ("", [], None)}
    text = "\n\n".join(
        part for part in (str(value.get("answer", "")), json.dumps(rest, ensure_ascii=False)) if part
    )
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": value,
        **({"isError": True} if is_error else {}),
    }
