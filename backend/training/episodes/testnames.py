"""Names of tests: which one a bug fails, the beginning of one as people give it, what was taken for it."""

import ast
import random
import re

from k3agent.backend.training.episodes.bugs import Broken
from k3agent.backend.training.episodes.session import Session
from k3agent.backend.training.episodes.testruns import Run


def failing_names(broken: Broken) -> list[str]:
    """The tests that hold the case that the bug breaks."""
    args, _, _ = broken.failing_case()
    call = f"{broken.func.name}({', '.join(map(repr, args))})"
    try:
        tree = ast.parse(broken.tests)
    except SyntaxError:
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            shown = (ast.get_source_segment(broken.tests, node) or "").replace('"', "'")
            found += [node.name] if call.replace('"', "'") in shown else []
    return found


def beginning(rng: random.Random, name: str, tests: str) -> str:
    """The first words of a test's name, where no other test has them as its whole name."""
    parts = name.split("_")
    if len(parts) < 3:
        return name
    short = "_".join(parts[: rng.randint(2, len(parts) - 1)])
    return name if f"def {short}(" in tests else short


def note_full_name(session: Session, run: Run, wanted: str) -> None:
    """Say which failing test was taken where only the beginning of its name was given."""
    names = [re.sub(r"\[.*$", "", failure.name).rpartition(".")[2] for failure in run.failures]
    longer = next((name for name in names if name.startswith(wanted)), "")
    if wanted not in names and longer:
        session.lead = f"No {wanted} fails, but {longer} begins so."
        session.notes.append(f"I took `{longer}`, the failing test that begins with `{wanted}`.")
