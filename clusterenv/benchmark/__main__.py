"""`python -m clusterenv.benchmark NAME [options]`."""

from __future__ import annotations

import sys

from clusterenv.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
