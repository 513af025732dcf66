"""What the proofs share."""

from __future__ import annotations


class ProofFailed(AssertionError):
    """Something that was to hold does not."""
