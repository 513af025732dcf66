"""A fault in a rank midway, for tests: `ranks_fault.py DEVICE kill|raise` breaks rank 1 of a comparison."""

import os
import signal
import sys
from typing import Any

from k3agent.backend import rankcheck
from k3agent.backend.parallel.processes import RankProcesses

STEP = 5


def main() -> int:
    """Whatever the comparison returns; it should not get that far."""
    device, fault = sys.argv[1:]
    tell, told = RankProcesses.tell, []

    def tell_and_break(self: RankProcesses, *command: Any) -> None:
        told.append(command[0])
        if told.count("forward") != STEP or command[0] != "forward":
            tell(self, *command)
        elif fault == "kill":
            tell(self, *command)
            os.kill(self.pids[0], signal.SIGKILL)
        else:
            # the rank does not know the word, and rank 0 waits for it inside a collective
            tell(self, "no such command")

    RankProcesses.tell = tell_and_break
    flags = ["--ranks", "2", "--device", device, "--expert-parallel", "1", "--no-warm-up"]
    return rankcheck.main(flags)


if __name__ == "__main__":
    sys.exit(main())
