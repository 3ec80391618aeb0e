"""The long form: `python -m tests.chaos --seed 1 --faults 1000 --report chaos.json`, in the project's folder.

As root it moves into a network namespace of its own, so that it can cut the network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from tests.chaos.driver import run_chaos
from tests.chaos.faults import has_own_network


def main() -> int:
    """The exit status: 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end earlier, after this time")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="no other faults than these")
    parser.add_argument("--report", type=Path, help="where to write all outcomes as JSON")
    parser.add_argument("--own-network", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.own_network and os.geteuid() == 0 and shutil.which("ip") and shutil.which("unshare"):
        words = [sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--own-network"]
        os.execvp("unshare", ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *words])
    report = run_chaos(options.seed, options.faults, options.seconds, options.only, options.report)
    sys.stdout.write(f"{report.table()}\n\nseed {report.seed}, {len(report.outcomes)} faults, ")
    sys.stdout.write(f"{report.rows:,} rows and {report.fragments:,} fragments checked")
    sys.stdout.write(f", network faults: {has_own_network()}\nRSS {report.rss_mb} MB, ")
    sys.stdout.write(f"descriptors {report.descriptors}, threads {report.threads}\n")
    sys.stdout.writelines(f"FAILED: {failure}\n" for failure in report.failures)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
