"""Stands here so that pytest puts `tests/` on the path: tests import helpers as `support.<name>`."""
