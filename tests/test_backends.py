"""A backend over the whole way: found by name, built on workers, stepped, collected from, called and lost."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig, make_vec
from clusterenv.errors import ConfigError, EnvError, MissingAttribute, StateError
from clusterenv_registry import RegistrationError, UnknownEnvironment, plugins
from clusterenv_registry.entry import Backend, ImportSource
from tests import envs

pytestmark = pytest.mark.process

SERIAL = LocalConfig(serial=True)
ONE = LocalConfig(nodes=1, cpus_per_node=2)
TWO = LocalConfig(nodes=2, cpus_per_node=1)


@pytest.fixture(autouse=True)
def _backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend `tests`, as if a plugin offered it."""
    offered = plugins.Plugins((), (Backend("tests", ImportSource("tests.backends:make"), "these tests"),), ())
    monkeypatch.setattr(plugins, "installed", lambda: offered)


def vector_of(name: str, launcher: LocalConfig = SERIAL, num_envs: int = 6, **options: Any) -> ClusterEnv:
    return ClusterEnv(f"tests:{name}", launcher, envs_per_node=num_envs // launcher.nodes, **options)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2)

    def distribution(self, obs: Any) -> Categorical:
        return Categorical(logits=self.linear(torch.as_tensor(obs)))

    def value(self, obs: Any) -> torch.Tensor:
        return torch.as_tensor(obs)[:, 0]


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    return Policy()


def test_rebuild_of_one_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"on_env_error.*where a backend makes the environments"):
        vector_of("Count", on_env_error="rebuild")


@pytest.mark.parametrize(
    "config",
    [
        {"type": "tests", "env_name": "Count", "env_kwargs": {"n": 3}},
        {"env_name": "tests:Count", "env_kwargs": {"n": 3}},
    ],
    ids=["by type", "before a colon"],
)
def test_spaces_and_mode_are_known_before_launch(config: dict[str, Any]) -> None:
    env = ClusterEnv(config, TWO)

    assert env.single_observation_space == envs.Count.observation_space
    assert env.action_space.shape == (16,)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert repr(env).startswith("ClusterEnv('tests:Count'")
    assert env.spec is None


