"""Requests that add to or take from a file: lines, imports, functions, docstrings, markdown. Wordings in `texts/add/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("add")
