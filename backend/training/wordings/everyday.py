"""What people try first: a script that prints, a line for .gitignore, a typo. Wordings in `texts/everyday/`."""

from k3agent.backend.training.wordings.grammar import load_family

GOALS = load_family("everyday")
