"""AGENTS.md: a rule of the project changes what is right; other rules stand beside it and change nothing."""

import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import assignment
from k3agent.backend.training.episodes.families.adding import append, open_end, squeeze
from k3agent.backend.training.episodes.families.chains import Step, draw_step
from k3agent.backend.training.episodes.families.creating import new_path, write_new
from k3agent.backend.training.episodes.families.look import names_in
from k3agent.backend.training.episodes.families.running import denied, tell_output
from k3agent.backend.training.episodes.families.values import changed_text, pick, play_set
from k3agent.backend.training.episodes.policy import base_name, hits
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Play, Session
from k3agent.backend.training.episodes.words import camel, pascal

HELD_OUT = 3
EDITS = (
    "set_const",
    "set_const_in",
    "set_key",
    "replace_text",
    "add_line_end",
    "add_line_start",
    "delete_line",
    "add_bullet",
    "add_import",
)


@cache
def _rules() -> dict[str, tuple[str, ...]]:
    """The wordings of rules.txt by kind."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in (Path(__file__).parents[1] / "rules.txt").read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            name = line.strip("[]")
            found[name] = []
        elif line and not line.startswith("#"):
            found[name].append(line)
    return {kind: tuple(lines) for kind, lines in found.items()}


def rule(rng: random.Random, part: str, kind: str, **places: str) -> str:
    """A rule of a kind in the words of one part."""
    lines = _rules()[kind]
    chosen = lines[:-HELD_OUT] if part == "train" else lines[-HELD_OUT:]
    text = rng.choice(chosen)
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def instructions(ctx: Setting, *active: str) -> str:
    """The text of an AGENTS.md with these rules and some others."""
    rng = ctx.rng
    others = rng.sample(_rules()["other"], rng.choice((0, 1, 2, 3, 5)))
    lines = [*active, *others]
    rng.shuffle(lines)
    mark = rng.choice(("- ", "- ", "* ", "", "1. "))
    rows = [f"{number}. {line}" if mark == "1. " else mark + line for number, line in enumerate(lines, 1)]
    title = rng.choice(
        ("# Instructions", "# Rules", "# How we work", "# Working here", f"# {ctx.words.title()}", "# AGENTS")
    )
    head = [title, ""] if rng.random() < 0.85 else []
    gap = [""] if not mark else []
    body = [row for line in rows for row in (line, *gap)]
    return "\n".join([*head, *body]).rstrip() + "\n"


def _plan(
    ctx: Setting,
    name: str,
    slots: dict[str, str],
    play: Play,
    check: Check,
    text: str,
    *,
    files: dict[str, str] | None = None,
    prompt: str | None = None,
) -> Plan:
    """The plan in a project with this AGENTS.md."""
    fresh = {"AGENTS.md": text, **(files or {})}
    return Plan(
        name,
        "rules",
        slots,
        play,
        check,
        prompt=prompt,
        prepare=lambda current: current.update(fresh),
        instructions=text,
        alone=True,
    )


@goal("rule_forbidden", "rules", 2.4, level=1)
def rule_forbidden(ctx: Setting) -> Plan | None:
    """A folder must not be changed: the edit in it is declined, one elsewhere is made."""
    if "AGENTS.md" in ctx.facts.files:
        return None
    step = draw_step(ctx, EDITS, {path for path in ctx.facts.files if "/" not in path})
    if step is None:
        return None
    folder = step.target.rpartition("/")[0]
    if ctx.rng.random() < 0.4:
        others = [item for item in ctx.facts.folders if not f"{step.target}/".startswith(f"{item}/")]
        other = ctx.rng.choice([*others, ctx.words.noun(), "vendor", "generated", "third_party"])
        if step.target.startswith(f"{other}/"):
            return None
        text = instructions(ctx, rule(ctx.rng, ctx.words.part, "forbidden", folder=other))
        return _plan(ctx, step.plan.goal, step.plan.slots, step.plan.play, step.plan.check, text)
    text = instructions(ctx, rule(ctx.rng, ctx.words.part, "forbidden", folder=folder))

    def play(session: Session) -> tuple[str, str]:
        path = _where(session, step)
        return (
            f"{path} lies in {folder}/, which AGENTS.md says must not be changed. I leave it.",
            f"I did not change `{path}`: AGENTS.md says that files in `{folder}/` must not be changed."
            " Shall it be changed all the same?",
        )

    return _plan(ctx, step.plan.goal, step.plan.slots, play, checks.declines(folder), text)


def _where(session: Session, step: Step) -> str:
    """The path that a task is about: as it was said, or looked up."""
    slots = step.plan.slots
    said = slots.get("path", "").removeprefix("./")
    if said:
        found = names_in(session.call("glob", f"Where is {said}?", pattern=f"**/{base_name(said)}").text)
        return step.target if step.target in found else (found[0] if found else said)
    name = slots.get("name") or slots.get("old") or ""
    found = hits(session.call("grep", f"Where is {name} set?", pattern=assignment(name), ignore_case=True))
    return found[0].path if found else step.target


RUNNERS = ("sh {}", "sh {}", "bash {}", "python {}")
PLACES = ("scripts/", "", "tools/", "bin/")


@goal("rule_command", "rules", 2.0, level=1)
def rule_command(ctx: Setting) -> Plan | None:
    """The tests are run by a command of the project."""
    rng, words = ctx.rng, ctx.words
    runner = rng.choice(RUNNERS)
    stem = rng.choice(("check", "test", "run_tests", "ci", words.noun()))
    path = f"{rng.choice(PLACES)}{stem}.{'py' if runner.startswith('python') else 'sh'}"
    if path in ctx.facts.files or "AGENTS.md" in ctx.facts.files:
        return None
    token, count = f"{words.noun()}-{rng.randint(10, 99)}", rng.randint(2, 60)
    line = rng.choice(
        (f"{count} checks passed for {token}", f"{token}: {count} ok", f"suite {token}, {count} ok")
    )
    fails = rng.random() < 0.25
    if fails:
        line = rng.choice((f"{token}: 1 of {count} failed", f"FAILED {token} ({count} run)"))
    code = (
        f"print('{line}')\n{'raise SystemExit(1)' if fails else ''}"
        if path.endswith(".py")
        else (f"echo '{line}'\n{'exit 1' if fails else ''}")
    )
    command = runner.format(path)
    text = instructions(ctx, rule(rng, words.part, "command", command=command))
    wanted = rng.choice(("run_tests", "check_then_report", "run_tests"))

    def play(session: Session) -> tuple[str, str]:
        result = session.call("shell", f"AGENTS.md says: run the tests with {command}.", command=command)
        if "command not found" in result.text and command.startswith("python "):
            other = command.replace("python", "python3", 1)
            result = session.call("shell", "There is no python. Try python3.", command=other)
        if result.is_error:
            raise denied(result.text)
        return tell_output(f"`{command}`", result.text)

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        return None if "may not run" in outcome.answer else checks.says(outcome, token)

    return _plan(ctx, wanted, {}, play, check, text, files={path: code.rstrip() + "\n"})


@goal("rule_changelog", "rules", 1.8, level=1)
def rule_changelog(ctx: Setting) -> Plan | None:
    """A changed value is noted in the changelog."""
    item = pick(ctx)
    if item is None or {"AGENTS.md", "CHANGELOG.md"} & set(ctx.facts.files) or "\n" in item.value:
        return None
    new = str(ctx.rng.randint(2, 9999)) if re.fullmatch(r"-?\d+", item.value) else ""
    if not new or new == item.value:
        return None
    wanted = changed_text(ctx, item, new)
    if wanted is None:
        return None
    notes = [
        f"- set {ctx.words.constant()} to {ctx.rng.randint(1, 99)}" for _ in range(ctx.rng.randint(1, 3))
    ]
    log = "\n".join(["# Changes", "", *notes]) + "\n"
    text = instructions(ctx, rule(ctx.rng, ctx.words.part, "changelog"))
    entry = f"- set {item.name} to {new}"

    def play(session: Session) -> tuple[str, str]:
        think, answer = play_set(session, item.name, new)
        session.lead = f"{think} AGENTS.md wants a line in CHANGELOG.md:"
        view = open_end(session, "CHANGELOG.md", f"{entry}. Read its end.")
        append(session, view, entry)
        return "Both are done.", f"{answer} Added `{entry}` to `CHANGELOG.md`."

    def check(outcome: Outcome) -> str | None:
        if squeeze(outcome.after.get("CHANGELOG.md", "")) != squeeze(f"{log}{entry}"):
            return f"CHANGELOG.md lacks {entry!r} at its end"
        rest = replace(outcome, after={**outcome.after, "CHANGELOG.md": outcome.before["CHANGELOG.md"]})
        return checks.writes({item.path: wanted})(rest)

    slots = {"name": item.name, "value": new}
    return _plan(ctx, "set_const", slots, play, check, text, files={"CHANGELOG.md": log})


@goal("rule_header", "rules", 1.6, level=1)
def rule_header(ctx: Setting) -> Plan | None:
    """New Python files have a first line that the user need not say; other files do not."""
    rng, words = ctx.rng, ctx.words
    if "AGENTS.md" in ctx.facts.files:
        return None
    line = rng.choice(
        (
            f"# Copyright {rng.randint(2019, 2027)} {words.noun().capitalize()}",
            "# SPDX-License-Identifier: MIT",
            f"# Owner: {words.noun()} team",
            "# -*- coding: utf-8 -*-",
            f"# Part of {words.noun()}",
            "from __future__ import annotations",
        )
    )
    ending = rng.choice(("py", "py", "py", "txt", "md"))
    path = new_path(ctx, ending)
    content = {
        "py": rng.choice((f"{words.constant()} = {rng.randint(1, 99)}", f"print('{words.phrase()}')")),
        "md": f"# {words.title()}",
    }.get(ending, words.phrase())
    if {"`", "\\"} & set(content):
        return None
    text = instructions(ctx, rule(rng, words.part, "header", line=line))
    whole = f"{line}\n{content}" if ending == "py" else content

    def play(session: Session) -> tuple[str, str]:
        if ending != "py":
            write_new(
                session, path, content, f"Create {path} with: {content} It is no Python file, so no header."
            )
            return "Created.", f"Created `{path}` with `{content}`."
        write_new(session, path, whole, f"AGENTS.md: new Python files begin with {line}. Then: {content}")
        return "Created.", f"Created `{path}` with `{content}`, below `{line}` as AGENTS.md wants it."

    def check(outcome: Outcome) -> str | None:
        if squeeze(outcome.after.get(path, "")) != squeeze(whole):
            return f"{path} is not as AGENTS.md and the user want it"
        return checks.unchanged(outcome, path)

    return _plan(ctx, "create_file", {"path": path, "content": content}, play, check, text)


@goal("rule_placing", "rules", 1.6, level=1)
def rule_placing(ctx: Setting) -> Plan | None:
    """Where a new module goes is said by AGENTS.md, or else it goes to the top."""
    rng, words = ctx.rng, ctx.words
    if "AGENTS.md" in ctx.facts.files:
        return None
    name = words.module()
    folder = rng.choice([*ctx.facts.folders, words.noun(), f"src/{words.noun()}", f"{words.noun()}/lib"])
    said = rng.random() < 0.8
    path = f"{folder}/{name}.py" if said else f"{name}.py"
    content = rng.choice((f"{words.constant()} = {rng.randint(1, 99)}", f"print('{words.phrase()}')"))
    if path in ctx.facts.files or {"`", "\\"} & set(content) or folder in ctx.facts.files:
        return None
    text = instructions(ctx, *([rule(rng, words.part, "placing", folder=folder)] if said else []))
    if len(text) < 20:
        return None
    shown = name if rng.random() < 0.7 else f"{name}.py"

    def play(session: Session) -> tuple[str, str]:
        think = (
            f"AGENTS.md: new modules go to {folder}/." if said else "No rule says where modules go: the top."
        )
        write_new(session, path, content, f"{think} Create {path} with: {content}")
        why = ", where AGENTS.md wants new modules" if said else ""
        return "Created.", f"Created `{path}` with `{content}`{why}."

    check = checks.writes({path: content})
    return _plan(ctx, "create_module", {"name": shown, "content": content}, play, check, text)


def _constant(style: int, words: list[str]) -> str:
    """The name of a constant in one of four styles."""
    if style == 0:
        return "_".join(words).upper()
    if style == 1:
        return camel(words)
    return pascal(words) if style == 2 else f"k{pascal(words)}"


@goal("rule_naming", "rules", 1.6, level=1)
def rule_naming(ctx: Setting) -> Plan | None:
    """How a constant is spelled that the user names in words."""
    rng, words = ctx.rng, ctx.words
    path = ctx.choose([path for path in ctx.facts.code_paths() if "\r" not in ctx.facts.files[path]])
    if not isinstance(path, str) or "AGENTS.md" in ctx.facts.files:
        return None
    before = ctx.facts.files[path]
    if not checks.compiles(before) or "__main__" in before:
        return None
    parts = [rng.choice(("max", "min", "default", words.adjective())), words.noun()]
    parts += [words.noun()] if rng.random() < 0.3 else []
    style, said = rng.randrange(4), rng.random() < 0.8
    sample = _constant(style, [words.adjective(), words.noun()])
    name = _constant(style if said else 0, parts)
    if not all(part.isalpha() and part.islower() for part in parts) or name in before:
        return None
    value = rng.choice((str(rng.randint(1, 999)), str(rng.randint(1, 99) / 10), "True", f'"{words.noun()}"'))
    line = f"{name} = {value}"
    text = instructions(ctx, *([rule(rng, words.part, "naming", sample=sample)] if said else []))
    if len(text) < 20:
        return None

    def play(session: Session) -> tuple[str, str]:
        style = f"AGENTS.md: constants look like {sample}, so it is {name}." if said else f"It is {name}."
        view = open_end(session, path, f"{style} Add {line} to {path}. Read it.")
        append(session, view, line, gap=1)
        return "The diff shows it.", f"Added `{line}` to `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        rows = outcome.after.get(path, "").splitlines()
        if line not in rows:
            return f"{path} lacks {line!r}"
        rows.remove(line)
        wrong = None if squeeze("\n".join(rows)) == squeeze(before) else f"{path} was changed otherwise"
        return checks.unchanged(outcome, path) or wrong

    slots = {"thing": " ".join(parts), "value": value, "path": path}
    return _plan(ctx, "add_named", slots, play, check, text)
