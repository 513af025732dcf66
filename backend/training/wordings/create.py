"""Requests for new files. Wordings in `texts/create/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("create")
