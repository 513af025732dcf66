"""Several ranks of one model: who they are, and what they exchange."""
