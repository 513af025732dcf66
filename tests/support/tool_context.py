"""A workspace and its context; `call` runs a tool as the agent would: parse, access, run."""

import os
from pathlib import Path

import pytest

from k3agent.errors import ToolError
from k3agent.tools import BUILTIN
from k3agent.tools.base import Question, ToolContext, ToolOutput
from k3agent.tools.jobs import JobTable
from k3agent.tools.sandbox.none import NoSandbox
from k3agent.tools.support.freshness import Freshness


async def nobody(question: Question) -> str:
    raise ToolError(f"Nobody can answer: {question.text}")


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    root = tmp_path.resolve() / "ws"
    root.mkdir()
    output = tmp_path.resolve() / "out"
    return ToolContext(
        cwd=root,
        environ=dict(os.environ),
        output_dir=output,
        freshness=Freshness(),
        jobs=JobTable(output),
        sandbox=NoSandbox(),
        emit=lambda text: None,
        ask=nobody,
    )


class Caller:
    def __init__(self, ctx: ToolContext) -> None:
        self.ctx = ctx

    async def __call__(self, name: str, **arguments) -> str:
        return (await self.output(name, **arguments)).text

    async def output(self, name: str, **arguments) -> ToolOutput:
        tool = BUILTIN[name]
        args = tool.args.model_validate(arguments)
        assert "\n" not in tool.describe(args)
        tool.access(args, self.ctx)
        return await tool.run(args, self.ctx)

    async def error(self, name: str, **arguments) -> str:
        with pytest.raises(ToolError) as caught:
            await self(name, **arguments)
        return str(caught.value)


@pytest.fixture
def call(ctx: ToolContext) -> Caller:
    return Caller(ctx)
