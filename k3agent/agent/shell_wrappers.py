"""Programs that run another command (`env`, `timeout`, `xargs`, ...): which of their words it is made of."""

from __future__ import annotations

import re
from itertools import pairwise

Word = str | None
"""A word's text, or None when it depends on what is known only at run time."""

# Programs that run another command: how many of their own words come first is found by skipping options.
WITH_VALUE = {
    "env": {"-u", "-C", "-S", "-a", "--unset", "--chdir", "--argv0"},
    "nice": {"-n", "--adjustment"},
    "timeout": {"-s", "-k", "--signal", "--kill-after"},
    "xargs": {
        *("-I", "-n", "-P", "-L", "-d", "-a", "-E", "-s", "--max-args", "--max-procs", "--max-chars"),
        *("--delimiter", "--arg-file", "--process-slot-var"),
    },
    "time": {"-o", "-f", "--output", "--format"},
    "stdbuf": {"-i", "-o", "-e", "--input", "--output", "--error"},
    "ionice": {"-c", "-n", "--class", "--classdata"},
    "nohup": set(),
    "setsid": set(),
    "command": set(),
    "builtin": set(),
    "exec": {"-a"},
    "busybox": set(),
    "unbuffer": set(),
    "watch": {"-n", "--interval"},
    "flock": {"-w", "-E"},
    "chrt": set(),
    "parallel": {"-j", "--jobs"},
    "coproc": set(),
    "strace": {"-o", "-e", "-p", "-s", "-u", "-E", "-P"},
    "ltrace": {"-o", "-e", "-p", "-s", "-u", "-n"},
    "taskset": set(),
    "setarch": set(),
    "linux32": set(),
    "linux64": set(),
    "prlimit": set(),
    "numactl": {"-N", "-m", "-C"},
    "catchsegv": set(),
}
# Options without a value, or with one in the same word, of those that are harmless where what they run is so.
# With any other option it is not known which word is the program.
WITHOUT_VALUE = {
    "env": r"-[i0v]+|--(ignore-environment|null|debug|(block|default|ignore)-signal)",
    "nice": r"--?\d+",
    "timeout": r"-[fpv]+|--(foreground|preserve-status|verbose)",
    "xargs": r"-[0rtxpo]+|-[0rtxpo]*[ile].*|--(null|no-run-if-empty|verbose|exit|interactive|replace|eof)",
    "time": r"-[pavq]+|--(portability|append|verbose|quiet)",
    "stdbuf": "",
    "ionice": r"-t|--ignore",
    "nohup": "",
    "setsid": r"-[cfw]+|--(ctty|fork|wait)",
    "command": r"-[pvV]+",
    "builtin": "",
    "exec": r"-[cl]+",
    "busybox": "",
    "unbuffer": r"-p",
    "watch": r"-[bcdegtxpw]+|--(beep|color|differences|errexit|chgexit|no-title|exec|precise|no-wrap)",
    "chrt": r"-[abdfior]+",
    "coproc": "",
}
WITH_OPERAND = frozenset({"timeout", "flock", "taskset", "setarch"})
# Options that carry a command as one text.
TEXT_OPTIONS = {
    "script": ("-c", "--command"),
    "flock": ("-c", "--command"),
    "mapfile": ("-C",),
    "readarray": ("-C",),
    "complete": ("-C",),
    "compgen": ("-C",),
}


def after_replacing(rest: tuple[Word, ...], words: tuple[Word, ...]) -> tuple[Word, ...]:
    """What `xargs` runs. The words from the pipe are not known, at the end or where -I puts them."""
    own = rest[: len(rest) - len(words)]
    marks = ["{}"] if any(re.match(r"-i|--replace", word or "") for word in own) else []
    marks += [word[2:] for word in own if word and word.startswith("-I") and len(word) > 2]
    marks += [mark or "" for word, mark in pairwise(own) if word == "-I"]
    if marks:
        return tuple(None if word is None or any(mark in word for mark in marks) else word for word in words)
    return (*words, None) if words else ()


def after_options(words: tuple[Word, ...], with_value: set[str], without: str | None) -> tuple[Word, ...]:
    """What follows the options; an unknown program where one is not in `with_value`, nor like `without`."""
    letters = "".join(name[1] for name in with_value if len(name) == 2)
    attached = rf"-[{letters}].+" if letters else r"(?!)"
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[index + 1 :]
        if word is None or not word.startswith("-") or word == "-":
            return words[index:]
        is_clear = re.fullmatch(rf"{without}|{attached}|--[a-z-]+=.*", word, re.DOTALL)
        if without is not None and word not in with_value and not is_clear:
            return (None,)
        index += 2 if word in with_value else 1
    return ()
