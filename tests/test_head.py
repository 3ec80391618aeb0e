"""The head's bookkeeping, without sockets: who may speak, which reply counts, what a failure becomes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterenv.config import EnvConfig
from clusterenv.errors import (
    AgentError,
    EnvError,
    LaunchError,
    SetupTimeout,
    StateError,
    UseAfterClose,
    WorkerLost,
)
from clusterenv.head import Head
from clusterenv.outcomes import Fresh, Reply, Returned
from clusterenv.peers import Ended, State, restart_delay_s
from clusterenv.policy import Snapshot
from clusterenv.roster import derived_seed
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m
from tests.processes import wait_until


def welcome(rank: int, first: int, count: int) -> m.Welcome:
    return m.Welcome(
        rank=rank,
        num_workers=2,
        first_env=first,
        num_envs=count,
        env_blob_of=[0] * count,
        noise_seed=1,
        autoreset_mode="NextStep",
        same_bounds=True,
        sys_path=[],
        runners=1,
        kl_threshold=0.05,
        auto_threshold=False,
        max_lag=8,
        max_age_s=1e9,
        min_interval=1,
        sync="adaptive",
        n_ref=64,
        lease_s=1.0,
        head_grace_s=1.0,
        setup_timeout_s=1.0,
        step_timeout_s=1.0,
    )


HELLO = m.Hello(rank=0, host="here", pid=7, python="3", executable="python", versions={}, cpus=1)
READY = m.Ready(obs_digest="o", action_digest="a", pids=[1], threads=1)


class Processes:
    def __init__(self) -> None:
        self.gone: dict[int, Ended] = {}
        self.respawned: list[tuple[int, int]] = []
        self.queued: dict[int, str] = {}
        self.looks = 0

    def pending(self) -> Mapping[int, str]:
        return self.queued

    def look_soon(self) -> None:
        self.looks += 1

    def respawn(self, rank: int, incarnation: int) -> None:
        self.gone.pop(rank, None)
        self.respawned.append((rank, incarnation))

    def ended(self) -> Mapping[int, Ended]:
        return self.gone

    def log_path(self, rank: int) -> Path | None:
        return Path(f"worker-{rank}.log")

    def log_tail(self, rank: int) -> str:
        return f"last words of {rank}"


class Wire:
    """Records what the head sends, and answers as a script says."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, m.Message, int]] = []
        self.answers: dict[type, Any] = {}
        self.head: Head | None = None
        self.processes = Processes()

    def send(
        self, peer: bytes, message: m.Message, frames: Sequence[Any], *, incarnation: int, sequence: int
    ) -> int:
        self.sent.append((peer, message, sequence))
        if type(message) in self.answers:
            answer = self.answers[type(message)](peer)
            if answer is not None:
                self.say(answer, peer, sequence)
        return 0

    def say(self, message: m.Message, peer: bytes = b"w0", sequence: int = 0, incarnation: int = 0) -> None:
        assert self.head is not None
        envelope = Envelope(
            peer=peer, incarnation=incarnation, sequence=sequence, message=message, frames=[], nbytes=0
        )
        self.head.on_message(envelope)

    def last(self, kind: type) -> Any:
        return next(message for _, message, _ in reversed(self.sent) if isinstance(message, kind))


@contextmanager
def wired(**options: Any) -> Iterator[Wire]:
    """A head for two workers, looked after by a thread."""
    wire = Wire()
    config = EnvConfig(**{"lease_s": 0.5, "connect_timeout_s": 0.3, "setup_timeout_s": 0.3, **options})
    wire.head = Head([(welcome(0, 0, 2), [b"x"]), (welcome(1, 2, 3), [b"x"])], config, ("o", "a"))
    wire.head.attach(wire, wire.processes)
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(0.02):
            assert wire.head is not None
            wire.head.keep()

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield wire
    finally:
        stop.set()
        keeper.join()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with wired(on_worker_loss="raise") as wire:
        yield wire


