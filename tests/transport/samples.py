"""One message of each kind with its frames, as golden bytes pin them down."""

from __future__ import annotations

import math

import numpy as np

from clusterenv.transport import Buffer
from clusterenv.transport import messages as m

RUN_ID = 0x0123456789ABCDEF
INCARNATION = 2
SEQUENCE = 41

POLICY = m.PolicyInfo(
    policy_version=7,
    kl=0.03,
    sync_count=2,
    syncs_by_reason={"first": 1, "divergence": 1},
    checks=5,
    check_s=0.002,
    kl_threshold=0.05,
)
REFERENCE = m.Reference(sample=3, kept=True, rows=2, family="categorical", family_sizes=[2])
SHARED = m.SharedMemory(pid=4242, descriptor=19, nbytes=1 << 20, nonce=(1 << 62) + 7)
MEMORY = m.BatchMemory(pid=4711, descriptor=23, nbytes=1 << 27, nonce=(1 << 62) + 9, num_envs=64)
THETA = np.array([[0.5, -0.5], [1.0, 2.0]], dtype=np.float32)

SAMPLES: dict[type[m.Message], tuple[m.Message, list[Buffer]]] = {
    type(message): (message, frames)
    for message, frames in [
        (
            m.Hello(
                rank=1,
                host="node1",
                pid=4242,
                python="3.11.2",
                executable="/usr/bin/python3",
                versions={"numpy": "2.4.6", "torch": "2.13.0"},
                cpus=8,
            ),
            [],
        ),
        (m.Ready(obs_digest="ab12", action_digest="cd34", pids=[4243, 4244], threads=1, shared=SHARED), []),
        (m.Heartbeat(steps=123456, working_on=41), []),
        (m.Ack(), []),
        (m.ResetReply(infos=[b"\x90"]), [np.zeros((2, 3), dtype=np.float32)]),
        (
            m.StepReply(num_final=1, infos=[b"\x90"], final_infos=[]),
            [
                np.arange(6, dtype=np.float32).reshape(2, 3),
                np.array([1.0, -1.0]),
                np.array([True, False]),
                np.array([False, False]),
                np.array([0]),
                np.ones((1, 3), dtype=np.float32),
            ],
        ),
        (
            m.ActReply(policy=POLICY, sample=0, num_final=0, infos=[], final_infos=[]),
            [np.zeros((2, 3), dtype=np.uint8), np.array([0, 1])],
        ),
        (
            m.FragmentReply(
                policy=POLICY,
                num_sampled=0,
                fragment=9,
                num_steps=2,
                num_final=1,
                episodes=[m.Episode(env_id=5, episode_return=21.5, length=200)],
                family="categorical",
                family_sizes=[2],
            ),
            [np.arange(4, dtype=np.int64).reshape(2, 2)],
        ),
        (m.PullRequest(have_version=7, reason="divergence"), []),
        (
            m.Failure(
                kind="env",
                message="ValueError: bad",
                traceback="Traceback ...",
                env_index=5,
                action="3",
                exit_code=-9,
            ),
            [],
        ),
        (m.Goodbye(reason="walltime"), []),
        (m.CallReply(), [b"results"]),
        (m.StreamEnded(abandoned=1), [np.zeros((2, 3), dtype=np.float32)]),
        (m.Used(cpu_s=12.5, memory_bytes=3 << 28), []),
        (m.Lend(pid=4711, descriptor=9, nbytes=1 << 20, nonce=(1 << 62) + 5), []),
        (
            m.Welcome(
                rank=1,
                num_workers=2,
                first_env=4,
                num_envs=3,
                env_blob_of=[0, 0, 1],
                noise_seed=(1 << 63) - 1,
                autoreset_mode="NextStep",
                same_bounds=True,
                sys_path=["/home/user/project"],
                runners=2,
                kl_threshold=0.05,
                auto_threshold=False,
                max_lag=8,
                max_age_s=math.inf,
                min_interval=1,
                sync="adaptive",
                n_ref=64,
                lease_s=10.0,
                head_grace_s=10.0,
                setup_timeout_s=300.0,
                step_timeout_s=600.0,
                head_host="node1",
            ),
            [b"blob 0", b"blob 1"],
        ),
        (m.Refused(reason="rank 1 is already here"), []),
        (m.HeartbeatAck(), []),
        (
            m.ResetCommand(
                noise_seed=None, seeds=[7, None, 1 << 40], mask=[True, False, True], has_options=True
            ),
            [b"options"],
        ),
        (m.StepCommand(mask=[True, True, False, True]), [np.array([2, 4, 3], dtype=np.int64)]),
        (m.AgentMessage(agent=1), [b"agent"]),
        (m.ActCommand(version=8, reference=REFERENCE, has_weights=False), [THETA]),
        (
            m.RolloutCommand(version=8, num_steps=128, reference=None, has_weights=True, memory=MEMORY),
            [b"weights"],
        ),
        (m.WeightsReply(version=8), [b"weights"]),
        (m.CloseCommand(reason="the head closed the run"), []),
        (m.CallCommand(name="render", mask=None), [b"arguments"]),
        (m.SetAttrCommand(name="gravity", mask=[True, False], num_values=1), [b"values"]),
        (m.StreamCommand(version=8, num_steps=128, room=2, sync_at="fragment", max_lag=256, yields=True), []),
        (m.Published(version=9, reference=REFERENCE, has_weights=False), [THETA]),
        (m.Room(fragments=1), []),
        (m.StopStream(), []),
        (m.FetchStepCommand(), []),
        (m.Lent(nonce=(1 << 62) + 5, mapped=True), []),
    ]
}
