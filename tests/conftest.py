"""Stands here so that pytest puts `tests/` on the path: tests import helpers as `support.<name>`.

Tests marked `slow` take minutes and run only when asked for with `-m slow`.
"""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the slow ones unless the marker expression names them."""
    if "slow" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="slow: run with -m slow")
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(skip)