@pytest.fixture
def ready(wire: Wire) -> Wire:
    return start(wire)


def start(wire: Wire) -> Wire:
    for rank, peer in enumerate((b"w0", b"w1")):
        wire.say(msgspec.structs.replace(HELLO, rank=rank), peer)
        wire.say(READY, peer)
    assert wire.head is not None
    wire.head.wait_ready()
    return wire


def step(wire: Wire) -> list[Any]:
    assert wire.head is not None
    return wire.head.call(lambda _: (m.StepCommand(), ()), m.Ack)


def test_worker_that_says_hello_is_welcomed(wire: Wire) -> None:
    wire.say(HELLO)
    assert wire.last(m.Welcome).rank == 0


@pytest.mark.parametrize(
    ("message", "wakes"),
    [
        (m.Heartbeat(steps=0, working_on=0), False),
        (m.PullRequest(have_version=0, reason="first"), False),
        (m.Used(cpu_s=1.0, memory_bytes=1), False),
        (READY, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_caller_is_woken_only_by_what_it_may_wait_for(message: m.Message, wakes: bool) -> None:
    wire = Wire()
    wire.head = head = Head([(welcome(0, 0, 2), [b"x"])], EnvConfig(), ("o", "a"))
    head.attach(wire, wire.processes)
    wire.say(HELLO)
    woken: list[bool] = []
    waits = threading.Event()

    def wait() -> None:
        with head._condition:
            waits.set()
            woken.append(head._condition.wait(0.3))

    waiter = threading.Thread(target=wait)
    waiter.start()
    waits.wait(10)
    wire.say(message)
    waiter.join()
    assert woken == [wakes]


def test_second_worker_of_a_rank_is_refused_and_the_first_stays(wire: Wire) -> None:
    wire.say(HELLO)
    wire.say(HELLO, b"other")
    assert "already here" in wire.last(m.Refused).reason
    assert wire.head is not None
    assert wire.head.peers[0].address == b"w0"


def test_unknown_rank_and_stranger_are_refused(wire: Wire) -> None:
    wire.say(msgspec.structs.replace(HELLO, rank=9))
    assert "rank 9" in wire.last(m.Refused).reason
    wire.say(m.Heartbeat(steps=0, working_on=0), b"stranger")
    assert "hello" in wire.last(m.Refused).reason
    assert wire.head is not None
    assert wire.head.refused_peers == 2


def test_late_and_second_replies_are_dropped_and_counted(ready: Wire) -> None:
    ready.answers[m.StepCommand] = lambda _: m.Ack()
    assert len(step(ready)) == 2
    ready.say(m.Ack(), sequence=1)
    ready.say(m.Ack(), sequence=77)
    assert ready.head is not None
    assert ready.head.late_replies == 2
    assert [reply.peer.rank for reply in step(ready)] == [0, 1]


def test_environment_failure_becomes_an_env_error_once_all_have_answered(ready: Wire) -> None:
    failure = m.Failure(kind="env", message="raised", traceback="Traceback", env_index=3, action="1")
    ready.answers[m.StepCommand] = lambda peer: failure if peer == b"w1" else m.Ack()
    with pytest.raises(EnvError, match="worker 1 on here: raised") as raised:
        step(ready)
    assert raised.value.env_index == 3
    ready.answers[m.StepCommand] = lambda _: m.Ack()
    assert len(step(ready)) == 2


def test_agent_failure_becomes_an_agent_error(ready: Wire) -> None:
    failure = m.Failure(kind="agent", message="raised", traceback="Traceback of it")
    ready.answers[m.StepCommand] = lambda _: failure
    with pytest.raises(AgentError, match="Traceback of it"):
        step(ready)


@pytest.mark.parametrize("kind", ["timeout", "runner_lost"])
def test_lost_runner_is_a_lost_worker_at_once(ready: Wire, kind: str) -> None:
    failure = m.Failure(kind=kind, message="its runner is gone", exit_code=-9)
    ready.answers[m.StepCommand] = lambda peer: failure if peer == b"w1" else None
    with pytest.raises(WorkerLost, match=r"environments 2 to 4\) its runner is gone") as raised:
        step(ready)
    assert raised.value.reason == kind
    assert raised.value.signal == 9
    assert "last words of 1" in str(raised.value)


@contextmanager
def beating(wire: Wire, *peers: bytes) -> Iterator[None]:
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            for peer in peers:
                wire.say(m.Heartbeat(steps=0, working_on=0), peer)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_silent_worker_is_lost_after_its_lease(ready: Wire) -> None:
    ready.answers[m.StepCommand] = lambda peer: m.Ack() if peer == b"w0" else None
    with beating(ready, b"w0"), pytest.raises(WorkerLost, match=r"worker 1 .*sent nothing for"):
        step(ready)


def test_worker_that_lives_but_does_not_work_is_lost_too(ready: Wire) -> None:
    ready.answers[m.StepCommand] = lambda peer: m.Ack() if peer == b"w0" else None
    with (
        beating(ready, b"w0", b"w1"),
        pytest.raises(WorkerLost, match=r"worker 1 .*has not taken its command"),
    ):
        step(ready)


def test_ended_process_is_lost_with_its_signal(wire: Wire) -> None:
    wire.say(HELLO)
    wire.processes.gone[1] = Ended(-9, 9)
    assert wire.head is not None
    with pytest.raises(WorkerLost, match=r"was killed by signal 9 \(SIGKILL\)"):
        wire.head.wait_ready()


def test_worker_that_never_comes_is_named_with_the_end_of_its_log(wire: Wire) -> None:
    wire.say(HELLO)
    wire.say(READY)
    assert wire.head is not None
    with pytest.raises(SetupTimeout, match=r"worker 1 did not reach the head[^$]*last words of 1"):
        wire.head.wait_ready()


def test_worker_that_does_not_get_ready_is_named(wire: Wire) -> None:
    wire.say(HELLO)
    wire.say(READY)
    wire.say(msgspec.structs.replace(HELLO, rank=1), b"w1")
    assert wire.head is not None
    with pytest.raises(SetupTimeout, match="worker 1 did not build"):
        wire.head.wait_ready()


REASON = "Slurm job 12 is PENDING (Resources)"


def come(wire: Wire, rank: int) -> None:
    """The worker of `rank` has connected and built its environments."""
    address = f"w{rank}".encode()
    wire.say(msgspec.structs.replace(HELLO, rank=rank), address)
    wire.say(READY, address)


def test_run_begins_with_the_least_number_of_workers_while_the_others_are_in_a_queue() -> None:
    with wired(lease_s=30.0) as wire:
        assert wire.head is not None
        wire.processes.queued[1] = REASON
        come(wire, 0)

        wire.head.wait_ready(1)

        assert [peer.state for peer in wire.head.peers] == [State.READY, State.STARTING]
        assert wire.head.waiting == {1: REASON}


def test_worker_that_leaves_the_queue_joins_the_run_by_a_reset() -> None:
    with wired(lease_s=30.0) as wire:
        assert wire.head is not None
        wire.answers[m.ResetCommand] = lambda _: m.ResetReply(infos=[])
        wire.processes.queued[1] = REASON
        come(wire, 0)
        wire.head.wait_ready(1)

        wire.processes.queued.clear()
        come(wire, 1)

        wire.head.wait_present()
        assert [peer.state for peer in wire.head.peers] == [State.READY, State.READY]


def test_worker_that_has_left_the_queue_is_waited_for_even_if_fewer_would_do() -> None:
    with wired(lease_s=30.0) as wire:
        assert wire.head is not None
        come(wire, 0)

        with pytest.raises(SetupTimeout, match="worker 1 did not reach the head within connect_timeout_s"):
            wire.head.wait_ready(1)


def test_queue_alone_does_not_begin_a_run() -> None:
    with wired(lease_s=30.0) as wire:
        assert wire.head is not None
        wire.processes.queued.update({0: REASON, 1: REASON})

        with pytest.raises(SetupTimeout, match=r"worker 0, 1 did not start within queue_timeout_s = 0.1 s"):
            wire.head.wait_ready(1, 0.1)


def test_wait_in_a_queue_has_its_own_limit_and_tells_the_reason() -> None:
    with wired(lease_s=30.0, connect_timeout_s=0.05) as wire:
        assert wire.head is not None
        wire.processes.queued[1] = REASON
        come(wire, 0)

        with pytest.raises(SetupTimeout) as caught:
            wire.head.wait_ready(None, 0.4)  # far longer than connect_timeout_s, which has not begun

        assert str(caught.value) == f"worker 1 did not start within queue_timeout_s = 0.4 s: {REASON}"


def test_launcher_is_asked_to_look_when_the_lease_tells_of_a_loss_and_not_when_it_told_itself() -> None:
    with wired(lease_s=30.0, on_worker_loss="drop") as wire:
        start(wire)
        assert wire.head is not None
        wire.processes.gone[0] = Ended(1, None)
        wait_until(lambda: wire.head.peers[0].lost_at)
        assert wire.processes.looks == 0

        wire.head.peers[1].heard_at -= 60.0
        wait_until(lambda: wire.head.peers[1].lost_at)
        assert wire.processes.looks == 1


def test_other_spaces_are_refused(wire: Wire) -> None:
    wire.say(HELLO)
    wire.say(msgspec.structs.replace(READY, obs_digest="other"))
    assert wire.head is not None
    with pytest.raises(LaunchError, match="equal spaces"):
        wire.head.wait_ready()


def test_pull_is_answered_with_the_newest_snapshot_and_counted(ready: Wire) -> None:
    assert ready.head is not None
    ready.say(m.PullRequest(have_version=0, reason="first"))
    ready.head.publish(Snapshot(version=5, agent=1, digest=b"", payload=b"12345"))
    ready.say(m.PullRequest(have_version=0, reason="first"))
    assert ready.last(m.WeightsReply).version == 5
    assert ready.head.weight_bytes_sent == 5


def test_answer_of_another_kind_is_refused(ready: Wire) -> None:
    ready.answers[m.StepCommand] = lambda _: m.ResetReply(infos=[])
    with pytest.raises(WorkerLost, match="answered with ResetReply; expected Ack"):
        step(ready)


def test_worker_that_says_goodbye_is_lost_to_the_next_call(ready: Wire) -> None:
    ready.say(m.Goodbye(reason="walltime"), b"w1")
    with pytest.raises(WorkerLost, match="walltime"):
        step(ready)


# --- restart and drop ---------------------------------------------------------------------------------------


def outcomes(wire: Wire, fresh: Fresh = Fresh.SHOW) -> list[Any]:
    assert wire.head is not None
    return wire.head.call(lambda _: (m.StepCommand(), ()), m.Ack, fresh=fresh)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def come_back(wire: Wire, rank: int, peer: bytes, incarnation: int = 1) -> None:
    until(lambda: (rank, incarnation) in wire.processes.respawned)
    wire.say(msgspec.structs.replace(HELLO, rank=rank), peer, incarnation=incarnation)
    wire.say(READY, peer)


def test_lost_worker_is_shown_as_lost_then_away_then_returned_then_answers() -> None:
    with wired() as wire:
        start(wire)
        wire.answers[m.StepCommand] = lambda peer: m.Ack() if peer != b"w1" else None
        wire.answers[m.ResetCommand] = lambda _: m.ResetReply(infos=[])
        wire.processes.gone[1] = Ended(-9, 9)
        first = outcomes(wire)
        assert isinstance(first[0], Reply)
        assert first[1].just_lost
        assert not outcomes(wire)[1].just_lost
        come_back(wire, 1, b"again")
        assert isinstance(outcomes(wire)[1], Returned)
        assert isinstance(outcomes(wire)[1], Reply)
        seeds = wire.last(m.ResetCommand).seeds
        assert len(set(seeds) - {0, 1, 2, 3, 4}) == 3


def test_loss_that_was_mended_between_two_calls_is_still_shown_once() -> None:
    with wired() as wire:
        start(wire)
        wire.answers[m.StepCommand] = lambda _: m.Ack()
        wire.answers[m.ResetCommand] = lambda _: m.ResetReply(infos=[])
        wire.processes.gone[1] = Ended(1, None)
        come_back(wire, 1, b"again")
        assert outcomes(wire, Fresh.KEEP)[1].message == m.Ack()
        assert outcomes(wire)[1].just_lost
        assert isinstance(outcomes(wire)[1], Returned)


def test_replacement_gets_the_agent_before_it_acts() -> None:
    with wired() as wire:
        start(wire)
        assert wire.head is not None
        wire.answers[m.AgentMessage] = lambda _: m.Ack()
        wire.answers[m.ResetCommand] = lambda _: m.ResetReply(infos=[])
        wire.head.introduce(m.AgentMessage(agent=1), b"blob")
        wire.processes.gone[0] = Ended(1, None)
        come_back(wire, 0, b"again")
        assert [type(message) for peer, message, _ in wire.sent if peer == b"again"] == [
            m.Welcome,
            m.ResetCommand,
            m.AgentMessage,
        ]
        assert wire.head.peers[0].state is State.READY


def test_messages_of_a_replaced_incarnation_are_refused() -> None:
    with wired() as wire:
        start(wire)
        wire.processes.gone[1] = Ended(1, None)
        wire.answers[m.ResetCommand] = lambda _: m.ResetReply(infos=[])
        come_back(wire, 1, b"again")
        wire.say(m.Heartbeat(steps=9, working_on=0), b"w1")
        assert "hello" in wire.last(m.Refused).reason
        wire.say(msgspec.structs.replace(HELLO, rank=1), b"w1")
        assert "already here" in wire.last(m.Refused).reason


def test_newer_incarnation_takes_the_place_of_one_that_seems_alive() -> None:
    with wired() as wire:
        start(wire)
        wire.answers[m.StepCommand] = lambda _: m.Ack()
        wire.answers[m.ResetCommand] = lambda _: m.ResetReply(infos=[])
        wire.say(msgspec.structs.replace(HELLO, rank=1), b"requeued", incarnation=5)
        wire.say(READY, b"requeued")
        assert outcomes(wire)[1].just_lost
        assert isinstance(outcomes(wire)[1], Returned)


def test_restarts_are_capped_and_the_error_tells_the_first_loss() -> None:
    with wired(max_restarts=1) as wire:
        start(wire)
        wire.answers[m.StepCommand] = lambda peer: m.Ack() if peer == b"w0" else None
        wire.processes.gone[1] = Ended(77, None)
        assert outcomes(wire)[1].just_lost
        until(lambda: bool(wire.processes.respawned))
        wire.processes.gone[1] = Ended(1, None)
        with pytest.raises(WorkerLost, match=r"max_restarts = 1 times.*The first loss: .*exit code 77"):
            step_until_lost(wire)


def step_until_lost(wire: Wire) -> None:
    while True:
        outcomes(wire)
        time.sleep(0.01)


def test_dropped_worker_stays_away_and_losing_all_is_an_error() -> None:
    with wired(on_worker_loss="drop") as wire:
        start(wire)
        wire.answers[m.StepCommand] = lambda peer: m.Ack() if peer == b"w0" else None
        wire.processes.gone[1] = Ended(1, None)
        assert outcomes(wire)[1].just_lost
        assert not outcomes(wire)[1].just_lost
        assert not wire.processes.respawned
        wire.processes.gone[0] = Ended(1, None)
        with pytest.raises(WorkerLost, match="worker 0"):
            step_until_lost(wire)


def test_all_away_waits_for_the_first_to_return_and_not_for_ever() -> None:
    with wired() as wire:
        start(wire)
        wire.processes.gone[0] = wire.processes.gone[1] = Ended(1, None)
        assert all(outcome.just_lost for outcome in outcomes(wire))
        with pytest.raises(WorkerLost):
            outcomes(wire)


@pytest.mark.parametrize(
    ("losses", "expected"), [([0.0], 0.5), ([0.0, 1.0], 1.0), ([0.0] * 8, 30.0), ([0.0] * 11, None)]
)
def test_restarts_come_later_and_later(losses: list[float], expected: float | None) -> None:
    assert restart_delay_s(losses, 10.0, max_restarts=10) == expected


def test_losses_of_more_than_an_hour_ago_do_not_count() -> None:
    assert restart_delay_s([0.0] * 20 + [5000.0], 5000.0, max_restarts=10) == 0.5


def test_derived_seeds_differ_by_environment_and_incarnation() -> None:
    seeds = {derived_seed(1, env, incarnation) for env in range(50) for incarnation in range(1, 5)}
    assert len(seeds) == 200
    assert not seeds & set(range(100))


# --- threads and launches -----------------------------------------------------------------------------------


def test_second_call_at_a_time_is_refused_and_the_first_goes_on(ready: Wire) -> None:
    assert ready.head is not None
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(step(ready)))
    first.start()
    until(lambda: ready.head is not None and ready.head.peers[0].expected > 0)
    with pytest.raises(StateError, match="another call is in progress"):
        step(ready)
    sequence = ready.head.peers[0].expected
    for peer in (b"w0", b"w1"):
        ready.say(m.Ack(), peer, sequence)
    first.join()
    assert len(results[0]) == 2


def test_close_during_a_call_ends_it_with_a_sentence(ready: Wire) -> None:
    assert ready.head is not None
    errors: list[Exception] = []

    def call() -> None:
        try:
            step(ready)
        except UseAfterClose as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: ready.head is not None and ready.head.peers[0].expected > 0)
    ready.head.say_goodbye("closed", 0.1)
    thread.join()
    assert "closed while a call was in progress" in str(errors[0])


def test_welcome_that_cannot_be_sent_fails_the_launch_at_once(wire: Wire) -> None:
    def refuse(_: bytes) -> None:
        raise ValueError("Welcome of 402362 bytes is too large")

    wire.answers[m.Welcome] = refuse
    wire.say(HELLO)
    assert wire.head is not None
    with pytest.raises(LaunchError, match="402362 bytes"):
        wire.head.wait_ready()


def test_worker_that_falls_silent_while_it_builds_is_lost_after_its_lease() -> None:
    with wired(setup_timeout_s=60.0) as wire:
        wire.say(HELLO)
        wire.say(READY)
        wire.say(msgspec.structs.replace(HELLO, rank=1), b"w1")
        assert wire.head is not None
        with beating(wire, b"w0"), pytest.raises(WorkerLost, match=r"worker 1 .*sent nothing for"):
            wire.head.wait_ready()


def test_close_while_a_reset_waits_for_a_worker_ends_it_with_a_sentence() -> None:
    with wired(connect_timeout_s=60) as wire:
        head = start(wire).head
        assert head is not None
        wire.processes.gone[1] = Ended(1, None)
        until(lambda: wire.processes.respawned == [(1, 1)])
        closing = threading.Timer(0.1, head.say_goodbye, ("closed", 0.1))
        closing.start()
        with pytest.raises(UseAfterClose, match="closed while a call was in progress"):
            head.wait_present()
        closing.join()
