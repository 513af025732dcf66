"""What a headless run is given: the prompt, images, a schema for the answer, lines of user messages."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from k3agent.agent.building import choose_sandbox
from k3agent.agent.checks import can_come, missing_program, missing_text
from k3agent.agent.commands import called_name, load_commands
from k3agent.agent.options import SessionOptions
from k3agent.config.places import find_places
from k3agent.errors import ConfigError, K3AgentError, did_you_mean
from k3agent.safety.images import image_type
from k3agent.types import ImagePart, JsonObject

# How long to wait for a pipe that was announced with --stdin and has nothing yet, and between its pieces.
_GRACE_S = 0.5
_SILENCE_S = 2.0


class UsageError(K3AgentError):
    """The command line is wrong: exit 2."""


def read_prompt(prompt: str | None, *, with_stdin: bool) -> str | None:
    """The prompt: the argument, standard input for `-`, or both with `--stdin`. An open, silent standard
    input is never waited for unless `-` asks for it.
    """
    if prompt == "-":
        return sys.stdin.buffer.read().decode("utf-8", errors="replace")
    if prompt is not None:
        prompt = argument_text(prompt)
    if not with_stdin:
        return prompt
    attached = _read_available(sys.stdin.fileno())
    if not attached:
        return prompt
    return f"{prompt}\n\n{attached}" if prompt else attached


def argument_text(argument: str) -> str:
    """An argument's bytes read as UTF-8, whatever the locale; what is none becomes U+FFFD."""
    try:
        return os.fsencode(argument).decode("utf-8", errors="replace")
    except UnicodeEncodeError:
        return argument.encode("utf-8", errors="replace").decode("utf-8")


def require_known_command(prompt: str, cwd: Path, environ: Mapping[str, str], home: Path) -> None:
    """Raises UsageError for a prompt that calls a command which is not there. `home`: the data folder."""
    name = called_name(prompt)
    if not name:
        return
    places = find_places(cwd.resolve(), environ, home)
    known = load_commands(places.find("commands"), [])
    if name in known:
        return
    kept_out = [place for place in places.untrusted if place.name == "commands"]
    command = load_commands(kept_out, []).get(name)
    if command is not None:
        raise UsageError(
            f"/{name} is not known: {command.path} is not trusted. Look at it, then trust it with"
            " `k3agent config trust`."
        )
    hint = did_you_mean(f"/{name}", [f"/{one}" for one in known])
    raise UsageError(
        f"/{name} is no command that is known here.{hint} Put a space before it to send it as plain words."
    )


async def lacking_programs(options: SessionOptions) -> list[str]:
    """What is to be told of checks whose programs are missing, where the work itself may bring them. Raises
    UsageError for a check that can never run.
    """
    named = [(command, missing_program(command, options.environ)) for command in options.checks]
    lacking = [missing_text(command, name) for command, name in named if name]
    if not lacking:
        return []
    sandbox = await asyncio.to_thread(choose_sandbox, options)
    if not can_come(options.environ, sandbox.name, (options.cwd, *options.extra_dirs)):
        raise UsageError(lacking[0])
    return lacking


def _read_available(descriptor: int) -> str:
    """All of a file, or of a pipe that has data; nothing of a terminal or of a pipe that stays silent."""
    if os.isatty(descriptor):
        return ""
    chunks: list[bytes] = []
    limit_s = _GRACE_S
    while select.select([descriptor], [], [], limit_s)[0]:
        chunk = os.read(descriptor, 65536)
        if not chunk:
            break
        chunks.append(chunk)
        limit_s = _SILENCE_S
    return b"".join(chunks).decode("utf-8", errors="replace")


def read_image(path: Path) -> ImagePart:
    """An image file by its content, not by its name."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--image {path}: {error.strerror}") from error
    mime = image_type(data)
    if mime is None:
        raise UsageError(f"--image {path}: not a PNG, JPEG, GIF, WebP or BMP file")
    return ImagePart(mime=mime, data=data)


def read_schema(path: Path) -> JsonObject:
    """The JSON schema of `--json-schema`, checked to be one."""
    from jsonschema import Draft202012Validator, SchemaError  # lazy: 0.1 s, only with the flag

    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--json-schema {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--json-schema {path} is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"--json-schema {path}: the root is no object")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(f"--json-schema {path}: no valid JSON schema: {error.message}") from error
    return schema


def parse_user_line(line: str) -> str:
    """The text of one line of `--input-format stream-json`."""
    try:
        data = json.loads(line)
        content = data["message"]["content"] if "message" in data else data["content"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"a line of standard input is no user message: {line[:120]!r}") from error
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [
        str(part.get("text", "")) for part in parts if isinstance(part, dict) and part.get("type") == "text"
    ]
    if not texts:
        raise UsageError(f"a line of standard input has no text: {line[:120]!r}")
    return "\n".join(texts)


def user_lines() -> Iterator[str]:
    """The user messages on standard input, one a line, until its end."""
    for raw in sys.stdin.buffer:
        line = raw.decode("utf-8", errors="replace").strip()
        if line:
            yield parse_user_line(line)
