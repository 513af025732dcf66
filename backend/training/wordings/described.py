"""Requests for code described by what it does: functions of two ideas, methods, guards. Wordings in `texts/described/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("described")
