"""`python -m k3agent.backend.bench`."""

import sys

from k3agent.backend.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
