"""Would a command show or copy a file for secrets? Programs that use such a file are let be: that is what it
is for, and what they print of it is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from k3agent.agent.permissions import Territory
from k3agent.agent.shell_syntax import SimpleCommand, Word

_PLAIN = "cat tac head tail less more nl bat cut paste sort uniq fold column expand rev strings split jq yq"
_SEARCH = "grep egrep fgrep rg sed awk gawk mawk perl diff cmp comm"
_ENCODE = "od hexdump xxd base64 base32 openssl gzip tar zip"
_COPY = "tee cp mv ln scp rsync dd install curl wget"
SHOWERS = frozenset(f"{_PLAIN} {_SEARCH} {_ENCODE} {_COPY}".split())


def shown(simple: SimpleCommand, resolve: Callable[[Word], list[Path]], territory: Territory) -> str | None:
    """Why the user is to be asked, or None."""
    if simple.program not in SHOWERS:
        return None
    words = [word.removeprefix("@") for word in (*simple.words[1:], *simple.maybe) if word is not None]
    words += [word.partition("=")[2] for word in words if "=" in word]
    for one in simple.redirects:
        if one.operator == "<":
            words += one.maybe if one.target is None else [one.target]
    for word in words:
        if word.startswith("-"):
            continue
        for path in resolve(word):
            reason = territory.secret(path)
            if reason is not None:
                return reason
    return None


def protected(
    words: Iterable[str], resolve: Callable[[Word], list[Path]], territory: Territory
) -> str | None:
    """Why the user is to be asked about places that words may name, through links too, or None."""
    for word in words:
        text = word.split("=", 1)[1] if word.startswith("-") and "=" in word else word
        for path in () if text.startswith("-") else resolve(text.removeprefix("@")):
            reason = territory.protected(path, is_write=False)
            if reason is not None:
                return reason
    return None
