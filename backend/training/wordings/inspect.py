"""Requests that only look: listing, finding, showing, explaining. Wordings in `texts/inspect/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("inspect")
