"""The completion script for zsh."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from k3agent.reference.tree import Flag, Operand, Place, Value

HEAD = """#compdef k3agent
# Completion of k3agent in zsh. Made by: k3agent completions zsh

_k3agent_sessions() {
  local line
  local -a found
  for line in ${(f)"$($program sessions list 2>/dev/null </dev/null)"}; do
    # the id, and when the session was last used
    [[ $line =~ '^([0-9a-zA-Z-]+)  ([0-9-]+ [0-9]+):([0-9]+)' ]] || continue
    found+=("$match[1]:$match[2].$match[3]")
  done
  _describe -V 'session' found
}

_k3agent() {
  local program=$words[1] place=''
  integer depth=1
  local -a actions
  _k3agent_actions ''
  if (( CURRENT > 2 )); then
    if (( ${actions[(I)${(b)words[2]}:*]} )); then
      place=$words[2] depth=2
      _k3agent_actions $place
      if (( CURRENT > 3 && ${actions[(I)${(b)words[3]}:*]} )); then
        place="$words[2] $words[3]" depth=3
      fi
    elif [[ $words[2] == -* && -n ${(M)words:#(-p|--print)} ]]; then
      place=run
    fi
  fi
  _k3agent_actions "$place"
  if (( CURRENT == depth + 1 && $#actions )) && [[ $words[CURRENT] != -* ]]; then
    _describe -V 'command' actions
    [[ $place == '' ]] && return
  fi
  words=("$program" "${(@)words[depth + 1, -1]}") # quoted: the last one may be empty
  (( CURRENT -= depth - 1 ))
  _k3agent_arguments
}

_k3agent_actions() { # PLACE: what may follow there
  case $1 in
"""
MIDDLE = """    (*) actions=() ;;
  esac
}

_k3agent_arguments() {
  local context state line
  typeset -A opt_args
  case $place in
"""
TAIL = """  esac
}

# Read as a function of fpath it is called at once, sourced it says what it is for.
if [[ $funcstack[1] == _k3agent ]]; then
  _k3agent "$@"
else
  compdef _k3agent k3agent
fi
"""


def script(places: Sequence[Place]) -> str:
    return "".join((HEAD, *_actions(places), MIDDLE, *_arguments(places), TAIL))


def _actions(places: Sequence[Place]) -> Iterator[str]:
    for place in places:
        if place.actions:
            rows = " ".join(_quoted(f"{name}:{text}") for name, text in place.actions.items())
            yield f"    ({_quoted(place.path)}) actions=({rows}) ;;\n"


def _arguments(places: Sequence[Place]) -> Iterator[str]:
    for place in places:
        specs = [spec for flag in place.flags for spec in _flag(flag)]
        if not place.words:
            specs.append("'-p[the same as k3agent run]'")
        specs += [_operand(number, operand) for number, operand in enumerate(place.operands, 1)]
        rows = " \\\n      ".join(specs)
        yield f"    ({_quoted(place.path)}) _arguments \\\n      {rows} ;;\n"


def _flag(flag: Flag) -> Iterator[str]:
    """One specification for each name; those that may stand once exclude each other."""
    for name in flag.names:
        others = "*" if flag.is_repeatable else f"({' '.join(flag.names)})"
        help_text = re.sub(r"([\\\[\]:])", r"\\\1", flag.help)
        if flag.value is None:
            yield _quoted(f"{others}{name}[{help_text}]")
        else:
            sign = "=" if name.startswith("--") else ""
            colon = ":" if flag.needs_value else "::"
            yield _quoted(f"{others}{name}{sign}[{help_text}]{colon}{_value(flag.value)}")


def _operand(number: int, operand: Operand) -> str:
    if operand.is_repeatable:
        return _quoted(f"*:{_value(operand.value)}")
    return _quoted(f"{number}:{'' if operand.is_needed else ':'}{_value(operand.value)}")


def _value(value: Value) -> str:
    """A name and what completes it."""
    name = re.sub(r"([\\:])", r"\\\1", value.name)
    does = {"file": "_files", "folder": "_files -/", "session": "_k3agent_sessions"}.get(value.kind, " ")
    return f"{name}:{'(' + ' '.join(value.words) + ')' if value.words else does}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
