"""The command lines of `clusterenv status`, `logs` and `stop`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from clusterenv.errors import ConfigError
from clusterenv.monitor.finding import FoundRun, RunState, again, find_runs, select
from clusterenv.monitor.logs import follow, logs_of, show
from clusterenv.monitor.stopping import Stopping
from clusterenv.monitor.tables import run_table, worker_table
from clusterenv.standard_output import to_nobody_if_gone

RUN_HELP = "the beginning of its id, as `clusterenv status` shows it, or its folder"


def status(argv: Sequence[str]) -> int:
    """Show the runs of this user, and the workers of the one that is named or is the only one."""
    parser = argparse.ArgumentParser(
        prog="clusterenv status", description="Show this user's runs, and with a run its workers."
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)
    options = parser.parse_args(argv)
    runs = find_runs()
    if options.run is not None:
        runs = [select(runs, options.run)]
    if not runs:
        _say("no runs\n")
        return 0
    _say(run_table(runs))
    if len(runs) == 1:
        _say(f"\n{worker_table(runs[0])}")
    left = [run.short_id for run in runs if run.state in (RunState.DEAD, RunState.ENDED)]
    if left:
        _say(f"\nto clear away what is left: clusterenv stop {' '.join(left)}\n")
    return 0


def logs(argv: Sequence[str]) -> int:
    """Show the ends of the logs of a run's workers."""
    parser = argparse.ArgumentParser(
        prog="clusterenv logs", description="Show the end of what a run's workers have written."
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help=f"{RUN_HELP}; needed where there are several")
    parser.add_argument("rank", nargs="?", type=int, metavar="RANK", help="of one worker; none: of all")
    parser.add_argument("-n", "--lines", type=int, default=20, help="of each log (20)")
    parser.add_argument("-f", "--follow", action="store_true", help="show what is added, until the run ends")
    options = parser.parse_args(argv)
    if options.lines < 0:
        raise ConfigError("lines", options.lines, "a whole number from 0")
    run = select(find_runs(), options.run)
    found = logs_of(run, options.rank)
    if not found:
        raise ConfigError("rank", options.rank, f"a number from 0 to {len(run.status.workers) - 1}")
    show(found, options.lines, _say)
    if options.follow:
        follow(found, _say, lambda: _goes_on(run))
    return 0


def stop(argv: Sequence[str]) -> int:
    """End runs in good order; 1 if one of them goes on."""
    parser = argparse.ArgumentParser(
        prog="clusterenv stop",
        description="End runs in good order, and clear away what is left of those whose head was killed.",
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--all", action="store_true", help="all runs of this user")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="seconds that a head may take (60)")
    parser.add_argument(
        "--force",
        action="store_true",
        help="kill a head that takes longer, and clear away runs of hosts that cannot be reached",
    )
    options = parser.parse_args(argv)
    if options.all == bool(options.runs):
        parser.error("name the runs to stop, or give --all")
    if not options.timeout_s >= 0:
        raise ConfigError("timeout_s", options.timeout_s, "a number of seconds from 0")
    known = find_runs()
    runs = known if options.all else [select(known, word) for word in dict.fromkeys(options.runs)]
    if not runs:
        _say("no runs\n")
    return 0 if Stopping(options.timeout_s, _say, force=options.force).stop(runs) else 1


def _goes_on(run: FoundRun) -> bool:
    now = again(run)
    return now is not None and now.state not in (RunState.DEAD, RunState.ENDED)


def _say(text: str) -> None:
    with to_nobody_if_gone():  # what was begun goes on
        sys.stdout.write(text)
        sys.stdout.flush()
