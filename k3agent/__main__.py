"""`python -m k3agent`: the same as the program `k3agent`."""

import sys

from k3agent.cli import main

sys.exit(main())
