"""Docstrings whose words nobody gives: from what the code returns, or from the function's name."""

import ast
import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.families.functions import one_line
from k3agent.backend.training.episodes.policy import block, one_definition, open_file, pieces
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session

QUOTES = ('"""', "'''", '"', "'")
PLAIN = re.compile(r"return ([^\"'\\{}]{1,60})$")
TELLING = {"is": "Tell whether it is", "has": "Tell whether it has", "can": "Tell whether it can"}
PARTICIPLES = {"to": "Turn {0} into {1}.", "by": "Find {0} by {1}.", "from": "Make {0} from {1}."}


def docstring_of(name: str, rows: list[str]) -> str:
    """A docstring for a function: what its only line returns, else its name in words."""
    body = [row.strip() for row in rows[1:] if row.strip() and not row.strip().startswith("#")]
    match = PLAIN.match(body[0]) if len(body) == 1 else None
    if match:
        return f"Return {match[1]}."
    words = pieces(name)
    if len(words) > 1 and words[0] in TELLING:
        return f"{TELLING[words[0]]} {' '.join(words[1:])}."
    for link, form in PARTICIPLES.items():
        if link in words[1:-1]:
            at = words.index(link, 1)
            return form.format(" ".join(words[:at]), " ".join(words[at + 1 :]))
    return f"{' '.join(words).capitalize()}." if words else "Do what the name says."


@goal("docstring_for", "addfunc", 1.2)
def docstring_for(ctx: Setting) -> Plan | None:
    """Give a function a docstring; its words are not given."""
    found = one_line(ctx, "function", "method")
    if found is None:
        return None
    one, _ = found
    text = ctx.facts.files[one.path]
    lines = text.splitlines()
    if one.end == one.line or "\r" in text or not checks.compiles(text):
        return None
    has_one = lines[one.line].strip().startswith(QUOTES)
    if has_one and ctx.rng.random() < 0.85:
        return None

    def play(session: Session) -> tuple[str, str]:
        name, hit = one_definition(session, one.name, f"{one.name} needs a docstring. Find its definition.")
        think = f"It is at {hit.at}. Read it, to say what it does."
        view = open_file(session, hit.path, think, offset=hit.line, limit=24)
        rows = [row for _, row in block(view.lines, hit.line)[0]]
        follow = view.lines[1][1]
        if follow.strip().startswith(QUOTES):
            raise Report(
                "It has a docstring already.",
                f"`{name}` already has a docstring: `{follow.strip()}`. Nothing was changed.",
            )
        said = docstring_of(name, rows)
        lead, old = follow[: len(follow) - len(follow.lstrip())], hit.text.strip()
        new = f'{old}\n{lead}"""{said}"""'
        think = f"It has no docstring. Add one below the first line: {said}"
        change_line(session, hit.path, hit.line, old, new, think)
        return "The diff shows it.", f"Added the docstring `{said}` to `{name}` in `{hit.path}`."

    check = checks.declines() if has_one else _documented(one.path, one.name)
    return Plan("docstring_for", "addfunc", {"name": ctx.called(one)}, play, check, ("def", one.name))


def _documented(path: str, name: str) -> checks.Check:
    """The function has a docstring, and nothing else is new."""

    def check(outcome: Outcome) -> str | None:
        try:
            tree = ast.parse(outcome.after.get(path, ""))
        except SyntaxError:
            return f"{path} is no Python any more"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                if not ast.get_docstring(node):
                    return f"{name} has no docstring"
                node.body = node.body[1:]
        if ast.dump(tree) != ast.dump(ast.parse(outcome.before[path])):
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    return check
