"""Requests in Chinese for the main goals, by the names of the goals. Wordings in `texts/chinese/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("chinese")
