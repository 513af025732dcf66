"""All goals: importing this module fills the registry; follow-ups and joined tasks are drawn here."""

from functools import cache
from importlib import import_module

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import draw_value
from k3agent.backend.training.episodes.continuing import put_back, rename_back, run_tests_too, same_in, why_it
from k3agent.backend.training.episodes.editing import edit_text
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.functions import play_delete_def
from k3agent.backend.training.episodes.families.names import new_name, play_delete, play_rename
from k3agent.backend.training.episodes.families.pairs import PAIRS
from k3agent.backend.training.episodes.families.read import play_explain, play_show, play_used
from k3agent.backend.training.episodes.families.values import changed_text, pick, play_set
from k3agent.backend.training.episodes.policy import open_file, show
from k3agent.backend.training.episodes.registry import GOALS, GoalEntry, Setting
from k3agent.backend.training.episodes.session import Outcome, Plan, Session, in_turn
from k3agent.backend.training.episodes.wording import say_joined
from k3agent.backend.training.episodes.workspace import read_tree

_RUN, _WRITE = "it would run a command", "it would write {path}"
_DENIED = "permission denied: {0}. Do without it, or say what is needed."
NOT_RUN = (
    *(_DENIED.replace("{0}", f"{_RUN}, and nobody can be asked here") for _ in range(2)),
    _DENIED.replace("{0}", f"the user said deny ({_RUN})"),
    _DENIED.replace("{0}", "the rule shell denies it"),
    "The command could not be started: Cannot allocate memory.",
    "The command could not be started: Resource temporarily unavailable.",
)
"""What the shell says where it runs nothing: not allowed, or a fault of the computer."""
NOT_WRITTEN = (
    _DENIED.replace("{0}", f"{_WRITE}, and nobody can be asked here"),
    _DENIED.replace("{0}", f"plan mode changes nothing, and {_WRITE}"),
    _DENIED.replace("{0}", f"the user said deny ({_WRITE})"),
    _DENIED.replace("{0}", "the rule edit denies it"),
    "{path} cannot be written: Read-only file system.",
    "{path} cannot be written: No space left on device.",
    "{path} cannot be written: Permission denied.",
    "{path} cannot be written: Input/output error.",
)
"""The same of write and edit."""
MODULES = (
    "look",
    "read",
    "values",
    "spoken",
    "amounts",
    "equalkeys",
    "names",
    "scoped",
    "replacing",
    "facts_said",
    "adding",
    "placing",
    "documents",
    "lists",
    "functions",
    "creating",
    "repair",
    "pointed",
    "told",
    "odd",
    "running",
    "runsome",
    "asking",
    "limits",
    "beyond",
    "questions",
    "doubt",
    "moving",
    "mending",
    "gaps",
    "nearly",
    "roles",
    "hanging",
    "checked",
    "pairs",
    "documenting",
    "carrying",
    "everyday",
    "firstcode",
    "projectfacts",
    "firstfiles",
    "marking",
    "clearing",
    "linting",
    "ignoring",
    "describing",
    "methodsaid",
    "spelled",
)
SECOND_MODULES = (
    "gittasks",
    "gitmore",
    "gitauthors",
    "gitback",
    "settingsfiles",
    "versions",
    "requirements",
    "nested",
    "sections",
    "otherlanguages",
    "web",
    "webruns",
    "webrepairs",
    "webdescribed",
    "recover",
    "clarify",
    "chains",
    "rules",
    "longer",
)
for _module in MODULES + SECOND_MODULES:
    import_module(f"k3agent.backend.training.episodes.families.{_module}")


@cache
def by_family(stage: int) -> dict[str, list[GoalEntry]]:
    """Goals of a stage, grouped."""
    table: dict[str, list[GoalEntry]] = {}
    for entry in GOALS.values():
        if entry.level <= stage:
            table.setdefault(entry.family, []).append(entry)
    return table


