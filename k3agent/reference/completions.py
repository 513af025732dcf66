"""`k3agent completions SHELL`: prints a script that knows commands, flags and their values by itself.

Completing starts no Python, but for ids of sessions, which the script asks `k3agent sessions list` for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from k3agent.headless.arguments import Parser

SHELLS = ("bash", "zsh", "fish")
ABOUT = """Print a script that completes k3agent's commands, flags and session ids in a shell.
bash: k3agent completions bash > ~/.local/share/bash-completion/completions/k3agent;
zsh: k3agent completions zsh > DIR/_k3agent, DIR being in $fpath;
fish: k3agent completions fish > ~/.config/fish/completions/k3agent.fish."""


def completions(argv: Sequence[str]) -> int:
    """`k3agent completions bash|zsh|fish`."""
    parser = Parser("completions", ABOUT)
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    shell = parser.parse(argv).shell
    # lazy: brings the parsers of all commands
    from k3agent.reference import bash, fish, zsh
    from k3agent.reference.tree import places

    script = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}[shell](places())
    sys.stdout.write(script)
    return 0
