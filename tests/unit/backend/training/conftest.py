"""Players of episodes; one zygote for all of a test process, since each would load pytest anew."""

from collections.abc import Iterator
from functools import cache

import pytest

from k3agent.backend.training.episodes import toolbox, zygote
from k3agent.backend.training.episodes.player import Player


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


@pytest.fixture
def player(request: pytest.FixtureRequest) -> Iterator[Player]:
    """A player of its own for each test, drawn as the module's PLAYER_SEED says."""
    made = Player(request.module.PLAYER_SEED, 0, strict=True)
    yield made
    made.close()
