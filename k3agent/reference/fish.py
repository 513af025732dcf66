"""The completion script for fish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3agent.reference.tree import Flag, Place, Value

HEAD = """# Completion of k3agent in fish. Made by: k3agent completions fish

function __k3agent_at -a wanted -d 'whether the command so far is the wanted one'
    set -l words (commandline -opc)
    set -l place ''
    if contains -- "$words[2]" {commands}
        set place $words[2]
        if contains -- "$place $words[3]" {actions}
            set place "$place $words[3]"
        end
    else if string match -q -- '-*' "$words[2]"; and string match -qr -- '^(-p|--print)$' $words
        set place run
    end
    test "$place" = "$wanted"
end

function __k3agent_next -a wanted count -d 'whether its action is to be named now'
    __k3agent_at "$wanted"; and test (count (commandline -opc)) -eq $count
end

function __k3agent_sessions -d 'ids of sessions, and when each was last used'
    set -l words (commandline -opc)
    command -q $words[1]; or return
    $words[1] sessions list 2>/dev/null </dev/null | string replace -rf \\
        '^([0-9a-zA-Z-]+)  (\\d{{4}}-\\d\\d-\\d\\d \\d\\d:\\d\\d).*' '$1\\t$2'
end

complete -c k3agent -e
complete -c k3agent -f
"""


def script(places: Sequence[Place]) -> str:
    commands = " ".join(place.path for place in places if len(place.words) == 1)
    actions = " ".join(_quoted(place.path) for place in places if len(place.words) == 2)
    head = HEAD.format(commands=commands, actions=actions)
    return head + "".join(line for place in places for line in _lines(place))


def _lines(place: Place) -> Iterator[str]:
    here = f"complete -c k3agent -n {_quoted(f'__k3agent_at {_quoted(place.path)}')}"
    following = f"__k3agent_next {_quoted(place.path)} {len(place.words) + 1}"
    for name, text in place.actions.items():
        yield f"complete -c k3agent -n {_quoted(following)} -a {name} -d {_quoted(text)}\n"
    for flag in place.flags:
        yield f"{here} {_flag(flag)} -d {_quoted(flag.help)}\n"
    for value in dict.fromkeys(operand.value for operand in place.operands):
        if value.kind:
            yield f"{here} {_values(value)}\n"


def _flag(flag: Flag) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
    if flag.value is None:
        return " ".join(names)
    return " ".join([*names, *(["-r"] if flag.needs_value else []), _values(flag.value)])


def _values(value: Value) -> str:
    match value.kind:
        case "words":
            return f"-f -a {_quoted(' '.join(value.words))}"
        case "file":
            return "-F"
        case "folder":
            return "-f -a '(__fish_complete_directories)'"
        case "session":
            return "-f -a '(__k3agent_sessions)'"
    return "-f"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
