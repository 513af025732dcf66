"""Completion in real shells: what bash, zsh and fish offer behind a line, with the printed script."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SHELLS = ("bash", "zsh", "fish")
NEWEST = "0a1b2c3d-1111-4222-8333-444455556666"
OLDEST = "9f8e7d6c-1111-4222-8333-444455556666"
PROGRAM = f"""#!/bin/sh
echo "$*" >> "$CALLS"
echo "{NEWEST}  2026-05-01 22:30    4 messages  nano            ● rm \\$(touch owned)  (/w)"
echo "{OLDEST}  2026-04-01 12:00    2 messages  nano            ; touch owned  (/w)"
"""

# The function is called by readline, as the script has it registered, and writes down what it replied.
BASH = r"""
PS1=
source "$SCRIPT"
offer() { _k3agent; printf '%s\n' "${COMPREPLY[@]}" END >>"$OFFERED"; }
eval "$(complete -p k3agent | sed 's/-F _k3agent/-F offer/')"
echo READY >>"$OFFERED"
"""
# What is offered is what the completion hands to compadd; -O has it name what fits the word.
ZSH = r"""
PS1=
fpath=(${SCRIPT:h} $fpath)
autoload -Uz compinit
compinit -u -D
[[ $SCRIPT == */_k3agent ]] || source "$SCRIPT"
compadd() {
  local -a fitting
  if [[ " $* " != *' -'[OAD]' '* ]]; then
    builtin compadd -O fitting "$@"
    (( $#fitting )) && print -rl -- $fitting >>$OFFERED
  fi
  builtin compadd "$@"
}
offer() { zle complete-word; print -r -- END >>$OFFERED }
zle -N offer
bindkey '^I' offer
print -r -- READY >>$OFFERED
"""
FISH = "source $argv[1]; complete -C $argv[2]"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell, and a `k3agent` that writes down its calls."""
    folder = tmp_path_factory.mktemp("completions")
    for shell in SHELLS:
        command = [sys.executable, "-P", "-m", "k3agent", "completions", shell]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        (folder / f"k3agent.{shell}").write_text(ran.stdout, encoding="utf-8")
    (folder / "bin").mkdir()
    program = folder / "bin" / "k3agent"
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    return folder


def _bash(script: Path, line: str, environ: dict[str, str]) -> set[str]:
    return _in_terminal(["bash", "--norc", "--noprofile", "-i"], BASH, script, line, environ)


def _zsh(script: Path, line: str, environ: dict[str, str]) -> set[str]:
    return _in_terminal(["zsh", "-d", "-i", "+o", "globalrcs"], ZSH, script, line, environ)


def _in_terminal(command: list[str], text: str, script: Path, line: str, environ: dict[str, str]) -> set[str]:
    """Type the line and a tab into an interactive shell that was set up by `text`."""
    offered, set_up = Path(environ["HOME"]) / "offered", Path(environ["HOME"]) / "setup"
    offered.write_text("", encoding="utf-8")
    set_up.write_text(text, encoding="utf-8")
    child, terminal = pty.fork()
    if child == 0:
        own = {"SCRIPT": str(script), "OFFERED": str(offered), "TERM": "xterm", "INPUTRC": "/dev/null"}
        os.execvpe(command[0], command, {**environ, **own})
    try:
        _type(terminal, f" source {set_up}\n", offered, "READY")
        _type(terminal, f"{line}\t", offered, "END")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return set(offered.read_text(encoding="utf-8").split("\n")) - {"", "READY", "END"}


def _type(terminal: int, keys: str, offered: Path, mark: str) -> None:
    """Type, and read what the shell shows until the mark is written."""
    os.write(terminal, keys.encode())
    os.set_blocking(terminal, False)
    shown, end = b"", time.monotonic() + 120
    while mark not in offered.read_text(encoding="utf-8").split("\n"):
        try:
            shown += os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.05)
        assert time.monotonic() < end, f"the shell never came to {mark}: {shown!r}"


def _fish(script: Path, line: str, environ: dict[str, str]) -> set[str]:
    command = ["fish", "-c", FISH, str(script), line]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=True)
    assert not ran.stderr
    found = {row.partition("\t")[0] for row in ran.stdout.split("\n")} - {""}
    # fish puts the flag before each value of --flag=value
    return {word.rpartition("=")[2] for word in found}


OFFERS: dict[str, Callable[[Path, str, dict[str, str]], set[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}


@pytest.fixture(params=SHELLS)
def offer(
    request: pytest.FixtureRequest, scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], set[str]]:
    """What the shell offers behind a line, as a set of words."""
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{scripts / 'bin'}:{os.environ['PATH']}"
    home = tmp_path / ".home"
    home.mkdir()
    own = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "CALLS": str(tmp_path / "calls")}
    environ = {**os.environ, **own, "PATH": path}
    monkeypatch.chdir(tmp_path)
    return lambda line: OFFERS[shell](scripts / f"k3agent.{shell}", line, environ)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("k3agent se", {"sessions", "search", "serve"}),
        ("k3agent sessions u", {"uncompact"}),
        ("k3agent run --effort ", {"low", "high", "max"}),
        ("k3agent run --effort=", {"low", "high", "max"}),
        ("k3agent run --effort h", {"high"}),
        ("k3agent run --model sessions --eff", {"--effort"}),
        ("k3agent -p words --max-b", {"--max-budget-usd"}),
        ("k3agent --permission-mode pl", {"plan"}),
        ("k3agent sessions export --format h", {"html"}),
        ("k3agent mcp add --cl", {"--client-id"}),
        ("k3agent bench l", {"load"}),
        ("k3agent bench load --str", {"--streams"}),
        ("k3agent config get limits.max_turn", {"limits.max_turns"}),
        ("k3agent login moonshot-", {"moonshot-cn"}),
        ("k3agent completions ", set(SHELLS)),
    ],
)
def test_words_and_flags(
    offer: Callable[[str], set[str]], tmp_path: Path, line: str, offered: set[str]
) -> None:
    assert offer(line) == offered
    assert not (tmp_path / "calls").exists(), "the program was started for what the script knows"


def test_sessions_are_asked_for(offer: Callable[[str], set[str]], tmp_path: Path) -> None:
    assert offer("k3agent resume ") == {NEWEST, OLDEST}
    assert offer("k3agent sessions show 0") == {NEWEST}
    assert offer("k3agent run --resume 9f") == {OLDEST}
    assert set((tmp_path / "calls").read_text().splitlines()) == {"sessions list"}
    assert not (tmp_path / "owned").exists()


def test_files_and_folders(offer: Callable[[str], set[str]], tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text("{}")
    (tmp_path / "sources").mkdir()
    assert {word.rstrip("/") for word in offer("k3agent run --json-schema s")} == {"schema.json", "sources"}
    assert {word.rstrip("/") for word in offer("k3agent run --cwd s")} == {"sources"}


def test_a_prompt_gets_no_files(offer: Callable[[str], set[str]], tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    assert offer("k3agent run no") == set()


def test_zsh_loads_it_from_fpath(scripts: Path, tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    folder = tmp_path / "functions"
    folder.mkdir()
    shutil.copyfile(scripts / "k3agent.zsh", folder / "_k3agent")
    environ = {**os.environ, "HOME": str(tmp_path)}
    assert _zsh(folder / "_k3agent", "k3agent sessions unc", environ) == {"uncompact"}
