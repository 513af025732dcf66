"""Requests that lack something that only the user knows: look up what can be known, then ask for the rest."""

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import assignment, split_value
from k3agent.backend.training.episodes.families.adding import plain_line
from k3agent.backend.training.episodes.families.values import pick
from k3agent.backend.training.episodes.policy import hits, near_names, one_definition, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session


def asks_with(*facts: str) -> Check:
    """Nothing changed, the facts are told, and there is a question."""

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome) or checks.says(outcome, *facts):
            return wrong
        return None if "?" in outcome.answer else "it does not ask"

    return check


@goal("set_no_value", "ask", 1.6, level=1)
def set_no_value(ctx: Setting) -> Plan | None:
    """Change a value, it is not said to what."""
    item = pick(ctx, keys=ctx.rng.random() < 0.2)
    if item is None or len(item.value) > 40:
        return None

    def play(session: Session) -> tuple[str, str]:
        name, think = item.name, f"Change {item.name}, but to what? Look up what it is now."
        found = hits(session.call("grep", think, pattern=assignment(name)))
        found = [hit for hit in found if split_value(name, hit.text)]
        if not found:
            name = near_names(session, name)
            found = hits(session.call("grep", f"It is written {name}.", pattern=assignment(name)))
            found = [hit for hit in found if split_value(name, hit.text)]
        if len(found) != 1:
            places = quoted([hit.at for hit in found]) or "no place"
            raise Report("Not one place.", f"`{name}` is set in {places}. Which one, and to what value?")
        hit = found[0]
        parts = split_value(name, hit.text)
        assert parts is not None
        return (
            f"It is {parts[1]}. The new value is not said. Ask.",
            f"`{name}` is `{parts[1]}` in `{hit.path}` (line {hit.line}). To what value shall I set it?",
        )

    check = asks_with(item.name, item.path, item.value)
    return Plan("set_no_value", "ask", {"name": item.name}, play, check, ("const", item.name))


@goal("rename_no_name", "ask", 1.3, level=1)
def rename_no_name(ctx: Setting) -> Plan | None:
    """Rename something, it is not said to what."""
    pool = [item for item in ctx.facts.definitions if len(ctx.facts.defined(item.name)) == 1]
    pool = [item for item in pool if not item.name.startswith("_") and len(item.name) > 3]
    if not pool:
        return None
    item = ctx.rng.choice(pool)

    def play(session: Session) -> tuple[str, str]:
        think = f"Rename {item.name}, but to what? See first whether it is there."
        name, hit = one_definition(session, item.name, think)
        return (
            "It is there. The new name is not said. Ask.",
            f"`{name}` is in `{hit.path}`, line {hit.line}. What shall it be called?",
        )

    check = asks_with(item.name, item.path)
    return Plan("rename_no_name", "ask", {"name": item.name}, play, check, ("def", item.name))


@goal("add_no_file", "ask", 1.1, level=1)
def add_no_file(ctx: Setting) -> Plan | None:
    """Add a line, it is not said to which file."""
    line = plain_line(ctx, ctx.rng.choice(("a.py", "a.txt", "a.md", "a.py", "a.sh")))
    if "`" in line:
        return None

    def play(session: Session) -> tuple[str, str]:
        return "Which file is not said. Ask.", f"To which file shall I add `{line}`, and where in it?"

    return Plan("add_no_file", "ask", {"line": line}, play, asks_with(line))
