"""Gymnasium's vector wrappers over ClusterEnv give what they give over SyncVectorEnv."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Sampled
from tests.spaces import assert_same

pytestmark = pytest.mark.process

Wrap = Callable[[VectorEnv], VectorEnv]
NUM_ENVS, NUM_STEPS = 3, 40
LAUNCHERS = {"serial": LocalConfig(serial=True), "two workers": LocalConfig(nodes=2, cpus_per_node=1)}

NAMED = spaces.Dict({"near": spaces.Box(-1, 1, (2,), np.float32), "far": spaces.Box(0, 9, (3,), np.int64)})
ENV_FNS: dict[str, Callable[[], gym.Env]] = {
    "vectors": partial(Sampled, spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (1,), np.float32)),
    "pictures": partial(Sampled, spaces.Box(0, 255, (8, 6, 3), np.uint8)),
    "names": partial(Sampled, NAMED),
}
WRAPPERS: dict[str, Wrap] = {
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "DictInfoToList": wrappers.DictInfoToList,
    "NormalizeReward": wrappers.NormalizeReward,
    "ClipReward": partial(wrappers.ClipReward, min_reward=-1.0, max_reward=0.5),
    "TransformReward": partial(wrappers.TransformReward, func=lambda reward: reward * 3),
    "VectorizeTransformReward": partial(
        wrappers.VectorizeTransformReward, wrapper=gym.wrappers.ClipReward, min_reward=-1.0
    ),
    "ClipAction": wrappers.ClipAction,
    "RescaleAction": partial(wrappers.RescaleAction, min_action=np.float32(-1), max_action=np.float32(1)),
    "TransformAction": partial(wrappers.TransformAction, func=lambda action: action / 2),
    "VectorizeTransformAction": partial(
        wrappers.VectorizeTransformAction,
        wrapper=gym.wrappers.RescaleAction,
        min_action=np.float32(-1),
        max_action=np.float32(1),
    ),
}
OBSERVATION_WRAPPERS: dict[str, Wrap] = {
    "NormalizeObservation": wrappers.NormalizeObservation,
    "TransformObservation": partial(wrappers.TransformObservation, func=lambda obs: obs / 2),
    "VectorizeTransformObservation": partial(
        wrappers.VectorizeTransformObservation,
        wrapper=gym.wrappers.TransformObservation,
        func=lambda obs: obs / 2,
        observation_space=None,
    ),
    "RescaleObservation": partial(wrappers.RescaleObservation, min_obs=np.float32(-1), max_obs=np.float32(1)),
    "DtypeObservation": partial(wrappers.DtypeObservation, dtype=np.float32),
    "FlattenObservation": wrappers.FlattenObservation,
    "FilterObservation": partial(wrappers.FilterObservation, filter_keys=["far"]),
    "ReshapeObservation": partial(wrappers.ReshapeObservation, shape=(48, 3)),
    "GrayscaleObservation": wrappers.GrayscaleObservation,
    "ResizeObservation": partial(wrappers.ResizeObservation, shape=(4, 4)),
}
WRAPPERS |= OBSERVATION_WRAPPERS
NEEDS_NAMES = ("FlattenObservation", "FilterObservation", "DictInfoToList")
NEEDS_PICTURES = ("ReshapeObservation", "GrayscaleObservation", "ResizeObservation", "DtypeObservation")


def env_of(wrapper: str) -> str:
    return "names" if wrapper in NEEDS_NAMES else "pictures" if wrapper in NEEDS_PICTURES else "vectors"


def modes_of(wrapper: str) -> list[AutoresetMode]:
    """The modes that a wrapper accepts: those of observations do not know of final ones."""
    if wrapper == "NormalizeObservation":
        return [AutoresetMode.NEXT_STEP]
    if wrapper in OBSERVATION_WRAPPERS:
        return [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
    return list(AutoresetMode)


@pytest.fixture(scope="module")
def clusters() -> Iterator[Callable[..., ClusterEnv]]:
    """Environments by name, launcher and autoreset mode, made once."""
    made: dict[tuple[str, str, AutoresetMode], ClusterEnv] = {}

    def env(name: str, launcher: str, mode: AutoresetMode) -> ClusterEnv:
        key = (name, launcher, mode)
        if key not in made:
            made[key] = ClusterEnv([ENV_FNS[name]] * NUM_ENVS, LAUNCHERS[launcher], autoreset_mode=mode)
        return made[key]

    yield env
    for each in made.values():
        each.close()


def walk(env: VectorEnv) -> list[Any]:
    """What a random walk gives."""
    env.action_space.seed(3)
    seen = [env.reset(seed=5)]
    for _ in range(NUM_STEPS):
        seen.append(deepcopy(env.step(env.action_space.sample())))
        ended = seen[-1][2] | seen[-1][3]
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            seen.append(env.reset(options={"reset_mask": ended}))
    return [env.observation_space, env.action_space, *map(comparable, seen)]


def comparable(value: Any) -> Any:
    """Without wall-clock times of episodes, and dicts in one order."""
    if isinstance(value, dict):
        timed = {"r", "l", "t"} <= set(value)
        return {key: comparable(value[key]) for key in sorted(value) if not (timed and key == "t")}
    return type(value)(map(comparable, value)) if isinstance(value, tuple | list) else value


needs_cv2 = pytest.mark.skipif(
    find_spec("cv2") is None, reason="opencv-python-headless is not installed; .ci/clients runs this"
)
CASES = [
    pytest.param(name, launcher, mode, marks=[needs_cv2] if name == "ResizeObservation" else [])
    for name in WRAPPERS
    for launcher in (LAUNCHERS if env_of(name) == "vectors" else ["serial"])
    for mode in modes_of(name)
    if (name, mode) != ("RecordEpisodeStatistics", AutoresetMode.DISABLED)  # see below
]


@pytest.mark.parametrize(("name", "launcher", "mode"), CASES)
def test_wrapper_gives_what_it_gives_over_sync_vector_env(
    name: str, launcher: str, mode: AutoresetMode, clusters: Callable[..., ClusterEnv]
) -> None:
    wrap = WRAPPERS[name]
    twin = SyncVectorEnv([ENV_FNS[env_of(name)]] * NUM_ENVS, autoreset_mode=mode)
    assert_same(walk(wrap(clusters(env_of(name), launcher, mode))), walk(wrap(twin)))
    twin.close()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_episode_statistics_survive_masked_resets_of_other_rows(
    launcher: str, clusters: Callable[..., ClusterEnv]
) -> None:
    # SyncVectorEnv takes the mask out of the caller's options, so that over it the wrapper
    # restarts the statistics of all rows.
    env = wrappers.RecordEpisodeStatistics(clusters("vectors", launcher, AutoresetMode.DISABLED))
    env.action_space.seed(3)
    env.reset(seed=5)
    returns, lengths, episodes = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, np.int64), 0
    for _ in range(NUM_STEPS):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        ended = terminated | truncated
        returns += reward
        lengths += 1
        if ended.any():
            assert info["episode"]["r"][ended].tolist() == returns[ended].tolist()
            assert info["episode"]["l"][ended].tolist() == lengths[ended].tolist()
            env.reset(options={"reset_mask": ended})
            returns[ended], lengths[ended] = 0, 0
            episodes += int(ended.sum())
    assert env.episode_count == episodes > NUM_ENVS


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_torch_wrapper_gives_the_same_tensors(launcher: str, clusters: Callable[..., ClusterEnv]) -> None:
    pytest.importorskip("array_api_compat", reason="array-api-compat is not installed; .ci/clients runs this")

    def walk_with_tensors(env: VectorEnv) -> list[Any]:
        wrapped = wrappers.NumpyToTorch(env)
        torch.manual_seed(2)
        obs, info = wrapped.reset(seed=5)
        seen = [obs, *info.values()]
        for _ in range(NUM_STEPS):
            *step, info = wrapped.step(torch.rand(NUM_ENVS, 1))
            seen += [*step, info["t"]]
        assert all(isinstance(part, torch.Tensor) for part in seen[:1] + seen[-5:])
        return [part.numpy() if isinstance(part, torch.Tensor) else part for part in seen]

    twin = SyncVectorEnv([ENV_FNS["vectors"]] * NUM_ENVS)
    ours = clusters("vectors", launcher, AutoresetMode.NEXT_STEP)
    assert_same(walk_with_tensors(ours), walk_with_tensors(twin))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_record_video_sees_the_same_pictures_and_writes_a_video(launcher: str, tmp_path: Path) -> None:
    pytest.importorskip("moviepy", reason="moviepy is not installed; .ci/clients runs this")
    fns = [partial(gym.make, "CartPole-v1", render_mode="rgb_array")] * 2

    def frames(env: VectorEnv, folder: Path) -> list[np.ndarray]:
        recorder = wrappers.RecordVideo(env, str(folder), step_trigger=lambda step: step == 3)
        recorder.reset(seed=1)
        for step in range(12):
            recorder.step(np.array([step % 2, (step + 1) % 2]))
        recorded = list(recorder.recorded_frames)
        recorder.close()
        assert [video.stat().st_size > 1000 for video in folder.glob("*.mp4")] == [True]
        return recorded

    expected = frames(SyncVectorEnv(fns), tmp_path / "twin")
    assert len(expected) > 5
    assert_same(frames(ClusterEnv(fns, LAUNCHERS[launcher]), tmp_path / "cluster"), expected)
