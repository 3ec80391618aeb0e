"""`clusterenv quicktest`: does this installation work? Tries its parts, in under a minute."""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import clusterenv  # its parts are found when they are used: without its kernels there is none
from clusterenv.diagnosis import Diagnosis
from clusterenv.errors import ClusterEnvError

LONGEST_LINE = 160
WITHIN_S = 40.0
"""Seconds that workers may need for what takes one."""
REINSTALL = "install clusterenv-rl again in this Python, from its checkout: pip install ."
BACKENDS: Mapping[str, tuple[str, str]] = {
    "envpool": ("envpool:CartPole-v1", "pip install --force-reinstall ./plugins/clusterenv-envpool"),
    "procgen": ("procgen:coinrun", "apt-get install libgl1 libglib2.0-0, then pip install the plugin again"),
}
"""Of our plugins: an environment to try, and what helps if it fails."""
ALGORITHMS: Mapping[str, Sequence[str]] = {
    "ppo": ("--env-id=CartPole-v1", "--num-steps=16", "--epochs=1"),
    "a2c": ("--env-id=CartPole-v1",),
    "a3c": ("--env-id=CartPole-v1",),
    "impala": ("--env-id=CartPole-v1", "--passes=1"),
    "dqn": ("--env-id=CartPole-v1", "--learning-starts=64", "--replay-ratio=1"),
    "sac": ("--env-id=Pendulum-v1", "--learning-starts=64", "--replay-ratio=1"),
}
"""Options for a run of a moment."""


def main(argv: Sequence[str]) -> int:
    """Try the installation: 0 if all that is there works, else 1."""
    argparse.ArgumentParser(
        prog="clusterenv quicktest",
        description="Try kernels, environments, launchers, learners and plots, in under a minute. "
        "What fails is told with its cure; what is optional and not there is told, and is no failure.",
    ).parse_args(argv)
    diagnosis = Diagnosis(_say)
    began = time.monotonic()
    try_packages(diagnosis)
    try_environments(diagnosis)
    try_launchers(diagnosis)
    with TemporaryDirectory(prefix="clusterenv-quicktest-") as folder:
        try_learners(diagnosis, Path(folder))
    failed = [finding.what for finding in diagnosis.findings if finding.well is False]
    seconds = time.monotonic() - began
    if failed:
        diagnosis.title(f"{len(failed)} of these checks failed in {seconds:.0f} s: {', '.join(failed)}")
    else:
        diagnosis.title(f"All is well ({seconds:.0f} s).")
    return 0 if diagnosis.well else 1


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def _trying(diagnosis: Diagnosis, what: str, cure: str) -> Iterator[list[str]]:
    """The block works, and what it adds to the list is told; else its error is, with the cure."""
    seen: list[str] = []
    began = time.monotonic()
    try:
        with redirect_stdout(io.StringIO()):
            yield seen
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever is wrong is to be told
        lines = str(error).strip().splitlines() or [""]
        told = lines[0] if isinstance(error, ClusterEnvError) else f"{type(error).__name__}: {lines[0]}"
        diagnosis.add(what, False, told[:LONGEST_LINE], cure)
    else:
        diagnosis.add(what, True, f"{', '.join(seen)} ({time.monotonic() - began:.1f} s)")


# --- packages -------------------------------------------------------------------------------------------


def try_packages(diagnosis: Diagnosis) -> None:
    """The packages that every part needs, and the compiled kernels."""
    diagnosis.title("Packages")
    with _trying(diagnosis, "packages", REINSTALL) as seen:
        for name in ("clusterenv-rl", "gymnasium", "numpy", "torch", "pyzmq"):
            seen.append(f"{name} {metadata.version(name)}")
    with _trying(diagnosis, "compiled kernels", REINSTALL) as seen:
        import_module("clusterenv.native")
        seen.append("loaded")


# --- environments ---------------------------------------------------------------------------------------


