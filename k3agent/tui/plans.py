"""Whether an answer given in plan mode is a plan that could be carried out, or just an answer."""

from __future__ import annotations

import re

_HEADING = re.compile(
    r"(?im)^\W{0,6}(?:(?:here is |this is )?(?:the|my|a|our) )?(?:\w+ )?plan\b[^.\n]{0,50}$"
)
_NUMBERED = re.compile(r"(?m)^ {0,3}\d{1,2}[.)] +\S")
_BULLET = re.compile(r"(?m)^ {0,3}[-*+] +\S")
_INTENT = re.compile(
    r"(?i)\bI(?: will|\u2019ll|'ll| would|'d|\u2019d| propose| suggest| plan to| can then)\b"
)
_QUESTION = re.compile(
    r"(?i)^\W*(?:what|why|how|where|which|who|when|does|do|is|are|was|were|has|have|explain|show|tell|describe"
    r"|summari[sz]e|list|find|look|read|count)\b"
)
_ASKS_FOR_PLAN = re.compile(r"(?i)\b(?:plan|propose|proposal|approach|steps|should (?:i|we)|would you)\b")


def is_plan(answer: str, prompt: str, *, has_steps: bool) -> bool:
    """`has_steps`: the model has written steps down (`todo`) in this turn. A question is answered, a task is
    planned; what is written like a plan is one in either case.
    """
    if not answer.strip():
        return False
    if has_steps or _HEADING.search(answer):
        return True
    is_listed = bool(_NUMBERED.search(answer)) or len(_BULLET.findall(answer)) > 1
    is_question = prompt.rstrip().endswith("?") or _QUESTION.match(prompt) is not None
    if is_question:
        return is_listed and _ASKS_FOR_PLAN.search(prompt) is not None
    return is_listed or _INTENT.search(answer) is not None
