"""`python -m clusterenv` is the command `clusterenv`."""

from __future__ import annotations

import sys

from clusterenv.cli import main

if __name__ == "__main__":
    sys.exit(main())
