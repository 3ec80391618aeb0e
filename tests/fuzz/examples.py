"""Messages that a head accepts, from which the fuzzer starts: of each kind, with all that they can hold."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance

from clusterenv import values
from clusterenv.batches import ActBatch, Buffer, EpisodeRecord, Fragment, ResetBatch, StepBatch
from clusterenv.in_place import lies_in_place
from clusterenv.infos import encode_infos, plain_info
from clusterenv.transport import messages as m
from clusterenv.transport.codec import FIRST_HEAD_KIND, HEADER, encode
from tests.fuzz.reading import ACTIONS, AS_PACK, ENVS, LIMIT_BYTES, OBS, RUN_ID, STATE, STEPS, VERSION
from tests.transport.samples import POLICY, SAMPLES

INFO = {
    "lives": 3,
    "far": 1 << 70,
    "name": "x",
    "raw": b"\0",
    "near": None,
    "flags": np.array([True, False]),
    "grid": np.zeros((2, 2), np.float32),
    "at": np.float64(0.5),
    "when": np.datetime64("2020-01-01"),
    "pair": (1, [2.0, {"deep": np.int8(3)}]),
    "graph": GraphInstance(np.zeros((1, 1), np.float32), None, None),
    "generator": np.random.default_rng(0),
}


def examples() -> list[bytes]:
    """Inputs of `reading.read_input`, of which all but the first of each kind's are read to the end."""
    made = [
        _input(kind, *SAMPLES[kind]) for kind in m.KINDS.values() if kind in SAMPLES and _from_worker(kind)
    ]
    made += [_input(type(message), message, frames) for message, frames in _fitting()]
    made += [_input(m.Ack, m.Ack(), [values.encode(value)]) for value in INFO.values()]
    return made


def _from_worker(message_type: type[m.Message]) -> bool:
    return next(kind for kind, each in m.KINDS.items() if each is message_type) < FIRST_HEAD_KIND


def _fitting() -> list[tuple[m.Message, list[Buffer]]]:
    infos = [encode_infos([(0, plain_info(INFO)), (1, plain_info({"lives": 2, "grid": np.ones((2, 2))}))])]
    few = [encode_infos([(1, plain_info({"lives": 2}))])]
    step, last = _step(), [*OBS.zeros(ENVS)]
    act = ActBatch(
        step=step,
        actions=[*ACTIONS.zeros(ENVS)],
        log_probs=np.zeros(ENVS, np.float32),
        values=np.zeros(ENVS, np.float32),
        policy_version=VERSION,
        state=[np.zeros((ENVS, *leaf.shape[1:]), leaf.dtype) for leaf in STATE],
    )
    made: list[tuple[m.Message, list[Buffer]]] = [
        (m.ResetReply(infos=infos), ResetBatch(obs=last).frames()),
        (m.StreamEnded(abandoned=1), ResetBatch(obs=last).frames()),
        (m.StepReply(num_final=1, infos=few, final_infos=few), step.frames()),
        (m.ActReply(policy=POLICY, sample=1, num_final=1, infos=few, final_infos=[]), act.frames()),
        (m.CallReply(), [values.join([values.encode(1), values.encode([2.0, "three"])])]),
    ]
    for has_versions, in_place in ((False, False), (True, False), (False, True)):
        fragment = _fragment(has_versions, in_place)
        reply = m.FragmentReply(
            policy=POLICY,
            num_sampled=1,
            fragment=9,
            num_steps=STEPS,
            num_final=1,
            episodes=[m.Episode(env_id=1, episode_return=21.5, length=200)],
            family="categorical",
            family_sizes=[2],
            has_versions=has_versions,
            in_place=in_place,
        )
        made.append((reply, fragment.frames()))
    return made


def _step() -> StepBatch:
    return StepBatch(
        obs=[*OBS.zeros(ENVS)],
        rewards=np.zeros(ENVS),
        terminations=np.zeros(ENVS, np.bool_),
        truncations=np.ones(ENVS, np.bool_),
        final_index=np.array([1]),
        final_obs=[*OBS.zeros(1)],
    )


def _fragment(has_versions: bool, in_place: bool) -> Fragment:
    lead = (STEPS, ENVS)
    travel = [not (in_place and lies_in_place(leaf)) for leaf in OBS.leaves]
    return Fragment(
        obs=[*itertools.compress(OBS.zeros(*lead), travel)],
        actions=[*ACTIONS.zeros(*lead)],
        rewards=np.zeros(lead, np.float32),
        terminations=np.zeros(lead, np.bool_),
        truncations=np.zeros(lead, np.bool_),
        log_probs=np.zeros(lead, np.float32),
        values=np.zeros(lead, np.float32),
        valid=np.ones(lead, np.bool_),
        last_obs=[*itertools.compress(OBS.zeros(ENVS), travel)],
        last_values=np.zeros(ENVS, np.float32),
        final_index=np.array([[2, 1]]),
        final_obs=[*OBS.zeros(1)],
        final_values=np.zeros(1, np.float32),
        policy_version=VERSION,
        versions=np.full(lead, VERSION) if has_versions else None,
        episodes=[EpisodeRecord(env_id=1, episode_return=21.5, length=200)],
        initial_state=[np.zeros((ENVS, *leaf.shape[1:]), leaf.dtype) for leaf in STATE],
        sampled_states=[np.zeros((1, *leaf.shape[1:]), leaf.dtype) for leaf in STATE],
    )


def _input(message_type: type[m.Message], message: Any, frames: list[Buffer]) -> bytes:
    kind = next(kind for kind, each in m.KINDS.items() if each is message_type)
    parts, _ = encode(
        message, frames, run_id=RUN_ID, incarnation=0, sequence=1, max_message_bytes=LIMIT_BYTES
    )
    head, *rest = map(bytes, parts)
    if len(rest) < len(frames):
        kind += AS_PACK
    lengths = b"".join(len(part).to_bytes(2, "little") for part in rest)
    return bytes([kind, len(rest)]) + lengths + b"".join(rest) + head[HEADER.size :]
