"""Messages outside the task list: refusals, vague wishes, greetings, small talk. Wordings in `texts/limits/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("limits")
