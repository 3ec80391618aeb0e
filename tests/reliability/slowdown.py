"""How much strangers slow a run: `python -m tests.reliability.slowdown [--rate 100] [--seconds 5]`.

Steps a second are measured in turn without and with a process that connects `--rate` times a second, with
plain TCP and with a wrong key. It runs on the same machine: on few cores its own work counts against the run.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from functools import partial

import numpy as np
import zmq

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.transport import RunKeys
from tests.envs import Busy

ENVS = 16


def attack(endpoint: str, rate: float) -> None:
    """Connect `rate` times a second, for ever: half of them speak nonsense, half hold a wrong key."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    keys = RunKeys.generate()
    with zmq.Context() as context:
        while True:
            began = time.monotonic()
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            dealer = context.socket(zmq.DEALER)
            dealer.linger = 0
            dealer.curve_serverkey = keys.server_public_key.encode()
            dealer.curve_publickey = keys.client_public_key.encode()
            dealer.curve_secretkey = keys.client_secret_key.encode()
            dealer.connect(endpoint)
            time.sleep(max(0.0, 2 / rate - (time.monotonic() - began)))
            dealer.close()


def steps_per_s(env: ClusterEnv, seconds: float) -> float:
    """Steps of all environments, a second."""
    actions, steps = np.zeros(ENVS, np.int64), 0
    end = (began := time.monotonic()) + seconds
    while time.monotonic() < end:
        env.step(actions)
        steps += ENVS
    return steps / (time.monotonic() - began)


def main() -> int:
    """The exit status: 1 if the run was slowed by more than a tenth."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.slowdown", description=__doc__)
    parser.add_argument("--rate", type=float, default=100, help="connections a second")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        attack(options.attack, options.rate)
    ratios = []
    with ClusterEnv([partial(Busy, 1e-4, 100)] * ENVS, LocalConfig(nodes=2, cpus_per_node=1)) as env:
        env.reset(seed=0)
        assert env._run is not None
        endpoint = env._run.session._server.endpoints[0]  # type: ignore[union-attr]
        command = [sys.executable, "-m", "tests.reliability.slowdown", "--attack", endpoint]
        for _ in range(options.pairs):
            quiet = steps_per_s(env, options.seconds)
            with subprocess.Popen([*command, "--rate", str(options.rate)]) as attacker:
                time.sleep(1)
                loud = steps_per_s(env, options.seconds)
                attacker.kill()
            ratios.append(loud / quiet)
            sys.stdout.write(f"{quiet:,.0f} steps/s alone, {loud:,.0f} under attack: {ratios[-1]:.2f}\n")
        refused = env._run.session._server.refused_connections  # type: ignore[union-attr]
    sys.stdout.write(f"median {statistics.median(ratios):.2f}, {refused} connections refused\n")
    return int(statistics.median(ratios) < 0.9)


if __name__ == "__main__":
    sys.exit(main())
