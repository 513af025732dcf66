"""Moving a function that needs imports: they go with it."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.bugs import fresh_function
from k3agent.backend.training.episodes.families.mending import Needy, draw_needy
from k3agent.backend.training.episodes.families.moving import dotted, play_move
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan


def _carried(item: Needy, name: str, home: str, target: str, users: list[str]) -> Check:
    """The function works in the target with its imports, is gone at home, and its users know."""

    def check(outcome: Outcome) -> str | None:
        after = outcome.after
        scope: dict[str, object] = {}
        try:
            exec(compile(after.get(target, ""), target, "exec"), scope)
            right = eval(f"{name}({item.case}) == {item.value}", scope)
        except Exception as problem:
            return f"{target} does not work: {problem}"
        if not right or re.search(rf"^def {name}\(", after.get(home, ""), re.MULTILINE):
            return f"{name} is wrong in {target} or still in {home}"
        for path in users:
            if f"from {dotted(target)} import {name}" not in after.get(path, ""):
                return f"{path} does not import {name} from its new place"
        return checks.unchanged(outcome, home, target, *users)

    return check


@goal("move_with_imports", "replace", 1.0, level=1)
def move_with_imports(ctx: Setting) -> Plan | None:
    """Move a function that uses a module to another file, new or not."""
    rng, words = ctx.rng, ctx.words
    item, name = draw_needy(ctx)
    folder = rng.choice(("", "", *(f"{folder}/" for folder in ctx.facts.folders if "test" not in folder)))
    stems = [ctx.unused(words.module) for _ in range(2)]
    home, target = (f"{folder}{stem}.py" for stem in stems)
    other, third = fresh_function(ctx), fresh_function(ctx)
    if stems[0] == stems[1] or other.name == third.name or {home, target} & set(ctx.facts.files):
        return None
    moved = [f"def {name}({item.params}):", f"    {item.body}"]
    blocks = [moved, other.source()]
    rng.shuffle(blocks)
    doc = [f'"""{words.phrase().capitalize()}."""', ""] if rng.random() < 0.3 else []
    files = {
        home: "\n".join([*doc, item.imported, *(row for part in blocks for row in ("", "", *part))]) + "\n"
    }
    is_new = rng.random() < 0.5
    if not is_new:
        files[target] = "\n".join(third.source()) + "\n"
    test = (
        f"{'tests/' if any(path.startswith('tests/') for path in ctx.facts.files) else ''}test_{stems[0]}.py"
    )
    claim = f"    assert {name}({item.case}) == {item.value}"
    files[test] = f"from {dotted(home)} import {name}\n\n\ndef test_{name}():\n{claim}\n"
    if test in ctx.facts.files or blocks[-1] is moved:
        return None
    return Plan(
        "move_def",
        "replace",
        {"name": name, "path": target, "kind": "function"},
        lambda session: play_move(session, name, target),
        _carried(item, name, home, target, [test]),
        ("def", name),
        prepare=lambda current: current.update(files),
    )
