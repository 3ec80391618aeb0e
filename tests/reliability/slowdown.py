"""How much strangers slow a run: `python -m tests.reliability.slowdown [--rate 100 | --crowd 10000]`.

Steps a second, and what a step costs the head in processor time, are measured in turn without and with a
process that connects `--rate` times a second, with plain TCP and with a wrong key; or that keeps `--crowd`
connections open which never finish their handshake, each opened again when it is cut. It runs on the same
machine: on few cores its own work counts against the run's steps, but not against the head's processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import time
from functools import partial

import numpy as np
import psutil
import zmq

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.transport import RunKeys
from tests.envs import Busy
from tests.processes import wait_until

ENVS = 16
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE".ljust(55, b"\0")
"""What ZeroMQ says first, with the mechanism that the head wants."""
MOST_COST = 1.1


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


def crowd(endpoint: str, count: int) -> None:
    """Keep `count` connections open, for ever; says on standard output when all of them are."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with selectors.DefaultSelector() as opened:
        while True:
            for number in range(min(count - len(opened.get_map()), 200)):
                another = socket.create_connection((host, int(port)), 30)
                if number % 2:  # this costs the head a pair of keys
                    another.sendall(GREETING)
                opened.register(another, selectors.EVENT_READ)
            if len(opened.get_map()) == count:
                sys.stdout.write("all\n")
                sys.stdout.flush()
            for key, _ in opened.select(0.05):
                assert isinstance(key.fileobj, socket.socket)
                with contextlib.suppress(OSError):
                    if key.fileobj.recv(1 << 12):
                        continue  # the head's greeting
                opened.unregister(key.fileobj)
                key.fileobj.close()


def speed(env: ClusterEnv, seconds: float) -> tuple[float, float]:
    """Steps of all environments a second, and microseconds of this process's cores for one of each."""
    actions, steps = np.zeros(ENVS, np.int64), 0
    end, spent = (began := time.monotonic()) + seconds, time.process_time()
    while time.monotonic() < end:
        env.step(actions)
        steps += 1
    used_us = 1e6 * (time.process_time() - spent)
    return steps * ENVS / (time.monotonic() - began), used_us / steps


def main() -> int:
    """The exit status: 1 if a step costs the head a tenth more."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.slowdown", description=__doc__)
    parser.add_argument("--rate", type=float, default=100, help="connections a second")
    parser.add_argument("--crowd", type=int, default=0, help="connections at once, instead")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack and options.crowd:
        crowd(options.attack, options.crowd)
    elif options.attack:
        attack(options.attack, options.rate)
    ratios, costs = [], []
    with ClusterEnv([partial(Busy, 1e-4, 100)] * ENVS, LocalConfig(nodes=2, cpus_per_node=1)) as env:
        env.reset(seed=0)
        assert env._run is not None
        endpoint = env._run.session._server.endpoints[0]  # type: ignore[union-attr]
        flags = ["--crowd", str(options.crowd)] if options.crowd else ["--rate", str(options.rate)]
        command = [sys.executable, "-m", "tests.reliability.slowdown", "--attack", endpoint, *flags]
        calm = psutil.Process().num_fds()
        for _ in range(options.pairs):
            quiet, cost = speed(env, options.seconds)
            with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
                assert attacker.stdout is not None
                _ = attacker.stdout.readline() if options.crowd else time.sleep(1)
                loud, cost_then = speed(env, options.seconds)
                attacker.kill()
            wait_until(lambda: psutil.Process().num_fds() < calm + 10, 60)  # all of them are cut
            ratios.append(loud / quiet)
            costs.append(cost_then / cost)
            sys.stdout.write(f"{quiet:,.0f} steps/s alone, {loud:,.0f} under attack: {ratios[-1]:.2f}; ")
            sys.stdout.write(f"a step of the head {cost:.0f} us, {cost_then:.0f} us: {costs[-1]:.2f}\n")
            sys.stdout.flush()
        unproven = env.stats()["unproven_connections"]
    sys.stdout.write(f"median {statistics.median(ratios):.2f} of the steps, ")
    sys.stdout.write(
        f"{statistics.median(costs):.2f} of the processor time; {unproven} connections ended unproven\n"
    )
    return int(statistics.median(costs) > MOST_COST)


if __name__ == "__main__":
    sys.exit(main())
