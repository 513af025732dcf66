"""The oracle's edits: each names what changes; each kind of failure has its own way out and report."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k3agent.backend.training.episodes.policy import View, open_file
from k3agent.backend.training.episodes.session import Report, Session
from k3agent.backend.training.episodes.toolbox import Result

SLIPS = 0.08
"""The share of edits whose first attempt is wrong: nothing is learned from it, only from the way out."""
TWICE = 0.3
"""Of those, the share whose second attempt is wrong too; half of them end there."""
REPEATED = 0.15
"""Of wrong attempts, the share that is made again word by word, which the agent refuses."""
ELSEWHERE, REACH = 0.3, 5
"""Of wrong attempts, the share that is made in another line, and how far from the right one."""
LONGEST_SAID = 80
"""Signs of a change that is said before the edit."""
_PART = re.compile(r"'[^'\w]{0,2}\w?'|\"[^\"\w]{0,2}\w?\"|\d[\d.]*\.\d+|\w+|\s+|[<>=!+*/%-]{2}|[^\w\s]")
_NEAREST = re.compile(r"^Nearest, line (\d+):", re.MULTILINE)


def error_of(result: Result) -> str:
    """The first line of what a tool said went wrong."""
    return result.lines[0].removeprefix("Error: ")


def failed(path: str, result: Result, verb: str = "change") -> Report:
    """The report of an edit that failed for good: what the tool said, and nothing else."""
    error = error_of(result)
    what = f"I could not {verb} `{path}`"
    if "permission denied" in error:
        return Report("Permission denied. I stop.", f"{what}: {error}")
    if "old text not found" in error:
        return Report(
            "The text is not there. I stop.",
            f"{what}: the text that I wanted to replace was not found in it. Nothing was changed there.",
        )
    if "failed before" in error:
        return Report(
            "The same call failed again. I stop.",
            f"{what}: my edit failed twice in the same way. Nothing was changed there.",
        )
    if "are the same" in error:
        return Report(
            "Old and new are still the same. I stop.",
            f"{what}: my old and new text were the same. Nothing was changed there.",
        )
    if "does not exist" in error:
        return Report(
            "There is no such file. I stop.", f"{what}: it does not exist. Nothing was changed there."
        )
    if "occurs" in error:
        return Report(
            "The text is not unique. I stop.", f"{what}: {error.split('. ')[0]}. Nothing was changed there."
        )
    return Report("That failed. I stop.", f"{what}: {error}")


def changed_part(old: str, new: str) -> tuple[str, str]:
    """The words and signs in which two lines differ, without what is the same at both ends."""
    before, after = _apart(_PART.findall(old), _PART.findall(new))
    return "".join(before).strip(), "".join(after).strip()


def _apart(one: Sequence[str], two: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What two sequences have between their equal beginnings and their equal ends."""
    shortest = min(len(one), len(two))
    start = 0
    while start < shortest and one[start] == two[start]:
        start += 1
    end = 0
    while end < shortest - start and one[-1 - end] == two[-1 - end]:
        end += 1
    return one[start : len(one) - end], two[start : len(two) - end]


def letters_apart(wrong: str, right: str) -> str:
    """How a word that is written wrongly differs from the right one, in words: "e is missing"."""
    before, after = ("".join(part) for part in _apart(wrong, right))
    if before and after:
        return f"{before} for {after}"
    return f"{after} is missing" if after else f"{before} is too much"


def difference(old: str, new: str) -> str:
    """What changes between two texts, as thoughts say it: `old -> new` without what both have."""
    if "\n" in old + new:
        return _lines_apart(old.split("\n"), new.split("\n"))
    before, after = changed_part(old, new)
    if before and after:
        return f"{before} -> {after}"
    if after:
        return f"add {after}"
    return f"drop {before}" if before else "mend the spaces"


def _lines_apart(one: list[str], two: list[str]) -> str:
    """The same of texts of several lines: the first line that differs."""
    while one and two and one[0] == two[0]:
        one, two = one[1:], two[1:]
    while one and two and one[-1] == two[-1]:
        one, two = one[:-1], two[:-1]
    before, after = (next((line.strip() for line in lines if line.strip()), "") for lines in (one, two))
    if before and after:
        return f"{before} -> {after}"
    return f"add {after or 'an empty line'}" if two else f"drop {before or 'an empty line'}"


def _with_change(think: str, old: str, new: str) -> str:
    """A thought before an edit that says what changes: where it does not yet, and few words do."""
    said = difference(old, new)
    after = said.removeprefix("add ")
    if " -> " in think or not new.strip() or said == "mend the spaces" or len(said) > LONGEST_SAID:
        return think
    if " -> " not in said and (after in think or said in think):
        return think
    return f"{think}{'' if think.endswith(('.', ':')) else '.'} {said}"


def around(
    session: Session, path: str, line: int, think: str, least: int = 0, *, inside: bool = False
) -> View:
    """Read a stretch that begins some lines above a line and holds at least `least` lines from it on.
    `inside`: the line is within a function, whose beginning is wanted too.
    """
    before = session.rng.choice((0, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12, 15))
    if inside:
        before = session.rng.choice((10, 12, 15, 15, 20, 25))
    start = max(1, line - before)
    limit = line - start + max(20, least) + session.rng.randint(0, 12)
    if line < 30 and session.rng.random() < 0.3:
        start, limit = 1, max(60, limit)
    return open_file(session, path, think, offset=start, limit=limit)


