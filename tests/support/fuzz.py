"""Random shell commands around things that write beside the workspace, and around things that only look."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable

from support.hostile import CORPUS

WRITES = (
    *("touch ../outside/new", "cp a.py ../outside/new", "tee ../outside/new", "rm ../outside/file"),
    *(
        "mv a.py ../outside/new",
        "ln -s / ../outside/new",
        "mkdir ../outside/new",
        "dd if=a.py of=../outside/new",
    ),
    *("sort -o ../outside/new a.py", "sort --output=../outside/new a.py", "uniq a.py ../outside/new"),
    *("sed -i s/o/x/ ../outside/file", "sed -n 'w ../outside/new' a.py", "find ../outside -delete"),
    *("find . -fprint ../outside/new", "truncate -s 0 ../outside/file", "chmod 0 ../outside/file"),
    *("git diff --output=../outside/new", "git log --output=../outside/new", "echo x > ../outside/new"),
    *("echo x >> ../outside/file", "printf x >| ../outside/new", "cat a.py &> ../outside/new"),
    *(
        "ls 2> ../outside/new",
        "tree -o ../outside/new",
        "shuf -o ../outside/new a.py",
        "split a.py ../outside/x",
    ),
    *("date -s 12:00 > ../outside/new", "file -C -m ../outside/new", "awk 'BEGIN{print>\"../outside/new\"}'"),
    *('python3 -c \'open("../outside/new","w")\'', "xargs touch <<< ../outside/new", "> ../outside/new"),
    *("test -v 'a[$(touch ../outside/new)0]'", "printf -v 'a[$(touch ../outside/new)0]' x"),
    *("read 'a[$(touch ../outside/new)0]' <<< x", "wait -p 'a[$(touch ../outside/new)0]' -n"),
    *("[ -v 'a[$(touch ../outside/new)0]' ]", "set -- $(touch ../outside/new)", "cd ../outside; touch new"),
)
PLAIN = (
    "ls",
    "cat a.py",
    "echo hi",
    "git status",
    "true",
    "wc -l a.py",
    "grep -c x a.py",
    "pwd",
    "sort a.py",
)
Wrap = Callable[[str, random.Random], str]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _anywhere(text: str, dice: random.Random, insert: str) -> str:
    at = dice.randrange(len(text) + 1)
    return text[:at] + insert + text[at:]


WRAPS: tuple[Wrap, ...] = (
    lambda text, dice: f"({text})",
    lambda text, dice: f"{{ {text}; }}",
    lambda text, dice: f"echo $({text})",
    lambda text, dice: f"echo `{text}`",
    lambda text, dice: f'echo "${{x:-$({text})}}"',
    lambda text, dice: f"cat <({text})",
    lambda text, dice: f"cat a.py > >({text})",
    lambda text, dice: f"if {text}; then ls; fi",
    lambda text, dice: f"while {text}; do break; done",
    lambda text, dice: f"for i in 1; do {text}; done",
    lambda text, dice: f"case x in x) {text};; esac",
    lambda text, dice: f"f() {{ {text}; }}; f",
    lambda text, dice: f"ls() {{ {text}; }}; ls",
    lambda text, dice: f"bash -c {_quoted(text)}",
    lambda text, dice: f"eval {_quoted(text)}",
    lambda text, dice: f"env {text}",
    lambda text, dice: f"timeout 5 {text}",
    lambda text, dice: f"command {text}",
    lambda text, dice: f"X=1 {text}",
    lambda text, dice: f"! {text}",
    lambda text, dice: f"time {text}",
    lambda text, dice: f"[[ -n $({text}) ]]",
    lambda text, dice: f"echo $((1 + $({text} | wc -l)))",
    lambda text, dice: f"x=$({text})",
    lambda text, dice: f"x=({text})",
    lambda text, dice: f"cat <<E\n$({text})\nE",
    lambda text, dice: f"cat <<'E'\nx\nE\n{text}",
    lambda text, dice: f"trap {_quoted(text)} EXIT",
    lambda text, dice: f"echo {_quoted(text)} | sh",
    lambda text, dice: f"echo {_quoted(text)} | xargs -I% sh -c %",
    lambda text, dice: f"find . -maxdepth 0 -exec {text} \\;",
    lambda text, dice: f"{text} 2>/dev/null",
    lambda text, dice: f"{text} < a.py",
    lambda text, dice: f"{dice.choice(PLAIN)} | {text}",
    lambda text, dice: f"{dice.choice(PLAIN)}{dice.choice((' && ', ' || ', '; ', ' & ', chr(10)))}{text}",
    lambda text, dice: (
        f"{text}{dice.choice((' && ', ' || ', '; ', ' & ', ' | ', chr(10)))}{dice.choice(PLAIN)}"
    ),
    lambda text, dice: f"ls # {text}",
    lambda text, dice: f"ls '# ' # \n{text}",
    lambda text, dice: f"echo {_quoted(text)}",
    lambda text, dice: _anywhere(text, dice, "\\\n"),
    lambda text, dice: _anywhere(text, dice, "''"),
    lambda text, dice: _anywhere(text, dice, '""'),
    lambda text, dice: _anywhere(text, dice, "\\"),
    lambda text, dice: _anywhere(text, dice, dice.choice("'\"`$(){}[]<>|&;#!*?~= \t\n\r")),
    lambda text, dice: text.replace(
        "../outside", dice.choice(("~/outside", "$HOME/outside", "./../outside"))
    ),
    lambda text, dice: text.replace(
        "../outside", dice.choice(('"$PWD"/../outside', "../outs*", "..//outside"))
    ),
)


def pool() -> tuple[str, ...]:
    """What is wrapped: short writing commands, and hostile ones of the corpus."""
    groups = [
        group
        for name in ("git", "links", "syntax", "writes")
        for group in tomllib.loads((CORPUS / f"hostile/{name}.toml").read_text(encoding="utf-8"))["group"]
    ]
    return (*WRITES, *(command for group in groups for command in group["commands"]))


def command(dice: random.Random, texts: tuple[str, ...]) -> str:
    text = dice.choice(texts) if dice.random() < 0.9 else dice.choice(PLAIN)
    for _ in range(dice.choice((0, 1, 1, 2, 2, 3, 4))):
        text = dice.choice(WRAPS)(text, dice)
    return text
