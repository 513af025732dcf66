"""All goals: importing this module fills the registry; follow-ups and joined tasks are drawn here."""

from functools import cache
from importlib import import_module

from k3agent.backend.training.episodes.registry import GOALS, GoalEntry, Setting
from k3agent.backend.training.episodes.session import Plan, Session

DENIED = "permission denied: shell commands are not allowed here."
MODULES = ("look", "read")
for _name in MODULES:
    import_module(f"k3agent.backend.training.episodes.families.{_name}")


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
    return None


def joined(ctx: Setting) -> Plan | None:
    """Two tasks in one message."""
    return None
