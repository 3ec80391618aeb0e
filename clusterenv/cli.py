"""The command `clusterenv`: finds the subcommand, runs it, and turns expected errors into one sentence.

Each subcommand imports what it needs when it runs, so that a worker starts without a learner's libraries.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterenv import __version__
from clusterenv.standard_output import reader_is_gone

BY_SIGNAL = 128
INTERRUPTED = BY_SIGNAL + signal.SIGINT
UNREAD = BY_SIGNAL + signal.SIGPIPE
"""As of other programs whose reader went, such as `head`, before they had said all."""
REFUSED = 2


@dataclass(frozen=True, slots=True)
class _Command:
    usage: str
    summary: str
    run: Callable[[list[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of the command line `argv`: 2 after an expected error, above 128 after a signal."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            status = _run(words)
        finally:
            if sys.stdout is not None:  # as it is where the process was started with it closed
                sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        if not reader_is_gone():
            raise
        status = UNREAD
    except Exception as error:
        if not _is_expected(error):
            raise
        sys.stderr.write(f"clusterenv: {error}\n")
        status = REFUSED
    if argv is None and status > BY_SIGNAL:
        # The process only exits now: another Ctrl-C would show as tracebacks of whatever is cleaned up.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    return status


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0 if words else REFUSED
    if words[0] == "--version":
        sys.stdout.write(f"clusterenv {__version__}\n")
        return 0
    command = _COMMANDS.get(words[0])
    if command is None:
        near = difflib.get_close_matches(words[0], _COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(_COMMANDS)}"
        sys.stderr.write(f"clusterenv: there is no command {words[0]!r}; {hint}\n")
        return REFUSED
    return command.run(words[1:])


def _help() -> str:
    width = max(len(command.usage) for command in _COMMANDS.values())
    lines = [f"  clusterenv {command.usage:{width}}  {command.summary}" for command in _COMMANDS.values()]
    return "\n".join([f"ClusterEnv {__version__}", "", *lines, "", "Each command knows --help.", ""])


def _is_expected(error: Exception) -> bool:
    from clusterenv.errors import ClusterEnvError
    from clusterenv_registry import RegistryError

    return isinstance(error, ClusterEnvError | RegistryError)


def _train(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        sys.stderr.write(
            "usage: clusterenv train ALGO [options]; ALGO is ppo, a2c, a3c, impala, dqn or sac;"
            " `clusterenv train ppo --help` lists the options of ppo\n"
        )
        return 0 if words else REFUSED
    # Threads of torch that wait must not take the cores from workers; OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from clusterenv.learners import main

    return main(words[0], words[1:])


def _evaluate(words: list[str]) -> int:
    from clusterenv.learners.evaluate import main

    return main(words)


def _plot(words: list[str]) -> int:
    from clusterenv.learners.plot import main

    return main(words)


def _compare(words: list[str]) -> int:
    from clusterenv.benchmark.compare import main

    return main(words)


def _quicktest(words: list[str]) -> int:
    from clusterenv.quicktest import main

    return main(words)


def _bench(words: list[str]) -> int:
    from clusterenv.benchmark import main

    return main(words)


def _doctor(words: list[str]) -> int:
    from clusterenv.doctor import main

    return main(words)


def _status(words: list[str]) -> int:
    from clusterenv.monitor.commands import status

    return status(words)


def _logs(words: list[str]) -> int:
    from clusterenv.monitor.commands import logs

    return logs(words)


def _stop(words: list[str]) -> int:
    from clusterenv.monitor.commands import stop

    return stop(words)


def _register(words: list[str]) -> int:
    from clusterenv.register_env import main

    return main(words)


def _envs(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="clusterenv envs",
        description="List every backend and environment that has a name.",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(words)
    from clusterenv_registry.catalogue import contents
    from clusterenv_registry.listing import listed

    catalogue = contents()
    found = list(listed(catalogue))
    width = max(len(item.name) for item in found)
    for broken in catalogue.broken:
        sys.stderr.write(f"clusterenv: {broken}\n{broken.traceback}")
    if options.json:
        json.dump([asdict(item) for item in found], sys.stdout, indent=1)
    else:
        for item in found:
            sys.stdout.write(f"{item.name:{width}}  {item.line()}\n")
    return 0


def _worker(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="clusterenv worker",
        description="Run the environments of one node for the head of a connection file.",
    )
    parser.add_argument(
        "--connection",
        type=Path,
        metavar="FILE",
        help="written by the head; without, the variable CLUSTERENV_CONNECTION holds what it would",
    )
    parser.add_argument("--rank", type=int, required=True, help="which worker this is, from 0")
    parser.add_argument("--incarnation", type=int, help="how often this rank was started before")
    options = parser.parse_args(words)
    for name in ("rank", "incarnation"):
        value = getattr(options, name)
        if value is not None and not 0 <= value < 1 << 31:
            parser.error(f"argument --{name}: {value} is not a number from 0 to {(1 << 31) - 1}")
    from clusterenv.worker_start import start_early

    start_early(options.connection)
    from clusterenv.service import main

    return main(options.connection, options.rank, options.incarnation)


_COMMANDS = {
    "train": _Command("train ALGO", "train an agent, such as `train ppo --env-id CartPole-v1`", _train),
    "evaluate": _Command("evaluate", "play episodes with a trained agent", _evaluate),
    "plot": _Command("plot RUN...", "draw the learning curves of runs", _plot),
    "compare": _Command("compare RUN...", "compare runs: a table and a picture", _compare),
    "bench": _Command("bench", "measure steps per second, and what AAPS saves", _bench),
    "quicktest": _Command("quicktest", "does this installation work? in under a minute", _quicktest),
    "doctor": _Command("doctor", "check this host and a Slurm site before the first job", _doctor),
    "status": _Command("status [RUN]", "show your runs, and the workers of one", _status),
    "logs": _Command("logs RUN [RANK]", "show what the workers of a run have written", _logs),
    "stop": _Command("stop RUN|--all", "end a run, or clear away what a killed one has left", _stop),
    "register": _Command("register", "register an environment of yours by name", _register),
    "envs": _Command("envs", "list every backend and environment that can be asked for by name", _envs),
    "worker": _Command("worker", "run one worker by hand; launchers do this for you", _worker),
}
