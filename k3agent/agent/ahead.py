"""Between two turns: a context that is nearly full is made short already, and the engine reads what the next
request will begin with, so that the next prompt waits for neither.

Only where a person is there and the engine is the bundled one: there it costs nothing but time.
"""

from __future__ import annotations

import asyncio
import logging

from k3agent.agent.compaction import Compactor
from k3agent.errors import K3AgentError

log = logging.getLogger(__name__)


class Ahead:
    """At most one such piece of work at a time; `stop` it before anything else is done with the session."""

    def __init__(self, compactor: Compactor, *, is_on: bool) -> None:
        self._compactor = compactor
        self._is_on = is_on
        self._task: asyncio.Task[None] | None = None

    def begin(self, turn: int) -> None:
        """`turn` has come to a good end."""
        if self._is_on:
            self._task = asyncio.get_running_loop().create_task(self._work(turn))

    def cancel(self) -> None:
        """It does nothing any more from now on."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Cancelled, and at its end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            # Not `await task`: a cancellation of the one who waits would look like that of the task.
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()

    async def _work(self, turn: int) -> None:
        try:
            await self._compactor.ahead(turn)
        except K3AgentError as error:
            # The next prompt meets the same, where it can be told.
            log.info("nothing was made ready ahead: %s", error)
