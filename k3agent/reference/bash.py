"""The completion script for bash, 3.2 and later, which macOS still has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3agent.reference.tree import Place, Value

HEAD = """# Completion of k3agent in bash. Made by: k3agent completions bash

_k3agent_place() { # PLACE: sets flags and actions
  flags='' actions=''
  case "$1" in
"""
VALUES = """  esac
}

_k3agent_value() { # "PLACE FLAG": sets kind and list; fails where the flag takes no value
  kind='' list=''
  case "$1" in
"""
OPERANDS = """    *) return 1 ;;
  esac
}

_k3agent_operand() { # "PLACE NUMBER": sets kind and list
  kind='' list=''
  case "$1" in
"""
TAIL = r"""  esac
}

_k3agent_reply() { # KIND LIST WORD: what begins with WORD
  local word found ids=''
  case "$1" in
    words) found=$(compgen -W "$2" -- "$3") ;;
    session)
      ids=$("${COMP_WORDS[0]}" sessions list 2>/dev/null </dev/null | while read -r word found; do
        # bash 3.2 needs the opening brackets within $( )
        case "$word" in (*[!0-9a-zA-Z-]*) ;; (*) printf '%s\n' "$word" ;; esac
      done)
      found=$(compgen -W "$ids" -- "$3") ;;
    file) compopt -o filenames 2>/dev/null; found=$(compgen -f -- "$3") ;;
    folder) compopt -o filenames 2>/dev/null; found=$(compgen -d -- "$3") ;;
    *) return ;;
  esac
  while IFS= read -r word; do
    if [ -n "$word" ]; then COMPREPLY+=("$prefix$word"); fi
  done <<<"$found"
}

_k3agent() {
  local place='' flags actions kind list word flag='' prefix='' cur="${COMP_WORDS[COMP_CWORD]}"
  local -i at=1 number=0
  COMPREPLY=()
  # Which command this is: the first word, and for some the second one.
  if [ "$COMP_CWORD" -gt 1 ]; then
    _k3agent_place ''
    case " $actions " in *" ${COMP_WORDS[1]} "*) place=${COMP_WORDS[1]} at=2 ;; esac
    case "${COMP_WORDS[1]}" in
      -*) case " ${COMP_WORDS[*]} " in *' -p '* | *' --print '*) place=run ;; esac ;;
    esac
    if [ "$at" = 2 ] && [ "$COMP_CWORD" -gt 2 ]; then
      _k3agent_place "$place"
      case " $actions " in *" ${COMP_WORDS[2]} "*) place="$place ${COMP_WORDS[2]}" at=3 ;; esac
    fi
  fi
  _k3agent_place "$place"
  [ "$at" = "$COMP_CWORD" ] || actions=''
  # What stands before: values of flags, and how many operands.
  while [ "$at" -lt "$COMP_CWORD" ]; do
    word=${COMP_WORDS[at]} flag=''
    case "$word" in
      --) return ;; # the words of another program
      =) ;;
      -?*)
        if _k3agent_value "$place $word"; then
          case "${COMP_WORDS[at + 1]}" in
            -*) ;; # a flag whose value may be left out
            =) if [ $((at + 1)) -lt "$COMP_CWORD" ]; then at+=2; else at+=1; fi; flag=$word ;;
            *) at+=1 flag=$word ;;
          esac
        fi ;;
      *) number+=1 ;;
    esac
    at+=1
  done
  [ "$cur" = = ] && cur=''
  case "$cur" in
    --*=*) flag=${cur%%=*} prefix=${cur%%=*}= cur=${cur#*=} at=COMP_CWORD+1 ;;
  esac
  if [ -n "$flag" ] && [ "$at" -gt "$COMP_CWORD" ] && _k3agent_value "$place $flag"; then
    _k3agent_reply "$kind" "$list" "$cur"
    return
  fi
  case "$cur" in
    -*) _k3agent_reply words "$flags" "$cur" ;;
    *)
      _k3agent_reply words "$actions" "$cur"
      _k3agent_operand "$place $number"
      _k3agent_reply "$kind" "$list" "$cur" ;;
  esac
}

complete -F _k3agent k3agent
"""


def script(places: Sequence[Place]) -> str:
    """For all of bash's ways to write a flag's value: `--flag value`, `--flag=value`."""
    parts = (HEAD, *_places(places), VALUES, *_values(places), OPERANDS, *_operands(places), TAIL)
    return "".join(parts)


def _places(places: Sequence[Place]) -> Iterator[str]:
    for place in places:
        flags = " ".join(name for flag in place.flags for name in flag.names)
        if not place.words:
            flags += " -p"
        actions = f" actions='{' '.join(place.actions)}'" if place.actions else ""
        yield f"    '{place.path}') flags='{flags}'{actions} ;;\n"


def _values(places: Sequence[Place]) -> Iterator[str]:
    keys: dict[str, list[str]] = {}
    for place in places:
        for flag in place.flags:
            if flag.value is not None:
                keys.setdefault(_assigned(flag.value), []).extend(
                    f"'{place.path} {name}'" for name in flag.names
                )
    for assigned, names in keys.items():
        yield "    " + " | \\\n      ".join(names) + f") {assigned};;\n"


def _operands(places: Sequence[Place]) -> Iterator[str]:
    for place in places:
        for number, operand in enumerate(place.operands):
            if operand.value.kind:
                key = f"'{place.path} '*" if operand.is_repeatable else f"'{place.path} {number}'"
                yield f"    {key}) {_assigned(operand.value)};;\n"


def _assigned(value: Value) -> str:
    if not value.kind:
        return ""
    words = f" list='{' '.join(value.words)}'" if value.words else ""
    return f"kind={value.kind}{words} "
