"""Speed of the engine, alone and behind its server; see `cli.py`."""