@pytest.mark.parametrize("launcher", [SERIAL, ONE, TWO], ids=["serial", "one worker", "two workers"])
def test_it_walks_as_gymnasiums_own_vector_does(launcher: LocalConfig) -> None:
    local = SyncVectorEnv([envs.RandomObs] * 6)
    with vector_of("RandomObs", launcher) as env:
        np.testing.assert_array_equal(env.reset(seed=3)[0], local.reset(seed=3)[0])
        for _ in range(20):
            actions = np.zeros(6, np.int64)
            seen, expected = env.step(actions), local.step(actions)
            for one, other in zip(seen[:4], expected[:4], strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_worker_has_one_runner_and_all_its_cores_are_threads() -> None:
    with vector_of("Count", LocalConfig(nodes=1, cpus_per_node=2)) as env:
        env.launch()
        assert len(set(env.call("pid"))) == 1
        assert env.get_attr("threads") == (2,) * 6
        assert env.stats()["threads"]["runners"] == [2]


def test_rows_that_a_rollout_only_resets_are_not_valid(policy: Policy) -> None:
    with vector_of("Count", TWO, env_kwargs={"n": 3}) as env:
        batch = env.rollout(policy, 6)
        after = env.rollout(policy, 2)

    assert batch.valid.T.tolist() == [[True, True, True, False, True, True]] * 6
    assert batch.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert batch.rewards[:, 0].tolist() == [1, 1, 1, 0, 1, 1]
    assert batch.terminations[:, 0].tolist() == [False, False, True, False, False, False]
    assert batch.final_index.tolist() == [[2, n] for n in range(6)]
    assert batch.final_obs[:, 0].tolist() == batch.final_values.tolist() == [3] * 6
    assert batch.last_obs[:, 0].tolist() == batch.last_values.tolist() == [2] * 6
    assert [(e.env_id, e.episode_return, e.length) for e in batch.episodes] == [(n, 3, 3) for n in range(6)]
    assert after.terminations[:, 0].tolist() == [True, False]
    assert after.valid[:, 0].tolist() == [True, False]
    assert [(e.episode_return, e.length) for e in after.episodes] == [(3, 3)] * 6


def test_rollouts_in_which_every_row_is_only_reset_go_on(policy: Policy) -> None:
    other = Policy()  # with other weights
    with vector_of("Count", env_kwargs={"n": 1}) as env:
        batches = [env.rollout(agent, 1) for agent in (policy, policy, other, other)]
        assert [bool(batch.valid.all()) for batch in batches] == [True, False, True, False]
        obs, *_, info = env.step(policy)

    assert [batch.last_obs[0, 0] for batch in batches] == [1, 0, 1, 0]
    assert obs[:, 0].tolist() == [1] * 6
    assert np.isfinite(info["log_prob"]).all()


@pytest.mark.parametrize(
    ("own", "masks"), [("SameStep", False), ("NextStep", True)], ids=["its own", "by masked resets"]
)
def test_same_step_rollouts_hold_transitions_only(own: str, masks: bool, policy: Policy) -> None:
    kwargs = {"n": 3, "own": own, "masks": masks}
    with vector_of("Count", env_kwargs=kwargs, autoreset_mode="SameStep") as env:
        batch = env.rollout(policy, 6)
        obs, _, terminated, _, info = env.step(np.zeros(6, np.int64))

    assert batch.valid.all()
    assert batch.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert batch.final_index[:, 0].tolist() == [2] * 6 + [5] * 6
    assert batch.final_obs[:, 0].tolist() == [3] * 12
    assert [e.length for e in batch.episodes] == [3] * 12
    assert obs[:, 0].tolist() == [1] * 6
    assert not terminated.any()
    assert "final_obs" not in info


class Looks(nn.Module):
    """Acts on four pixels of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def distribution(self, obs: Any) -> Categorical:
        return Categorical(logits=self.actor(obs.flatten(1)[:, :4].float() / 255))

    def value(self, obs: Any) -> torch.Tensor:
        return self.critic(obs.flatten(1)[:, :4].float() / 255)[:, 0]


@pytest.mark.parametrize(
    ("own", "masks", "mode"),
    [
        ("NextStep", False, "NextStep"),
        ("SameStep", False, "SameStep"),
        ("NextStep", True, "SameStep"),
    ],
)
def test_images_written_in_place_are_those_that_travel(own: str, masks: bool, mode: str) -> None:
    torch.manual_seed(0)
    agent = Looks()
    kwargs = {"shape": (40, 40, 4), "n": 5, "own": own, "masks": masks}
    collected = []
    for shared in (True, False):
        with vector_of(
            "Frames", TWO, env_kwargs=kwargs, autoreset_mode=mode, shared_memory=shared, seed=1
        ) as env:
            env.reset(seed=1)
            batches = [env.rollout(agent, 24) for _ in range(3)]
            received = env.stats()["bytes_received"]
            obs = env.step(np.zeros(6, np.int64))[0]
        collected.append((batches, received, obs))

    (ours, in_place, our_next), (theirs, travelled, their_next) = collected
    assert in_place < 0.75 * travelled  # the observations after an episode travel as before
    for one, other in zip(ours, theirs, strict=True):
        for name in ("obs", "actions", "log_probs", "values", "rewards", "terminations", "valid"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        for name in ("last_obs", "last_values", "final_index", "final_obs", "final_values"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(our_next, their_next)


def test_step_with_an_agent_acts_on_the_workers(policy: Policy) -> None:
    with vector_of("Count", env_kwargs={"n": 3}) as env:
        env.reset(seed=1)
        obs, rewards, terminated, _, info = env.step(policy)

    assert obs[:, 0].tolist() == [1] * 6
    assert rewards.tolist() == [1] * 6
    assert not terminated.any()
    assert info["action"].shape == info["log_prob"].shape == (6,)


def test_infos_travel_by_row(policy: Policy) -> None:
    with vector_of("Count", env_kwargs={"n": 2, "own": "SameStep"}) as env:
        _, info = env.reset(seed=1)
        assert info["k"].tolist() == ["reset"] * 6
        env.step(np.zeros(6, np.int64))
        info = env.step(np.zeros(6, np.int64))[4]

    assert info["k"].tolist() == ["reset"] * 6
    assert info["final_info"]["k"].tolist() == ["step"] * 6
    assert [obs.tolist() for obs in info["final_obs"]] == [[2.0]] * 6


def test_send_and_recv_carry_whole_workers() -> None:
    with vector_of("Count", TWO, batch_size=3) as env:
        env.async_reset(seed=1)
        seen = []
        for _ in range(6):
            info = env.recv()[4]
            assert info["env_id"].tolist() in ([0, 1, 2], [3, 4, 5])
            seen += info["env_id"].tolist()
            env.send(np.zeros(3, np.int64), info["env_id"])
        assert len(seen) == 18


def test_send_of_some_rows_needs_a_backend_that_steps_them_alone() -> None:
    for kind in ("all", "rows"):
        with vector_of("Count", env_kwargs={"kind": kind}, batch_size=2) as env:
            env.async_reset(seed=1)
            ids = env.recv()[4]["env_id"]
            env.send(np.zeros(2, np.int64), ids)
            if kind == "rows":
                _, rewards, *_, info = [env.recv() for _ in range(3)][-1]
                assert len(rewards) == len(info["env_id"]) == 2
            else:
                with pytest.raises(
                    StateError, match="can only step all of them together; send their actions"
                ):
                    [env.recv() for _ in range(3)]


def test_calls_and_attributes_reach_the_environments() -> None:
    with vector_of("Count") as env:
        env.reset(seed=1)
        env.set_attr("n", [1, 2, 3, 4, 5, 6])
        assert env.get_attr("n") == (1, 2, 3, 4, 5, 6)
        terminated = env.step(np.zeros(6, np.int64))[2]
        assert terminated.tolist() == [True] + [False] * 5
        with pytest.raises(MissingAttribute, match=r"backend 'tests'.*failed in call of 'nothing'"):
            env.call("nothing")
        with pytest.raises(EnvError, match="is reached as a whole; ask for 'n' of all environments"):
            env.call_on([1], "n")


def test_a_vector_without_calls_says_so() -> None:
    with vector_of("Count", env_kwargs={"kind": "bare"}) as env:
        env.reset(seed=1)
        with pytest.raises(MissingAttribute, match="no method to call its environments with, so 'n' cannot"):
            env.get_attr("n")
        with pytest.raises(MissingAttribute, match="no method to set attributes"):
            env.set_attr("n", 3)
        assert env.step(np.zeros(6, np.int64))[1].tolist() == [1] * 6


def test_an_error_names_backend_worker_and_call_and_a_reset_goes_on() -> None:
    with vector_of("Fails", TWO, env_kwargs={"where": "step", "at": 2}) as env:
        env.reset(seed=1)
        env.step(np.zeros(6, np.int64))
        with pytest.raises(
            EnvError, match=r"worker \d.*backend 'tests' \(environments \d to \d\) failed in step"
        ) as caught:
            env.step(np.zeros(6, np.int64))
        assert "Traceback" in str(caught.value)
        with pytest.raises(StateError, match=r"environments \[0, 1, 2\] need a reset before they can step"):
            env.step(np.zeros(6, np.int64))
        env.reset(seed=1)
        env.step(np.zeros(6, np.int64))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("reset", r"returned from reset a value of type ndarray; expected \(obs, infos\), infos a dict"),
        (
            "nothing",
            r"returned from step a value of type NoneType; expected \(obs, rewards, termin",
        ),
        ("four", "returned from step 4 values; expected"),
        ("infos", "returned from step infos of type list; expected"),
        ("swapped", "gave rewards of dtype bool; expected a float"),
        ("complex", "gave rewards of dtype complex128; expected a float"),
        ("columns", r"gave rewards of shape \(6, 1\); expected \(6,\)"),
    ],
)
def test_what_a_vector_should_not_return_is_told_with_what_it_should(
    wrong: str, told: str, policy: Policy
) -> None:
    message = rf"backend 'tests' \(environments 0 to 5\) {told}"
    with vector_of("Count", env_kwargs={"wrong": wrong}) as env:
        for act in (lambda: env.step(np.zeros(6, np.int64)), lambda: env.rollout(policy, num_steps=2)):
            with pytest.raises(EnvError, match=message):
                _ = env.reset(seed=1), act()


def test_what_the_factory_raises_is_told() -> None:
    with pytest.raises(EnvError, match="LookupError: there is no 'Cuont' here"):
        _ = vector_of("Cuont").single_action_space


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"autoreset_mode": "SameStep"}, r"'SameStep'; expected \"NextStep\", which backend 'tests' can do"),
        ({"api": "gym"}, r"'SameStep'; expected \"NextStep\""),
        (
            {"env_kwargs": {"own": "SameStep"}, "autoreset_mode": "NextStep"},
            r"'NextStep'; expected \"SameStep\"",
        ),
    ],
)
def test_a_mode_that_the_backend_has_not_is_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        vector_of("Count", **options).launch()


def test_masked_resets_need_a_backend_that_can() -> None:
    mask = np.array([True] + [False] * 5)
    with vector_of("Count", TWO) as env:
        env.reset(seed=1)
        with pytest.raises(StateError, match="cannot reset some of them alone; reset them all"):
            env.reset(options={"reset_mask": mask})
        env.reset(options={"reset_mask": np.array([True] * 3 + [False] * 3)})  # all of one worker
    with vector_of("Count", env_kwargs={"masks": True}) as env:
        env.reset(seed=1)
        env.step(np.zeros(6, np.int64))
        assert env.reset(options={"reset_mask": mask})[0][:, 0].tolist() == [0] + [1] * 5


def test_wrappers_and_a_missing_name_are_refused() -> None:
    with pytest.raises(RegistrationError, match="wrappers are for single environments, but backend 'tests'"):
        ClusterEnv({"env_name": "tests:Count", "wrappers": [lambda env: env]})
    with pytest.raises(UnknownEnvironment, match="backend 'tests' needs env_name"):
        ClusterEnv({"type": "tests"})


def test_make_vec_takes_the_name_of_a_backends_environment() -> None:
    with make_vec("tests:Count", 4, SERIAL, n=2) as env:
        env.reset(seed=1)
        assert env.step(np.zeros(4, np.int64))[1].tolist() == [1] * 4


def test_a_killed_worker_comes_back_with_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterenv.peers.FIRST_DELAY_S", 0.1)
    with vector_of("RandomObs", TWO, lease_s=5.0) as env:
        first, _ = env.reset(seed=7)
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        lost = False
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            obs, _, _, truncated, info = env.step(np.zeros(6, np.int64))
            lost |= "worker_lost" in info and bool((truncated & info["worker_lost"])[3:].all())
            if lost and "valid" not in info:
                break
            time.sleep(0.05)
        else:
            pytest.fail("the worker did not come back")
        assert env.stats()["workers"][1]["restarts"] == 1
        assert not np.array_equal(obs[3:], first[3:])
