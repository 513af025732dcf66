"""The product's tools in this process: what the agent's calls give, with the same words, but fast
enough for training.

All but shell are the real tools. shell has the real tool's output format; it runs Python commands in a
zygote and everything else in a real shell.
"""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError

from k3agent.backend.training.episodes.outputs import Look
from k3agent.backend.training.episodes.programs import ROOT, Said
from k3agent.backend.training.episodes.workspace import Workspace
from k3agent.backend.training.episodes.zygote import Zygote, parse_python
from k3agent.errors import ToolError
from k3agent.tools import grep as grep_module
from k3agent.tools.base import ToolContext
from k3agent.tools.edit import EditTool
from k3agent.tools.glob import GlobTool
from k3agent.tools.grep import GrepTool
from k3agent.tools.read import ReadTool
from k3agent.tools.support import testruns
from k3agent.tools.support.freshness import Freshness
from k3agent.tools.trial import TrialTool
from k3agent.tools.write import WriteTool

REAL = {tool.name: tool for tool in (ReadTool(), WriteTool(), EditTool(), GrepTool(), GlobTool())}


async def _inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


# The agent searches a single file in a thread; here there is no event loop and nothing to do meanwhile.
setattr(grep_module, "asyncio", SimpleNamespace(to_thread=_inline))  # noqa: B010 - a module's attribute on purpose
# The folder lies in memory; git is to say what it says on a disk where there is no repository.
ENVIRON = {**os.environ, "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1"}
ENVIRON.pop("PYTHONSAFEPATH", None)  # with it `python -c` would not find the project's modules
FAILED_BEFORE = (
    "this same call failed before, and nothing has changed since."
    " Change the arguments, look again, or report what is wrong."
)
"""What the agent says to a small model that repeats a call that failed (a test compares the words)."""
NAMES = ("read", "write", "edit", "grep", "glob", "shell", "try")


REFUSABLE = {
    "rm": "remove",
    "mv": "move",
    "mkdir": "create directory",
    "cp": "create regular file",
}
"""Commands that a system can refuse, and what they then say that they cannot do."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave, as the model sees it (an error begins with `Error: `)."""

    text: str
    is_error: bool = False

    @property
    def lines(self) -> list[str]:
        """The text's lines."""
        return self.text.split("\n")


@dataclass(slots=True)
class Machine:
    """How the computer of an episode differs: which commands work there, and the folder's shown name."""

    python: str = "python"
    has_pytest: bool = True
    shell_denied: str = ""
    edits_denied: str = ""
    shown_root: str = ""
    look: Look | None = None
    endless: str = ""
    """A command with this text in it never ends; `shown_before` is what it prints."""
    shown_before: str = ""
    refused: str = ""
    """What the system says to each command that would make, move or remove files."""
    programs: dict[str, Said] = field(default_factory=dict)
    """What commands say whose programs are not on every computer."""


class _Trial(TrialTool):
    """The real tool, whose commands run in the toolbox: the first one, and those that a bug's own judge lets
    through, since most changes need no test to be known as wrong.
    """

    def __init__(self, box: "Toolbox") -> None:
        self._box = box

    async def _code(self, command: str, limit_s: float, ctx: ToolContext) -> tuple[int | None, str]:
        box = self._box
        if box.tried is not None and not box.tried():
            return 1, ""
        said, _, last = box.shell(command).rpartition("\n")
        code = int(last.removeprefix("[exit code ").removesuffix("]"))
        return code, "\n".join(said.split("\n")[-10:])

    def _now(self) -> float:
        # No search of an episode ends for its time: how long it takes would show in its tokens.
        return 0.0


