"""Requests that change code: constants, keys, flags, names, files, text. Wordings in `texts/change/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("change")
