"""The process of a rank above 0 in data-parallel training.

Started as `python -m k3agent.backend.training.rank RANK COMMANDS_FD LIFE_FD`. It takes the steps that rank 0
takes, on batches of its own, and ends when told to, when rank 0 is gone, and at the first error, whose text
it leaves behind. Feed workers import this module again, so it loads no torch.
"""

import logging
import signal
import sys
from multiprocessing.connection import Connection

from k3agent.backend.errors import PeerLostError
from k3agent.backend.parallel.processes import Raised, attach
from k3agent.backend.training.run import set_environment, start_feeds

log = logging.getLogger(__name__)


def work(rank: int, commands: Connection) -> None:
    """Train beside rank 0."""
    options, started = commands.recv()
    options.rank = rank
    set_environment(options)
    feeds = start_feeds(options)
    # Terminals and service managers signal the whole group; when to stop is rank 0's decision. Not earlier:
    # the workers would inherit it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        from k3agent.backend.training.loop import follow  # lazy: 3 s, and workers are to start first

        follow(options, feeds, started, commands)
    finally:
        for feed in feeds.values():
            feed.close()


def main(arguments: list[str]) -> int:
    """The exit status: 1 after an error, which rank 0 has been told."""
    rank, commands, life = int(arguments[0]), *attach(*arguments[1:])
    logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s rank {rank}: %(message)s")
    try:
        work(rank, commands)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        log.info("rank 0 is gone")
    except Exception as error:
        by_peer = isinstance(error, PeerLostError)
        if not by_peer:
            log.exception("cannot go on")
        try:
            life.send(Raised(f"{type(error).__name__}: {error}", by_peer))
        except OSError:
            log.info("rank 0 is gone")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