def damage(session: Session, old: str) -> str:
    """A text that is not copied right."""
    at = session.rng.randrange(1, len(old) - 1)
    if session.rng.random() < 0.5:
        return old[:at] + old[at + 1 :]
    return old[:at] + session.rng.choice("xqz7e") + old[at + 1 :]


def edit_text(
    session: Session, path: str, old: str, new: str, think: str, *, line: int = 0, everywhere: bool = False
) -> Result:
    """Replace text; a report where it fails for good."""
    args: dict[str, Any] = {"path": path, "old": old, "new": new}
    args |= {"all": True} if everywhere else {"line": line} if line else {}
    think = _with_change(think, old, new)
    slips = session.slips and not session.box.machine.edits_denied and "\n" not in old and len(old) > 7
    if slips and session.rng.random() < SLIPS:
        return _after_slip(session, args, think)
    result = session.call("edit", think, **args)
    if "changed since it was read" in result.text and result.is_error:
        around(session, path, line or 1, f"{path} changed since I read it. Read it again.")
        result = session.call("edit", f"{changed_part(old, new)[0] or old} is still there. Edit.", **args)
    if result.is_error:
        raise failed(path, result)
    return result


def _after_slip(session: Session, args: dict[str, Any], think: str) -> Result:
    """One or two wrong attempts, each looked into; then the right one, or the report that it failed."""
    elsewhere = _elsewhere(session, args) if session.rng.random() < ELSEWHERE else None
    if elsewhere is None:
        wrong, first = _wrong(session, args), think
    else:
        wrong, first = elsewhere, _misplaced(think, args, elsewhere)
    result = session.call("edit", first, learn=False, **wrong)
    if session.rng.random() < REPEATED:
        result = session.call("edit", first, learn=False, **wrong)
    think = _look(session, args, result) if elsewhere is None else _back(session, args, wrong, result)
    if session.rng.random() < TWICE:
        result = session.call("edit", think, learn=False, **_wrong(session, args))
        if session.rng.random() < 0.5:
            session.gave_up = True
            raise failed(args["path"], result)
        think = _look(session, args, result)
    result = session.call("edit", think, **args)
    if result.is_error:
        raise failed(args["path"], result)
    return result


def _wrong(session: Session, args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a wrong attempt: a text that is not in the file, or old and new the same."""
    is_same = session.rng.random() < 0.5
    return {**args, **({"new": args["old"]} if is_same else {"old": damage(session, args["old"])})}


def _elsewhere(session: Session, args: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of an edit in a line nearby that does not hold what is to change: it changes nothing."""
    number, before = args.get("line", 0), changed_part(args["old"], args["new"])[0]
    if not number or not before:
        return None
    rows = (Path(session.box.workspace.root) / args["path"]).read_text("utf-8", "replace").split("\n")
    near = range(max(1, number - REACH), min(len(rows), number + REACH) + 1)
    others = [n for n in near if n != number and before not in rows[n - 1] and len(rows[n - 1].strip()) > 7]
    if not others or args["old"] not in rows[number - 1]:
        return None
    other = session.rng.choice(others)
    text = rows[other - 1].strip()
    return {**args, "old": text, "new": text, "line": other}


def _misplaced(think: str, args: dict[str, Any], wrong: dict[str, Any]) -> str:
    """The thought before an edit as it would be of the wrong line."""
    think = re.sub(rf"\b((?i:line)) {args['line']}\b", rf"\1 {wrong['line']}", think)
    return think.replace(args["old"], wrong["old"]).replace(args["new"], wrong["new"])


def _back(session: Session, args: dict[str, Any], wrong: dict[str, Any], result: Result) -> str:
    """The thought that goes from a line without what is to change to the one that has it."""
    old, new, path = args["old"], args["new"], args["path"]
    start = f"Line {wrong['line']} has no {changed_part(old, new)[0]}."
    if "failed before" in result.text:
        around(session, path, args["line"], "The same call failed before. Look again.")
    return f"{start} Line {args['line']} has {old}. {difference(old, new)}: {new}"


def _look(session: Session, args: dict[str, Any], result: Result) -> str:
    """Look again after an error; the thought for the next attempt."""
    old, new = args["old"], args["new"]
    change = difference(old, new) + (f": {new}" if "\n" not in new else "")
    if "failed before" in result.text:
        view = around(session, args["path"], args.get("line", 1), "The same call failed before. Look again.")
        near = next((n for n, text in view.lines if old in text), view.lines[0][0])
        return f"Line {near} has {old}. {change}"
    if "are the same" in result.text:
        return f"Old and new were the same: nothing would change. {change}"
    match = _NEAREST.search(result.text)
    number = int(match[1]) if match else args.get("line", 1)
    if match and old in result.text and session.rng.random() < 0.4:
        return f"I wrote the old text wrongly. Line {number} is: {old}. {difference(old, new)}"
    view = around(session, args["path"], number, f"The old text was not found. Read around line {number}.")
    near = next(
        (n for n, text in view.lines if old in text and (not args.get("line") or n == args["line"])), number
    )
    return f"Line {near} has {old}. Copy it exactly; {difference(old, new)}"


def change_line(session: Session, path: str, line: int, old: str, new: str, think: str) -> Result:
    """Edit within one line."""
    return edit_text(session, path, old, new, think, line=line)