class Toolbox:
    """Calls tools in a workspace."""

    tried: Callable[[], bool] | None = None
    """Whether the command of `try` is to be run: the first time, or the change just made may be right."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.machine = Machine()
        self._zygote: Zygote | None = None
        self._failed: set[str] = set()
        self.new_session()

    def new_session(self, machine: Machine | None = None) -> None:
        """Forget what was read."""
        self.machine = machine or Machine()
        self._failed.clear()
        root = Path(self.workspace.root)
        self.context = ToolContext(
            cwd=root,
            environ={},
            output_dir=root,
            freshness=Freshness(),
            jobs=None,
            sandbox=None,
            emit=lambda text: None,
            ask=_nobody,  # type: ignore[arg-type]
        )

    def start(self) -> None:
        """Start the zygote now (before threads exist)."""
        if self._zygote is None:
            self._zygote = Zygote()

    def close(self) -> None:
        """End the zygote and remove the folder."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        self.workspace.close()

    def call(self, name: str, args: dict[str, Any]) -> Result:
        """Run one call; an edit that failed before is refused until something was changed or run."""
        key = json.dumps(args, sort_keys=True) if name in ("edit", "try") else ""
        if key in self._failed:
            return Result(f"Error: {FAILED_BEFORE}", True)
        result = self._call(name, args)
        if key and (result.is_error or (name == "try" and not result.text.endswith("[exit code 0]"))):
            self._failed.add(key)
        elif not result.is_error and name in ("write", "edit", "shell", "try"):
            self._failed.clear()
        return result

    def new_turn(self) -> None:
        """The user has spoken: what failed before may be tried again."""
        self._failed.clear()

    def _call(self, name: str, args: dict[str, Any]) -> Result:
        try:
            if self.machine.edits_denied and name in ("write", "edit", "try"):
                raise ToolError(self.machine.edits_denied.format(path=args["path"]))
            if name == "try":
                return Result(self._real(_Trial(self), args))
            if name in REAL:
                return Result(self._real(REAL[name], args))
            return Result(self.shell(str(args["command"])))
        except ToolError as error:
            return Result(f"Error: {error}", True)

    def _real(self, tool: Any, args: dict[str, Any]) -> str:
        try:
            parsed = tool.args.model_validate(args)
        except ValidationError as error:
            first = error.errors()[0]
            raise ToolError(
                f"bad arguments for {tool.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}."
            ) from error
        step = tool.run(parsed, self.context)
        try:
            step.send(None)
        except StopIteration as stop:
            return stop.value.text or "(no output)"
        except RuntimeError as error:
            if "no running event loop" not in str(error):
                raise
            # A search that ripgrep must do: rare, so the loop is made for it alone.
            return asyncio.run(tool.run(parsed, self.context)).text or "(no output)"  # type: ignore[arg-type]
        raise RuntimeError(
            f"the tool {tool.name} waits for something; it must run without an event loop here"
        )

    def _python(self, argv: list[str]) -> tuple[str, int]:
        """Output and exit code of `python argv...`, test runs as the machine shows them."""
        self.start()
        assert self._zygote is not None
        look, module = self.machine.look, argv[1] if argv[:1] == ["-m"] else ""
        if look is not None and module == "pytest":
            # As `addopts` of a settings file: before what the command says.
            argv = [*argv[:2], *look.flags, *argv[2:]]
        output, code = self._zygote.run(self.workspace.root, argv)
        if look is not None and module == "pytest":
            return look.pytest_output(output, self.workspace.root), code
        if look is not None and module == "unittest":
            return look.unittest_output(output), code
        return re.sub(r"\bin \d+\.\d+s\b", "in 0.02s", output), code

    def shell(self, command: str) -> str:
        """What the shell prints, and its last line."""
        machine = self.machine
        if machine.shell_denied:
            raise ToolError(machine.shell_denied)
        argv = parse_python(command)
        first = command.split(" ", 1)[0]
        if first in ("python", "python3", "pytest") and first not in (machine.python, "python3", "pytest"):
            return f"bash: line 1: {first}: command not found\n[exit code 127]"
        if first == "pytest" and not machine.has_pytest:
            return "bash: line 1: pytest: command not found\n[exit code 127]"
        if first == "pytest":
            argv = ["-m", *shlex.split(command)]
        if argv is not None and argv[:2] == ["-m", "pytest"] and not machine.has_pytest:
            return f"/usr/bin/{first}: No module named pytest\n[exit code 1]"
        if machine.endless and machine.endless in command:
            look = machine.look
            shown = look.warning() if look is not None and look.before and argv is not None else []
            return "\n".join(filter(None, (*shown, machine.shown_before, "[timed out after 120 s; killed]")))
        if command in machine.programs:
            said = machine.programs[command]
            said = said if isinstance(said, str) else said.now(self.workspace.root)
            return said.replace(ROOT, machine.shown_root or self.workspace.root)
        if machine.refused and first in REFUSABLE:
            return f"{refusal(command, machine.refused, self.workspace.root)}\n[exit code 1]"
        if argv is not None:
            output, code = self._python(argv)
        else:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.workspace.root,
                env=ENVIRON,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=20,
                check=False,
            )
            output, code = done.stdout.decode("utf-8", "replace"), done.returncode
        if machine.shown_root:
            output = output.replace(self.workspace.root, machine.shown_root)
        for prefix in (sys.prefix, sys.base_prefix):
            output = output.replace(f"{prefix}/", "/usr/")
        output = output.rstrip()
        idle = "" if code else testruns.mark(command, output)
        return "\n".join(filter(None, (output, idle, f"[exit code {code}]")))


def refusal(command: str, why: str, root: str) -> str:
    """What the first program of a command says when the system refuses what it asks for."""
    parts = [shlex.split(part) for part in command.split(" && ")]
    # A folder that is there needs not be made.
    words = next(part for part in parts if part[0] != "mkdir" or not Path(root, part[-1]).is_dir())
    program, names = words[0], [word for word in words[1:] if not word.startswith("-")]
    deed, last = REFUSABLE[program], names[-1]
    match program:
        case "mv":
            return f"mv: cannot move '{names[0]}' to '{last}': {why}"
        case "rm":
            top = Path(root)
            found = [item for name in names for item in sorted(map(str, top.glob(name))) or [name]]
            found = [item.removeprefix(f"{root}/") for item in found]
            return "\n".join(f"rm: cannot {deed} '{name}': {why}" for name in found)
        case _:
            mark = ("‘", "’") if program == "mkdir" else ("'", "'")
            return f"{program}: cannot {deed} {mark[0]}{last}{mark[1]}: {why}"


async def _nobody(question: object) -> str:
    raise ToolError("nobody can answer here.")
