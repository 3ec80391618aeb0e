"""Coverage-guided fuzzing of all that a head makes of bytes: `python -m tests.fuzz.decoder --runs 10000000`.

Needs `pip install atheris`, which has wheels for Python 3.11 on Linux. `--processes` share the inputs, each
with another seed; what one finds worth keeping the others go on from. They start from messages of each kind
that a head accepts (`examples.py`). Findings, and a log of each process, are files of the working folder;
options of libFuzzer, such as `-max_total_time=60`, may follow. Any error but ProtocolError is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import atheris  # type: ignore[import-not-found]  # not among the packages that tests need

with atheris.instrument_imports(include=["clusterenv"]):
    from clusterenv.errors import ProtocolError
    from tests.fuzz.reading import read_input

from tests.fuzz.examples import examples  # after what is instrumented

LINES_OF_LOG = 5


def one_input(data: bytes) -> None:
    """Any outcome is right but another error."""
    with contextlib.suppress(ProtocolError):
        read_input(data)


def main() -> int:
    """Fuzz until the number of inputs is reached; the exit status is 1 if there was a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.decoder", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000_000, help="inputs of all processes together")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1, help="of the first process; the others count up")
    parser.add_argument("--corpus", type=Path, help="inputs to start from, kept there; none: for this run")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options, others = parser.parse_known_args()
    if options.alone:
        flags = [f"-runs={options.runs}", f"-seed={options.seed}", "-reload=1", *others, str(options.corpus)]
        atheris.Setup([sys.argv[0], *flags], one_input)
        atheris.Fuzz()
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        corpus = options.corpus or Path(folder)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, example in enumerate(examples()):
            (corpus / f"example-{number}").write_bytes(example)
        return _side_by_side(options, corpus, others)


def _side_by_side(options: argparse.Namespace, corpus: Path, others: list[str]) -> int:
    began, processes, logs = time.monotonic(), [], []
    for number in range(options.processes):
        share = options.runs // options.processes + (number < options.runs % options.processes)
        own = ["--alone", f"--runs={share}", f"--seed={options.seed + number}", f"--corpus={corpus}", *others]
        logs.append(Path(f"fuzz-{number}.log"))
        with logs[-1].open("wb") as log:
            command = [sys.executable, "-m", "tests.fuzz.decoder", *own]
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    codes = [process.wait() for process in processes]
    for log, code in zip(logs, codes, strict=True):
        lines = log.read_text(errors="replace").splitlines()
        sys.stdout.write("\n".join([f"{log}: exit code {code}", *lines[-LINES_OF_LOG:], ""]))
    done = "all" if not any(codes) else "NOT ALL"
    sys.stdout.write(f"{done} of {options.runs:,} inputs in {time.monotonic() - began:.0f} s\n")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
