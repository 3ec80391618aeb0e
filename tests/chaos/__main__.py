"""The long form: `python -m tests.chaos --seed 1 --faults 1000 --report chaos.json`, in the project's folder.

Faults come in runs of some twenty, which `--heads` processes make side by side, since most of a fault's time
is waiting. As root each has a network of its own, which it can cut, and a /dev/shm of its own, which it can
fill. Each writes its part of the report after each fault; `--resume` goes on after the runs in these.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.driver import planned, run_chaos
from tests.chaos.report import Part, described, merged, part_path

ALONE = 'ip link set lo up && mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm && exec "$@"'

SOME_FAILED = 2
"""Exit status of a part that went through all its faults, in some of which an invariant did not hold."""


def main() -> int:
    """The exit status: 1 if an invariant did not hold, or not all faults were injected."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--heads", type=int, default=3, help="processes side by side; 1 if not root")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end earlier, after this time")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="no other faults than these")
    parser.add_argument("--report", type=Path, default=Path("chaos.json"), help="all outcomes, as JSON")
    parser.add_argument("--resume", action="store_true", help="leave out the runs that were finished")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        return _one_part(options)
    heads = options.heads if _may_be_alone() else 1
    paths = [part_path(options.report, number) for number in range(heads)]
    if not options.resume:
        for path in paths:
            path.unlink(missing_ok=True)
    codes = _all_parts(heads)
    parts = [Part.read(path) if path.exists() else Part() for path in paths]
    for number, code in enumerate(codes):
        if code not in (0, SOME_FAILED):  # an exception's is 1
            parts[number].failures.append(f"part {number} ended with exit code {code}")
    options.report.write_text(json.dumps(merged(parts, seed=options.seed), indent=1))
    sys.stdout.write(f"{described(parts, seed=options.seed)}\n")
    return 1 if any(part.failures for part in parts) else 0


def _may_be_alone() -> bool:
    tools = (shutil.which(name) for name in ("ip", "tc", "unshare", "mount"))
    return os.geteuid() == 0 and None not in tools


def _all_parts(heads: int) -> list[int]:
    """Each part in a process of its own, as root with a network and shared memory of its own; exit codes."""
    around = ["unshare", "-n", "-m", "sh", "-c", ALONE, "sh"] if _may_be_alone() else []
    own = [sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--heads", str(heads)]
    processes = [subprocess.Popen([*around, *own, "--part", str(part)]) for part in range(heads)]
    try:
        return [process.wait() for process in processes]
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def _one_part(options: argparse.Namespace) -> int:
    path = part_path(options.report, options.part)
    part = Part.read(path) if path.exists() else Part()
    batches = planned(options.seed, options.faults, options.only)
    todo = [number for number in range(len(batches)) if number % options.heads == options.part]
    todo = [number for number in todo if number not in part.batches]
    of_all, began = sum(len(batches[number]) for number in todo), time.monotonic()
    first = len(part.outcomes)

    def tell(part: Part) -> None:
        part.write(path)
        last, done = part.outcomes[-1], len(part.outcomes) - first
        sys.stdout.write(
            f"head {options.part}: {done}/{of_all} after {time.monotonic() - began:.0f} s: {last.kind} in "
            f"{last.call}: {last.outcome}, {last.recovered_s:.1f} s; {len(part.failures)} failures\n"
        )
        sys.stdout.flush()

    run_chaos(options.seed, {number: batches[number] for number in todo}, part, options.seconds, tell)
    part.failures += part.grown()
    part.write(path)
    return SOME_FAILED if part.failures else 0


if __name__ == "__main__":
    sys.exit(main())
