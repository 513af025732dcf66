"""A plan is told from an answer."""

from __future__ import annotations

import pytest

from k3agent.tui.plans import is_plan

STEPS = "1. Read the loader\n2. Add the cache\n3. Run the tests"


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("add a cache to the loader", STEPS),
        ("add a cache to the loader", "I would keep the parsed file in a dict and drop it when it changes."),
        ("how would you add a cache?", STEPS),
        ("What should we do about the loader?", "- cache it\n- test it"),
        ("what is slow here?", f"The loader is.\n\n## Plan\n\n{STEPS}"),
        ("why is it slow?", "It reads twice.\n\n**Proposed plan:**\nread once"),
        ("Where is it?", f"Here is the plan:\n{STEPS}"),
    ],
)
def test_plans(prompt: str, answer: str) -> None:
    assert is_plan(answer, prompt, has_steps=False)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("what does load do?", "It reads three files:\n\n1. config.toml\n2. the environment\n3. flags"),
        ("where is the loader", "In config/loader.py. It was planned to move it."),
        ("explain the loader", "- it reads\n- it parses"),
        ("thanks", "You are welcome."),
        ("list the files", "- a.py\n- b.py"),
        ("make it faster", ""),
        (
            "is there a plan?",
            "There is none here that I can see, and the plan of 2024 is gone.",
        ),
    ],
)
def test_answers(prompt: str, answer: str) -> None:
    assert not is_plan(answer, prompt, has_steps=False)


def test_steps_written_down_are_a_plan() -> None:
    assert is_plan("See the steps.", "what is to be done?", has_steps=True)
