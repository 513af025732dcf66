"""Long proofs on the real program: kills, disk faults, many turns, many writers. See `__main__.py`."""
