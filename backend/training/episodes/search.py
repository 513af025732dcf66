"""Search inside a workspace without child processes, with the output of the product's `grep` and `glob` tools."""

import re
from functools import lru_cache

from k3agent.backend.training.episodes.workspace import walk

MAX_LINE = 300


@lru_cache(maxsize=4096)
def glob_regex(pattern: str) -> re.Pattern[str]:
    """A path pattern with `*`, `?`, `**`, `[...]` and `{a,b}` as a regular expression."""
    out = ""
    index = 0
    while index < len(pattern):
        char = pattern[index]
        if pattern.startswith("**/", index):
            out += "(?:.*/)?"
            index += 3
            continue
        if pattern.startswith("**", index):
            out += ".*"
            index += 2
            continue
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "{" and "}" in pattern[index:]:
            end = pattern.index("}", index)
            out += "(?:" + "|".join(re.escape(item).replace(r"\*", "[^/]*") for item in pattern[index + 1 : end].split(",")) + ")"
            index = end
        else:
            out += re.escape(char)
        index += 1
    return re.compile(out + r"\Z")


def glob(root: str, pattern: str, path: str = ".", limit: int = 200) -> str:
    """Matching files and folders."""
    base = "" if path in (".", "", "./") else path.strip("/").removeprefix("./") + "/"
    files, folders = walk(root)
    if base and base[:-1] not in folders:
        raise LookupError
    regex = glob_regex(pattern.removeprefix("./").rstrip("/"))
    rows = [item for item in files if item.startswith(base) and regex.match(item[len(base) :]) and not pattern.endswith("/")]
    rows += [item + "/" for item in folders if item.startswith(base) and item + "/" != base and regex.match(item[len(base) :])]
    rows.sort()
    if not rows:
        return "No files match."
    if len(rows) > limit:
        return "\n".join([*rows[:limit], f"[first {limit} of {len(rows)} matches]"])
    return "\n".join(rows)


def grep(root: str, pattern: str, path: str = ".", only: str | None = None, ignore_case: bool = False, limit: int = 100) -> str:
    """Matching lines."""
    regex = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    base = "" if path in (".", "", "./") else path.strip("/").removeprefix("./")
    files, folders = walk(root)
    if base and base not in files and base not in folders:
        raise LookupError
    rows: list[str] = []
    total = 0
    for item in sorted(files):
        if base and item != base and not item.startswith(base + "/"):
            continue
        if only and not glob_regex(only if "/" in only else "**/" + only).match(item):
            continue
        with open(f"{root}/{item}", "rb") as file:
            data = file.read()
        if b"\0" in data[:4096]:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"), 1):
            if regex.search(line):
                total += 1
                if total <= limit:
                    text = line.rstrip()
                    rows.append(f"{item}:{number}:{text[:MAX_LINE]}")
    if not rows:
        return "No matches."
    if total > limit:
        rows.append(f"[first {limit} of {total} matches]")
    return "\n".join(rows)
