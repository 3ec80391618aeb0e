from __future__ import annotations

import functools
import signal
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.distributions import Distribution

from clusterenv.batches import ActBatch, EpisodeRecord, Fragment, ResetBatch, StepBatch
from clusterenv.commands import Act, Collect, Done, Evaluate, EvaluateBatch, Failed, LoadState, Reset, Step
from clusterenv.errors import AgentError, EnvError, StateError
from clusterenv.runner import Runner
from tests.envs import BoundedBox, Count, Fails, Nested, RandomObs
from tests.pools import Far, Forced, Raises, arrays_of, carrier, give_agent, reset, runner_of

COUNTS = (functools.partial(Count, 2, "term"), functools.partial(Count, 3, "trunc"))


class Exits(Count):
    """Count whose second step calls sys.exit, once."""

    left = 1

    def step(self, action: object) -> tuple:
        if self.t == 1 and self.left:
            self.left = 0
            sys.exit(3)
        return super().step(action)


def acting(env_fns: tuple = COUNTS, agent: object = None, **changes: object) -> Runner:
    runner = runner_of(env_fns, **changes)
    give_agent(carrier(runner), agent or Forced(), env_fns[0]())
    return runner


def collect(runner: Runner, num_steps: int) -> Fragment:
    fragment = carrier(runner)(Collect(num_steps=num_steps))
    assert isinstance(fragment, Fragment)
    return fragment


def act(runner: Runner) -> ActBatch:
    batch = carrier(runner)(Act())
    assert isinstance(batch, ActBatch)
    return batch


def failure(runner: Runner, command: object) -> Failed:
    reply = runner.handle(command)
    assert isinstance(reply, Failed)
    return reply


def zeros(count: int) -> Step:
    return Step(actions=[np.zeros(count, np.int64)])


# --- collect -----------------------------------------------------------------------------------------------


def test_collect_gives_every_transition_with_final_observations_and_values() -> None:
    runner = acting(first_env=10)
    reset(carrier(runner), 2)

    fragment = collect(runner, 4)

    assert fragment.obs[0][..., 0].tolist() == [[0, 0], [1, 1], [0, 2], [1, 0]]
    assert fragment.last_obs[0][:, 0].tolist() == [0, 1]
    assert fragment.rewards.tolist() == [[1, 1]] * 4
    assert fragment.terminations.tolist() == [[False, False], [True, False], [False, False], [True, False]]
    assert fragment.truncations.tolist() == [[False, False], [False, False], [False, True], [False, False]]
    assert fragment.final_index.tolist() == [[1, 0], [2, 1], [3, 0]]
    assert fragment.final_obs[0][:, 0].tolist() == [2, 3, 2]
    assert fragment.values.tolist() == (10 * fragment.obs[0][..., 0] + 1).tolist()
    assert fragment.last_values.tolist() == [1, 11]
    assert fragment.final_values.tolist() == [21, 31, 21]
    assert fragment.valid.all()
    assert fragment.valid.shape == (4, 2)
    assert fragment.policy_version == 1
    assert fragment.episodes == [
        EpisodeRecord(env_id=10, episode_return=2.0, length=2),
        EpisodeRecord(env_id=11, episode_return=3.0, length=3),
        EpisodeRecord(env_id=10, episode_return=2.0, length=2),
    ]


def test_collect_log_probs_are_those_of_the_parameters() -> None:
    runner = acting()
    fragment = collect(runner, 6)
    assert fragment.params is not None
    expected = torch.log_softmax(torch.from_numpy(fragment.params), -1).gather(
        -1, torch.from_numpy(fragment.actions[0])[..., None]
    )
    np.testing.assert_allclose(fragment.log_probs, expected[..., 0], rtol=1e-5)
    assert fragment.params.shape == (6, 2, 2)
    assert fragment.family is not None
    assert fragment.family.sizes == (2,)


def test_collect_twice_is_one_longer_collect() -> None:
    once, twice = acting(), acting()
    whole = collect(once, 7)
    first, second = collect(twice, 3), collect(twice, 4)

    for name in ("rewards", "terminations", "truncations", "log_probs", "values", "params"):
        parts = [getattr(first, name), getattr(second, name)]
        assert np.array_equal(getattr(whole, name), np.concatenate(parts)), name
    assert np.array_equal(whole.obs[0], np.concatenate([first.obs[0], second.obs[0]]))
    assert np.array_equal(whole.actions[0], np.concatenate([first.actions[0], second.actions[0]]))
    assert np.array_equal(first.last_obs[0], second.obs[0][0])
    assert whole.episodes == first.episodes + second.episodes