def try_environments(diagnosis: Diagnosis) -> None:
    """Gymnasium's, those of the optional packages, and the backends of plugins."""
    from clusterenv_registry.catalogue import contents
    from clusterenv_registry.listing import listed

    diagnosis.title("Environments and backends")
    _try_environment(diagnosis, "Gymnasium", "CartPole-v1", "pip install --force-reinstall gymnasium")
    for extra, module, env_id in (
        ("box2d", "Box2D", "LunarLander-v3"),
        ("mujoco", "mujoco", "HalfCheetah-v5"),
        ("atari", "ale_py", "ale_py:ALE/Pong-v5"),
    ):
        cure = f'pip install "clusterenv-rl[{extra}]"'
        if find_spec(module) is not None:
            _try_environment(diagnosis, extra, env_id, cure)
        else:
            diagnosis.add(extra, None, f"not installed: {cure}")
    catalogue = contents()
    for broken in catalogue.broken:
        diagnosis.add("plugin", False, str(broken)[:LONGEST_LINE], "install it again, or uninstall it")
    for item in listed(catalogue):
        if item.name == item.backend and item.name in BACKENDS:
            env_id, cure = BACKENDS[item.name]
            if item.missing is None:
                _try_environment(diagnosis, item.name, env_id, cure)
            else:
                diagnosis.add(item.name, None, f"not installed: {item.missing}")


def _try_environment(diagnosis: Diagnosis, what: str, env_id: str, cure: str) -> None:
    with _trying(diagnosis, what, cure) as seen:
        _step(clusterenv.ClusterEnv(env_id, clusterenv.LocalConfig(serial=True), envs_per_node=2))
        seen.append(f"{env_id} steps")


def _step(environments: clusterenv.ClusterEnv) -> int:
    """Make a few steps, and close; how many workers there were."""
    with environments as env:
        env.reset(seed=1)
        for _ in range(5):
            env.step(env.action_space.sample())
        return len(env.stats()["workers"])


# --- launchers ------------------------------------------------------------------------------------------


def try_launchers(diagnosis: Diagnosis) -> None:
    """Worker processes of this machine, and whether Slurm's commands are here."""
    diagnosis.title("Launchers")
    cure = "`clusterenv doctor --no-job` looks at ports, /dev/shm and limits of this host"
    with _trying(diagnosis, "local", cure) as seen:
        env = clusterenv.ClusterEnv(
            "CartPole-v1",
            clusterenv.LocalConfig(nodes=2),
            envs_per_node=2,
            connect_timeout_s=WITHIN_S,
            setup_timeout_s=WITHIN_S,
            step_timeout_s=WITHIN_S,
            max_restarts=0,
        )
        seen.append(f"{_step(env)} worker processes")
    if shutil.which("sbatch") is None:
        diagnosis.add("slurm", None, "sbatch is not here; on a login node `clusterenv doctor` tries a job")
    else:
        diagnosis.add("slurm", None, "sbatch is here; `clusterenv doctor` tries a job")


# --- learners and plots ---------------------------------------------------------------------------------


def try_learners(diagnosis: Diagnosis, folder: Path) -> None:
    """Each algorithm trains for a moment; then an agent plays, and runs are compared."""
    diagnosis.title("Learners and plots")
    for algorithm, options in ALGORITHMS.items():
        with _trying(diagnosis, f"train {algorithm}", REINSTALL) as seen:
            seen.append(f"{_train(algorithm, options, folder / algorithm)} updates")
    with _trying(diagnosis, "evaluate", REINSTALL) as seen:
        _run("clusterenv.learners.evaluate", ["--checkpoint", str(folder / "ppo"), "--num-episodes", "2"])
        seen.append("2 episodes")
    cure = "pip install --force-reinstall matplotlib"
    with _trying(diagnosis, "plot and compare", cure) as seen:
        runs = [str(folder / name) for name in ("ppo", "a2c")]
        _run("clusterenv.learners.plot", [*runs, "--out", str(folder / "curves.png")])
        _run("clusterenv.benchmark.compare", [*runs, "--out", str(folder / "comparison")])
        seen.append(f"{len(list(folder.glob('*.png')))} pictures")
    torch: Any = import_module("torch")
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    diagnosis.add("GPUs", None, ", ".join(gpus) or "none seen by torch")


def _train(algorithm: str, options: Sequence[str], run_dir: Path) -> int:
    """How many updates a short run has made."""
    module = import_module(f"clusterenv.learners.{algorithm}")
    common = ("--workers=1", "--serial", "--envs-per-worker=4", "--total-steps=128", f"--run-dir={run_dir}")
    config, launcher = module.parse([*options, *common])
    updates: int = module.train(config, launcher).updates
    return updates


def _run(module: str, words: list[str]) -> None:
    command: Callable[[list[str]], int] = import_module(module).main
    command(words)
