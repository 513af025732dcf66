"""Requests of the second edition: git, settings and documents, several steps. Wordings in `texts/second/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("second")