def test_collect_first_performs_the_resets_that_step_left_pending() -> None:
    runner = acting()
    reset(carrier(runner), 2)
    for _ in range(2):
        carrier(runner)(zeros(2))  # environment 0 ends

    fragment = collect(runner, 2)

    assert fragment.obs[0][..., 0].tolist() == [[0, 2], [1, 0]]
    assert fragment.episodes == [
        EpisodeRecord(env_id=1, episode_return=3.0, length=3),
        EpisodeRecord(env_id=0, episode_return=2.0, length=2),
    ]


def test_collect_does_not_count_steps_that_only_reset() -> None:
    runner = acting()
    reset(carrier(runner), 2)
    for _ in range(3):
        carrier(runner)(zeros(2))  # environment 0 ends, then is reset by a step; environment 1 ends

    lengths = [(episode.env_id, episode.length) for episode in collect(runner, 3).episodes]

    assert lengths == [(0, 2), (1, 3)]


def test_collect_before_any_reset_performs_one() -> None:
    fragment = collect(acting(), 1)
    assert fragment.obs[0][0, :, 0].tolist() == [0, 0]


def test_collect_is_refused_without_autoreset() -> None:
    failed = failure(acting(autoreset_mode="Disabled"), Collect(num_steps=2))
    assert (failed.kind, "DISABLED" in failed.message) == ("state", True)


def test_collect_arrays_are_not_overwritten_later() -> None:
    runner = acting()
    fragment = collect(runner, 3)
    before = [array.copy() for array in arrays_of(fragment)]
    collect(runner, 3)
    carrier(runner)(zeros(2))
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays_of(fragment), strict=True))


def test_collect_clips_what_the_env_sees_and_keeps_what_the_policy_did() -> None:
    runner = acting((BoundedBox,) * 3, Far(mean=30.0))

    fragment = collect(runner, 3)

    assert (fragment.actions[0] > 20).all()
    assert fragment.rewards.tolist() == [[2.0] * 3] * 3  # what the environment got: 1 and 1
    assert np.isnan(fragment.values).all()
    assert np.isnan(fragment.final_values).all()


def test_collect_takes_nested_observations() -> None:
    class Agent(Forced):
        def distribution(self, obs: dict) -> Distribution:
            return super().distribution(obs["vector"])

        def value(self, obs: dict) -> torch.Tensor:
            return obs["pair"][0].float() + obs["pair"][1].float().sum(-1)

    fragment = collect(acting((Nested,) * 2, Agent()), 6)

    assert [leaf.shape for leaf in fragment.obs] == [(6, 2), (6, 2, 4), (6, 2, 3)]
    assert fragment.obs[0].tolist() == [[t % 5] * 2 for t in range(6)]
    assert fragment.values[:, 0].tolist() == [0, 2, 3, 5, 5, 0]
    assert fragment.final_values.tolist() == [7, 7]


class Fades(Forced):
    """Gives a distribution whose family is known, then one whose is not."""

    def __init__(self, known: int) -> None:
        super().__init__()
        self.known = known

    def distribution(self, obs: torch.Tensor) -> Distribution:
        self.known -= 1
        plain = super().distribution(obs)
        return plain if self.known >= 0 else torch.distributions.OneHotCategorical(logits=plain.logits)


def test_collect_has_no_parameters_when_some_steps_have_none() -> None:
    class Steered(Fades):
        def distribution(self, obs: torch.Tensor) -> Distribution:
            distribution = super().distribution(obs)
            if isinstance(distribution, torch.distributions.OneHotCategorical):
                distribution.sample = lambda: torch.zeros(len(obs), dtype=torch.int64)
                distribution.log_prob = lambda actions: torch.zeros(len(obs))
            return distribution

    fragment = collect(acting(COUNTS, Steered(known=2)), 5)
    assert fragment.params is None
    assert fragment.log_probs[2:].tolist() == [[0, 0]] * 3


def test_collect_values_of_large_observations_come_in_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = collect(acting(), 7)
    monkeypatch.setattr("clusterenv.recording.VALUE_BATCH_BYTES", 12)
    parts = collect(acting(), 7)
    assert np.array_equal(whole.values, parts.values)
    assert np.array_equal(whole.final_values, parts.final_values)


