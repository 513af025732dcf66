"""`k3agent acp`: the flags of the editors' server, and its start."""

from __future__ import annotations

import os
from collections.abc import Sequence

from k3agent.acp import command
from k3agent.headless.arguments import Parser


def acp(argv: Sequence[str]) -> int:
    parser = Parser("acp", command.DESCRIPTION)
    command.add_flags(parser)
    return command.run(parser.parse(argv), os.environ)