def follow_up(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    """A task that says "it" for the thing of the task before."""
    options = []
    if after.subject is not None:
        kind = after.subject[0]
        if kind == "file":
            options = [_show_file, _delete_file]
        elif kind in ("def", "const"):
            options = [_rename_it, _show_it, _used_it] + (
                [_explain_it, _explain_it, _delete_it] if kind == "def" else [_set_it, _set_it]
            )
    if after.family in ("setvalue", "replace", "addline") and session.edits:
        options.append(_undo_it)
    options += [rename_back] * 2 if after.family == "rename" else []
    options += [why_it] * 2 if after.family == "fix" else []
    options += [same_in] * 5 if after.goal == "add_line_end" else []
    options += [run_tests_too] if session.edits and ctx.rng.random() < 0.6 else []
    options += [put_back] if session.edits and ctx.rng.random() < 0.4 else []
    for _ in range(3):
        if options:
            plan = ctx.rng.choice(options)(ctx, after, session)
            if plan is not None:
                return plan
    return None


def _name(ctx: Setting, after: Plan) -> str | None:
    """The name that "it" stands for, if it is defined once."""
    if after.subject is None:
        return None
    name = after.subject[1]
    return (
        name
        if len(ctx.facts.defined(name)) + sum(item.name == name for item in ctx.facts.constants) == 1
        else None
    )


def _rename_it(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    name = _name(ctx, after)
    if name is None or len(ctx.facts.word_lines(name)) > 10:
        return None
    from k3agent.backend.training.episodes.families.names import expected_rename

    new = new_name(ctx, name)
    check = checks.writes(expected_rename(ctx, name, new))
    return Plan("rename_it", "rename", {"new": new}, lambda s: play_rename(s, name, new), check, ("def", new))


def _show_it(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    name = _name(ctx, after)
    found = ctx.facts.defined(name) if name else []
    if name is None or (found and found[0].end - found[0].line > 30):
        return None
    needles = [ctx.facts.files[found[0].path].splitlines()[found[0].line - 1].strip()] if found else [name]
    return Plan(
        "show_it", "explain", {}, lambda s: play_show(s, name), checks.answers(*needles), after.subject
    )


def _explain_it(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    name = _name(ctx, after)
    found = ctx.facts.defined(name) if name else []
    if name is None or not found or found[0].end - found[0].line > 30:
        return None
    check = checks.answers(name, found[0].path)
    return Plan("explain_it", "explain", {}, lambda s: play_explain(s, name), check, after.subject)


def _used_it(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    name = _name(ctx, after)
    lines = ctx.facts.word_lines(name) if name else []
    if name is None or len(lines) > 10:
        return None
    check = checks.answers(*{path for path, _, _ in lines})
    return Plan("where_used_it", "where", {}, lambda s: play_used(s, name), check, after.subject)


def _delete_it(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    name = _name(ctx, after)
    found = ctx.facts.defined(name) if name else []
    if name is None or not found or found[0].end - found[0].line > 14 or found[0].kind == "method":
        return None
    path = found[0].path

    def check(outcome: Outcome) -> str | None:
        if (
            f"{name}(" in outcome.after.get(path, "").replace(f" {name}(", " def?(")
            and f"def {name}(" in outcome.after[path]
        ):
            return f"{name} is still defined"
        return checks.unchanged(outcome, path)

    return Plan("delete_it", "addfunc", {}, lambda s: play_delete_def(s, name), check)


def _set_it(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    name = _name(ctx, after)
    item = next((item for item in ctx.facts.constants if item.name == name), None)
    if name is None or item is None or len(item.text) > 100:
        return None
    only = Setting(type(ctx.facts)({item.path: ctx.facts.files[item.path]}), ctx.rng, ctx.words)
    if pick(only) is None:
        return None
    said, new = draw_value(ctx, item.value, extension(item.path))
    text = changed_text(ctx, item, new)
    if text is None:
        return None
    return Plan(
        "set_it",
        "setvalue",
        {"value": said},
        lambda s: play_set(s, name, said),
        checks.writes({item.path: text}),
        after.subject,
    )


def _show_file(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    path = after.subject[1] if after.subject else ""
    text = ctx.facts.files.get(path)
    if not text or len(text.splitlines()) > 40:
        return None

    def play(s: Session) -> tuple[str, str]:
        view = open_file(s, path, f"Read {path} to show it.", nothing="")
        return f"{len(view.lines)} lines. Copy them.", f"`{view.path}`:\n{show(view.lines)}"

    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Plan("show_it", "explain", {}, play, checks.answers(*lines), after.subject)


def _delete_file(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    path = after.subject[1] if after.subject else ""
    if (
        path not in ctx.facts.files
        or sum(1 for other in ctx.facts.files if other.endswith("/" + path.rsplit("/", 1)[-1])) > 1
    ):
        return None
    return Plan("delete_it", "replace", {}, lambda s: play_delete(s, path), checks.writes({path: None}))


def _undo_it(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    path, old, new = session.edits[-1]
    text = ctx.facts.files.get(path, "")
    same = [edit for edit in session.edits if edit[0] == path]
    if text.count(new) != 1 or not old.strip() or not new.strip() or len(same) != 1 or "\r" in text:
        return None
    expected = text.replace(new, old, 1)

    def play(s: Session) -> tuple[str, str]:
        edit_text(s, path, new, old, f"Undo the last edit in {path}: put the old text back.")
        return "It is as before.", f"Undone: `{path}` is as it was before."

    return Plan("undo_it", after.family, {}, play, checks.writes({path: expected}))


JOINABLE = (
    "list",
    "find",
    "where",
    "explain",
    "setvalue",
    "rename",
    "replace",
    "addline",
    "addfunc",
    "create",
    "run",
)


def joined(ctx: Setting) -> Plan | None:
    """Two tasks in one message."""
    table = by_family(2)
    plans: list[Plan] = []
    for _ in range(12):
        family = ctx.rng.choice(JOINABLE[:4] if plans and ctx.rng.random() < 0.3 else JOINABLE)
        entries = table[family]
        plan = ctx.rng.choices(entries, [item.weight for item in entries])[0].make(ctx)
        if plan is None or plan.prepare or plan.setup or plan.prompt is not None:
            continue
        if plan.goal not in PAIRS and not any("\n" in value for value in plan.slots.values()):
            plans.append(plan)
        if len(plans) == 2:
            break
    if len(plans) < 2:
        return None
    first, second = plans
    middle: list[dict[str, str]] = []
    answers: list[str] = []

    def play_first(session: Session) -> tuple[str, str]:
        try:
            return first.play(session)
        finally:
            middle.append(read_tree(session.box.workspace.root))

    play = in_turn([play_first, second.play], answers)

    def check(outcome: Outcome) -> str | None:
        wrong = first.check(Outcome(outcome.before, middle[-1], answers[0], outcome.root))
        return wrong or second.check(Outcome(middle[-1], outcome.after, answers[1], outcome.root))

    prompt = say_joined((first.goal, first.slots), (second.goal, second.slots), ctx.rng, ctx.words.part)
    return Plan(f"join:{first.goal}", first.family, {}, play, check, second.subject, prompt)