# --- act and evaluate --------------------------------------------------------------------------------------


def test_act_tells_what_was_done_on_the_observations_before_the_step() -> None:
    runner = acting()
    reset(carrier(runner), 2)
    batches = [act(runner) for _ in range(3)]

    assert [batch.values.tolist() for batch in batches] == [[1, 1], [11, 11], [21, 21]]
    assert [batch.step.obs[0][:, 0].tolist() for batch in batches] == [[1, 1], [2, 2], [0, 3]]  # NEXT_STEP
    assert [batch.step.rewards.tolist() for batch in batches] == [[1, 1], [1, 1], [0, 1]]
    assert batches[0].policy_version == 1


def test_act_draws_the_noise_that_collect_draws() -> None:
    one, other = acting((functools.partial(Count, 100),) * 4), acting((functools.partial(Count, 100),) * 4)
    reset(carrier(one), 4)
    fragment = collect(other, 5)
    for t in range(5):
        batch = act(one)
        assert np.array_equal(batch.actions[0], fragment.actions[0][t])
        assert np.array_equal(batch.log_probs, fragment.log_probs[t])


def test_reset_with_a_noise_seed_repeats_the_noise() -> None:
    runner = acting((functools.partial(Count, 100),) * 8)
    seen = []
    for noise_seed in (5, 5, 6, None):
        reset(carrier(runner), 8, noise_seed=noise_seed)
        seen.append(collect(runner, 20).actions[0])
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])
    assert not np.array_equal(seen[2], seen[3])


def test_evaluate_gives_the_parameters_on_the_present_observations() -> None:
    runner = acting()
    reset(carrier(runner), 2)
    batch = carrier(runner)(Evaluate())
    assert isinstance(batch, EvaluateBatch)
    assert np.array_equal(batch.params, act(runner).params)


def test_load_state_changes_the_policy_and_its_version() -> None:
    from safetensors.numpy import save

    runner = acting()
    table = np.tile(np.array([0.0, 100.0], np.float32), (64, 1))
    assert carrier(runner)(LoadState(version=5, state=save({"table": table}))) == Done()
    fragment = collect(runner, 3)
    assert fragment.actions[0].tolist() == [[1, 1]] * 3
    assert fragment.policy_version == 5


def test_load_state_that_does_not_fit_leaves_the_policy_as_it_was() -> None:
    from safetensors.numpy import save

    runner = acting()
    failed = failure(runner, LoadState(version=5, state=save({"other": np.zeros(2, np.float32)})))
    assert failed.kind == "agent"
    assert collect(runner, 1).policy_version == 1


# --- reset and step ----------------------------------------------------------------------------------------


def test_reset_of_some_rows_starts_their_episodes_anew() -> None:
    runner = acting((functools.partial(Count, 3),) * 2)
    reset(carrier(runner), 2)
    carrier(runner)(zeros(2))
    batch = carrier(runner)(Reset(seeds=[None, None], mask=np.array([True, False])))
    assert isinstance(batch, ResetBatch)
    assert batch.obs[0][:, 0].tolist() == [0, 1]
    lengths = [(episode.env_id, episode.length) for episode in collect(runner, 3).episodes]
    assert lengths == [(1, 3), (0, 3)]


def test_reset_of_no_rows_changes_nothing() -> None:
    runner = runner_of((RandomObs,) * 2)
    before = reset(carrier(runner), 2, seed=1)
    after = carrier(runner)(Reset(seeds=[1, 2], mask=np.zeros(2, np.bool_)))
    assert np.array_equal(before.obs[0], after.obs[0])
    assert not after.infos


def test_step_is_the_shards_step_in_its_mode() -> None:
    runner = runner_of(COUNTS, autoreset_mode="SameStep")
    reset(carrier(runner), 2)
    carrier(runner)(zeros(2))
    batch = carrier(runner)(zeros(2))
    assert isinstance(batch, StepBatch)
    assert batch.obs[0][:, 0].tolist() == [0, 2]
    assert batch.final_index.tolist() == [0]


# --- what fails --------------------------------------------------------------------------------------------


def test_env_that_cannot_be_built_is_named() -> None:
    with pytest.raises(EnvError, match="on purpose") as caught:
        runner_of((Count, functools.partial(Fails, "init")), first_env=4)
    assert caught.value.env_index == 5
    assert "in _fail" in caught.value.remote_traceback


