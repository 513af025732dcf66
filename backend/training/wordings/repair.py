"""Requests to run, test and repair. Wordings in `texts/repair/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("repair")
