"""The flags of `k3agent run`."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from k3agent.config.flags import add_folders_and_prompt, add_model_and_rules
from k3agent.config.keys import with_stored_keys
from k3agent.config.paths import data_home
from k3agent.config.settings import SANDBOXES, Settings, load_settings
from k3agent.errors import ConfigError
from k3agent.headless.arguments import Parser, check_file, natural_int, positive_float, positive_int
from k3agent.safety.paths import is_folder


def run_parser() -> Parser:
    """Every flag with one line of help."""
    parser = Parser("run", "One prompt to the end, with nobody to ask. The answer is on standard output.")
    _add_inputs_and_outputs(parser)
    _add_backend_and_limits(parser)
    _add_session(parser)
    return parser


def _add_inputs_and_outputs(parser: Parser) -> None:
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="what to do; - reads it from standard input")
    add("--stdin", action="store_true", help="add what is piped in to the prompt")
    add(
        "--output-format", choices=("text", "json", "stream-json"), default="text",
        help="text: the answer; json: one result object; stream-json: JSON lines, the last is the result",
    )  # fmt: skip
    add(
        "--input-format", choices=("text", "stream-json"), default="text",
        help="stream-json: one user message a line on standard input",
    )  # fmt: skip
    add("--include-partial-messages", action="store_true", help="stream-json: also what is being streamed")
    add("--json-schema", type=Path, metavar="FILE", help="the answer is JSON valid against it")
    add("--image", action="append", default=[], type=Path, metavar="FILE", help="show an image; repeatable")
    add(
        "--receipt",
        type=Path,
        metavar="FILE",
        help="what ran, checks, cost, the files' state, as JSON in FILE",
    )
    add("-o", dest="answer_file", type=Path, metavar="FILE", help="the answer also into FILE")


def _add_backend_and_limits(parser: Parser) -> None:
    add = parser.add_argument
    add_model_and_rules(parser, "auto")
    add("--sandbox", choices=SANDBOXES, help="strict fails (44) where no sandbox works (default: auto)")
    add("--max-turns", type=positive_int, metavar="N", help="at most N model calls")
    add("--max-tokens", type=positive_int, metavar="N", help="at most N tokens, input and output")
    add("--max-output-tokens", type=positive_int, metavar="N", help="at most N tokens in one answer")
    add("--max-budget-usd", type=positive_float, metavar="X", help="at most X US dollars")
    add("--max-time", type=positive_float, metavar="S", help="at most S seconds")
    add("--max-disk", type=positive_float, metavar="MB", help="the workspace grows by at most MB megabytes")
    add(
        "--goal", action="append", default=[], metavar="TEXT",
        help="work until the checks pass or a limit ends it; repeatable: one after the other",
    )  # fmt: skip
    add("--goals", type=Path, metavar="FILE", help="goals from FILE, one a line")
    add(
        "--check", action="append", default=[], metavar="CMD", help="must pass before done counts; repeatable"
    )
    add(
        "--check-retries",
        type=natural_int,
        metavar="N",
        help="how often a failing check goes back (default: 3)",
    )


def _add_session(parser: Parser) -> None:
    add = parser.add_argument
    add("--resume", metavar="ID", help="go on with a session; without a prompt: finish its unfinished turn")
    add("--continue", action="store_true", dest="continues", help="go on with this folder's newest session")
    add("--fork-session", action="store_true", help="with --resume or --continue: as a new session")
    add("--session-id", type=_uuid, metavar="UUID", help="the id of the new session")
    add(
        "--mcp-config", action="append", default=[], type=Path, metavar="FILE",
        help="further MCP servers, in the form of .mcp.json; repeatable",
    )  # fmt: skip
    add("--ephemeral", action="store_true", help="store nothing")
    add("--at", type=_time, metavar="TIME", help="begin then: 22:30, or 2026-05-01T22:30")
    add("--detach", action="store_true", help="run in the background; k3agent resume ID watches it")
    add_folders_and_prompt(parser)


def run_command(argv: Sequence[str]) -> int:
    """`k3agent run`: the exit code."""
    # Nothing becomes garbage while modules load; the session switches the collector on again.
    gc.disable()
    parser = run_parser()
    args = parser.parse(argv)
    _check_combinations(parser, args)
    cwd = _cwd(parser, args)
    _check_paths(parser, args)
    environ = dict(os.environ)
    home = data_home(environ)
    if args.detach:
        from k3agent.headless.detach import detach  # lazy: only with the flag

        known = args.session_id or (None if args.fork_session else _known_session(args, home, cwd))
        return detach(argv, home=home, environ=environ, session_id=known)

    early_signals = _catch_signals()
    from k3agent.logs import start_logging  # lazy: after the flags are known to be right

    environ, key_problem = _with_keys(environ, home)
    start_logging(home, environ)
    from k3agent.headless.process import failed_before_start, run  # lazy: brings the agent
    from k3agent.headless.runoptions import RunOptions

    options = RunOptions(
        early_signals=early_signals,
        settings=Settings(),
        environ=environ,
        home=home,
        cwd=cwd,
        prompt=args.prompt,
        with_stdin=args.stdin,
        output_format=args.output_format,
        input_format=args.input_format,
        is_partial=args.include_partial_messages,
        resume_id=args.resume,
        continues_newest=args.continues,
        forks=args.fork_session,
        session_id=args.session_id,
        is_ephemeral=args.ephemeral,
        images=tuple(args.image),
        extra_dirs=tuple(path.expanduser().absolute() for path in args.add_dir),
        answer_file=args.answer_file,
        schema_file=args.json_schema,
        receipt_file=args.receipt,
        goals=_goals(parser, args),
        start_at=args.at,
    )
    try:
        if key_problem is not None:
            raise key_problem
        settings = _settings(args, environ, cwd)
    except ConfigError as error:
        return failed_before_start(options, error)
    return run(dataclasses.replace(options, settings=settings))


def _cwd(parser: Parser, args: Namespace) -> Path:
    """The folder to work in."""
    try:
        cwd = (args.cwd or Path.cwd()).expanduser().absolute()
    except (FileNotFoundError, RuntimeError):
        parser.error("the folder it was started in, or the user's home, is not there; name one with --cwd.")
    if any("\ud800" <= char <= "\udfff" for char in str(cwd)):
        parser.error(f"--cwd {str(cwd)!a}: the folder's name is no valid UTF-8; rename it.")
    if not is_folder(cwd):
        parser.error(f"--cwd {args.cwd}: no such folder.")
    return cwd


def _with_keys(environ: dict[str, str], home: Path) -> tuple[dict[str, str], ConfigError | None]:
    """The environment with stored keys, and what stood against it: to be told in the format of the run."""
    try:
        return with_stored_keys(environ, home), None
    except ConfigError as error:
        return environ, error


def _known_session(args: Namespace, home: Path, cwd: Path) -> str | None:
    """The whole id of the session that is gone on with."""
    if not args.resume and not args.continues:
        return None
    from k3agent.store.sessions import SessionStore  # lazy: sqlite

    store = SessionStore(home)
    try:
        if args.resume:
            return str(store.resolve(args.resume))
        row = store.latest(cwd)
        return None if row is None else str(row.id)
    finally:
        store.close()


def _catch_signals() -> list[int]:
    """A signal that comes while modules load is kept for the run, which gives a result for it too."""
    caught: list[int] = []
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, lambda number, _: caught.append(number))
    return caught


def _settings(args: Namespace, environ: dict[str, str], cwd: Path) -> Settings:
    """All layers, the flags last. Rules and checks of the flags come on top of those of the files."""
    flags = {
        "model": args.model,
        "provider": args.provider,
        "base_url": args.base_url,
        "effort": args.effort,
        "max_output_tokens": args.max_output_tokens,
        "permission_mode": args.permission_mode,
        "sandbox": args.sandbox,
        "append_system_prompt": args.append_system_prompt,
        "limits.max_turns": args.max_turns,
        "limits.max_tokens": args.max_tokens,
        "limits.max_budget_usd": args.max_budget_usd,
        "limits.max_time_s": args.max_time,
        "limits.max_disk_mb": args.max_disk,
        "checks.retries": args.check_retries,
    }
    settings = load_settings(environ, cwd, flags)
    return dataclasses.replace(
        settings,
        mcp_files=tuple(path.expanduser().absolute() for path in args.mcp_config),
        allow=(*settings.allow, *args.allow),
        deny=(*settings.deny, *args.deny),
        checks_commands=(*settings.checks_commands, *args.check),
    )


def _check_combinations(parser: Parser, args: Namespace) -> None:
    is_old = bool(args.resume) or args.continues
    if args.resume and args.continues:
        parser.error("--resume and --continue exclude each other.")
    if args.fork_session and not is_old:
        parser.error("--fork-session needs --resume ID or --continue.")
    if args.session_id and is_old and not args.fork_session:
        parser.error("--session-id names a new session; with --resume it needs --fork-session.")
    if args.detach and (args.stdin or args.prompt == "-" or args.input_format == "stream-json"):
        parser.error("--detach reads no standard input: give the prompt as an argument.")
    if args.detach and args.ephemeral:
        parser.error("--detach needs a stored session; leave --ephemeral out.")
    if args.ephemeral and is_old:
        parser.error("--ephemeral has no earlier sessions to go on with.")
    if args.input_format == "stream-json" and args.prompt is not None:
        parser.error("--input-format stream-json takes its prompts from standard input, not as an argument.")
    has_goals = bool(args.goal) or args.goals is not None
    if has_goals and (args.prompt is not None or args.stdin or args.input_format != "text"):
        parser.error("--goal takes the place of a prompt: give one or the other.")
    if (
        not has_goals
        and args.prompt is None
        and args.input_format == "text"
        and not args.stdin
        and not is_old
    ):
        parser.error("no prompt: give one, or - to read it from standard input.")


def _goals(parser: Parser, args: Namespace) -> tuple[str, ...]:
    from k3agent.headless.goals import read_goals  # lazy: brings the agent
    from k3agent.headless.inputs import UsageError

    try:
        return read_goals(args.goal, args.goals)
    except UsageError as error:
        parser.error(str(error))


def _check_paths(parser: Parser, args: Namespace) -> None:
    """What would be found out only after the work is done, or never."""
    for folder in args.add_dir:
        if not is_folder(folder.expanduser()):
            parser.error(f"--add-dir {folder}: no such folder.")
    for flag, file in (("-o", args.answer_file), ("--receipt", args.receipt)):
        check_file(parser, flag, file)


def _time(text: str) -> datetime:
    from k3agent.headless.schedule import parse_time  # lazy: brings asyncio

    return parse_time(text)


def _uuid(text: str) -> str:
    try:
        import uuid  # lazy: only with the flag

        return str(uuid.UUID(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no UUID") from error
