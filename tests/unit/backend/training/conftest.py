"""One zygote for all players of a test process: each would load pytest anew."""

from collections.abc import Iterator
from functools import cache

import pytest

from k3agent.backend.training.episodes import toolbox, zygote


class Shared(zygote.Zygote):
    """A zygote that goes on when one of its users ends."""

    def close(self) -> None:
        """Nothing: others use it."""


@pytest.fixture(autouse=True, scope="session")
def one_zygote() -> Iterator[None]:
    started = cache(Shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolbox, "Zygote", started)
        yield
    if started.cache_info().currsize:
        zygote.Zygote.close(started())