@pytest.mark.parametrize("command", [zeros(2), Act(), Collect(num_steps=3)], ids=["step", "act", "collect"])
def test_env_that_raises_in_step_is_named_and_the_runner_goes_on_after_a_reset(command: object) -> None:
    runner = acting((Count, functools.partial(Fails, "step", 1)), first_env=4)
    reset(carrier(runner), 2)

    failed = failure(runner, command)

    assert failed.kind == "env"
    assert failed.env_index == 5
    assert failed.action in ("np.int64(0)", "np.int64(1)")
    assert "on purpose" in failed.message
    assert "Traceback" not in failed.message
    assert "in _fail" in failed.traceback
    assert failure(runner, command).kind == "state"
    runner._shard.envs[1].where = ""
    reset(carrier(runner), 2)
    assert collect(runner, 3).obs[0][..., 0].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_env_that_raises_in_reset_is_named() -> None:
    runner = acting((Count, functools.partial(Fails, "reset")))
    failed = failure(runner, Reset(seeds=[None, None]))
    assert (failed.kind, failed.env_index) == ("env", 1)
    assert failure(runner, Collect(num_steps=1)).kind in ("env", "state")


@pytest.mark.parametrize("command", [zeros(2), Collect(num_steps=3)], ids=["step", "collect"])
def test_env_that_calls_sys_exit_fails_and_the_runner_goes_on_after_a_reset(command: object) -> None:
    runner = acting((Count, Exits))
    reset(carrier(runner), 2)
    carrier(runner)(zeros(2))

    failed = failure(runner, command)

    assert "SystemExit" in failed.message
    assert failure(runner, zeros(2)).kind == "state"
    reset(carrier(runner), 2)
    assert collect(runner, 3).obs[0][..., 0].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_agent_that_raises_fails_and_the_envs_stand_where_they_were() -> None:
    runner = acting((Count,) * 2, Raises(at=2))
    reset(carrier(runner), 2)

    failed = failure(runner, Collect(num_steps=4))

    assert failed.kind == "agent"
    assert "no idea" in failed.message
    assert "in distribution" in failed.traceback
    assert isinstance(failed.error(), AgentError)
    give_agent(carrier(runner), Forced(), Count())
    fragment = collect(runner, 4)
    assert fragment.obs[0][:, 0, 0].tolist() == [2, 3, 4, 0]
    assert [episode.length for episode in fragment.episodes] == [5, 5]


def test_acting_without_an_agent_is_refused() -> None:
    failed = failure(runner_of((Count,)), Act())
    assert isinstance(failed.error(), StateError)
    assert "no agent" in failed.message


def test_step_before_reset_is_refused() -> None:
    assert isinstance(failure(runner_of((Count,)), zeros(1)).error(), StateError)


# --- its process -------------------------------------------------------------------------------------------


def test_runner_in_the_callers_process_leaves_its_state_alone() -> None:
    threads = torch.get_num_threads()
    path, handler, torch_state = list(sys.path), signal.getsignal(signal.SIGINT), torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    validates, sample = Distribution._validate_args, torch.distributions.Categorical.sample

    runner = acting(sys_path=["/nowhere"])
    collect(runner, 5)
    act(runner)

    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert Distribution._validate_args == validates
    assert torch.distributions.Categorical.sample is sample
    assert torch.is_grad_enabled()
    assert sys.path == path
    assert signal.getsignal(signal.SIGINT) is handler


def test_progress_rises_with_every_call_of_an_env_and_of_the_agent() -> None:
    runner = acting((functools.partial(Count, 100),) * 3)
    reset(carrier(runner), 3)
    before = runner.progress
    collect(runner, 4)
    assert runner.progress - before == 4 * (3 + 1)


def test_runner_closes_its_environments_once() -> None:
    closed: list[int] = []

    class Closes(Count):
        def close(self) -> None:
            closed.append(1)

    runner = Runner(_setup_without_pickling(Closes))
    runner.build()
    runner.close()
    runner.close()
    assert closed == [1]


def _setup_without_pickling(env_class: type[gym.Env]) -> object:
    import pickle

    from tests import pools

    pools.env_class = env_class  # pickled by reference, so that `closed` is the list of this process
    setup = pools.setup_for([Count])
    setup.env_blobs[0] = pickle.dumps(pools.setup_for).replace(b"setup_for", b"env_class")
    return setup
