"""Agents of any style behind one interface: found by their methods, in one order."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from clusterenv.adapters import pickling
from clusterenv.adapters.actions import ActionTerms
from clusterenv.adapters.base import Acted, AgentAdapter, Drawing, Evaluated
from clusterenv.errors import AgentError

__all__ = ["Acted", "AgentAdapter", "Drawing", "Evaluated", "adapt", "loads", "prepare_runner"]


def adapt(agent: object, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> AgentAdapter:
    """The learner's agent behind the common interface; it is never changed.

    Looked for, in this order: a Stable-Baselines3 policy; `distribution(obs)`;
    `get_action_and_value(obs, action=None)`, or with (obs, state, done, action=None); a `forward` like the
    first; `act(obs)` with `get_parameters()`; `act(obs)` of an agent of torch.

    Observations reach torch agents as tensors on the agent's device: reals in its dtype, whole numbers as
    they are. Only parameters and buffers travel after the first time, so statistics of observations must be
    buffers.

    Raises:
        AgentError: if the agent has none of these, or agents cannot act in this space.
    """
    return _adapted(agent, action_space, own=False)


def loads(blob: bytes, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> AgentAdapter:
    """The agent of `AgentAdapter.dumps`, a copy of this process's own, still without weights.

    Raises:
        AgentError: if it cannot be built here, or does not fit.
    """
    return _adapted(pickling.loads(blob), action_space, own=True)


def prepare_runner() -> None:
    """Torch's distributions are cheap in the rest of this process: not validated, and hooked for captures."""
    from torch.distributions import Distribution

    from clusterenv.adapters.capture import keep_hooks

    Distribution.set_default_validate_args(False)
    keep_hooks()


def _adapted(agent: object, action_space: gym.Space[Any], *, own: bool) -> AgentAdapter:
    terms = ActionTerms(action_space)
    for fits, make in _STYLES:
        if fits(agent):
            return make(agent, terms, own)
    raise AgentError(_refusal(agent))


def _has(*names: str) -> Callable[[object], bool]:
    return lambda agent: all(callable(getattr(agent, name, None)) for name in names)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _takes_action(name: str) -> Callable[[object], bool]:
    """Whether the agent has a method `name` that can be called with (obs) and with (obs, action)."""

    def fits(agent: object) -> bool:
        method = getattr(agent, name, None)
        if not callable(method):
            return False
        try:
            parameters = [p for n, p in inspect.signature(method).parameters.items() if n != "env_ids"]
        except (TypeError, ValueError):
            return False
        if len(parameters) < 2 or parameters[1].name not in ("action", "actions"):
            return False
        return all(
            parameter.default is not inspect.Parameter.empty or parameter.kind in _VARIADIC
            for parameter in parameters[1:]
        )

    return fits


def _sb3(agent: object, terms: ActionTerms, own: bool) -> AgentAdapter:
    from clusterenv.adapters.torch_agents import SB3Adapter

    return SB3Adapter(agent, terms, own=own)


def _distribution(agent: object, terms: ActionTerms, own: bool) -> AgentAdapter:
    from clusterenv.adapters.torch_agents import DistributionAdapter

    return DistributionAdapter(agent, terms, own=own)


def _captured(method: str) -> Callable[[object, ActionTerms, bool], AgentAdapter]:
    def make(agent: object, terms: ActionTerms, own: bool) -> AgentAdapter:
        from clusterenv.adapters.captured_agents import CapturedAdapter

        return CapturedAdapter(agent, terms, own=own, method=method)

    return make


def _takes_state(agent: object) -> bool:
    """Whether the agent has CleanRL's signature with an LSTM."""
    if not _has("get_action_and_value")(agent):
        return False
    from clusterenv.adapters.recurrent import takes_state_and_done

    return takes_state_and_done(agent)


def _recurrent(agent: object, terms: ActionTerms, own: bool) -> AgentAdapter:
    from clusterenv.adapters.captured_agents import RecurrentCapturedAdapter

    return RecurrentCapturedAdapter(agent, terms, own=own, method="get_action_and_value")


def _acts_in_torch(agent: object) -> bool:
    """Whether the agent has `act`, and tensors that learning can change."""
    if "torch" not in sys.modules or not _has("act")(agent):
        return False
    from clusterenv.adapters.tensors import state_tensors

    return bool(state_tensors(agent))


def _acting(agent: object, terms: ActionTerms, own: bool) -> AgentAdapter:
    from clusterenv.adapters.acting_agents import ActAdapter

    return ActAdapter(agent, terms, own=own)


def _numpy(agent: object, terms: ActionTerms, own: bool) -> AgentAdapter:
    from clusterenv.adapters.numpy_agents import NumpyAdapter

    return NumpyAdapter(agent, terms, own=own)


_STYLES: tuple[tuple[Callable[[object], bool], Callable[[object, ActionTerms, bool], AgentAdapter]], ...] = (
    (_has("get_distribution", "predict_values"), _sb3),
    (_has("distribution"), _distribution),
    (_takes_action("get_action_and_value"), _captured("get_action_and_value")),
    (_takes_state, _recurrent),
    (_takes_action("forward"), _captured("forward")),
    (_has("act", "get_parameters"), _numpy),
    (_acts_in_torch, _acting),
)


def _refusal(agent: object) -> str:
    """What was looked for, what is there, and how to add what is missing."""
    own = [kind for kind in type(agent).__mro__ if not kind.__module__.startswith(("builtins", "torch."))]
    members = {name: member for kind in reversed(own) for name, member in vars(kind).items()}
    found = [name for name, member in members.items() if callable(member) and not name.startswith("_")]
    near = ""
    if hasattr(agent, "policy"):
        near = " If it is a Stable-Baselines3 model, pass its `policy`."
    elif callable(getattr(agent, "act", None)):
        near = " Its `act` needs `get_parameters() -> dict[str, ndarray]` beside it."
    elif callable(getattr(agent, "get_action_and_value", None)):
        near = " Its `get_action_and_value` cannot be called as (obs) and as (obs, action)."
    return (
        f"the agent ({type(agent).__name__}) has none of the methods that ClusterEnv acts with: "
        "get_distribution(obs) with predict_values(obs); distribution(obs); "
        "get_action_and_value(obs, action=None), or (obs, state, done, action=None); "
        "forward(obs, action=None) that gives (action, log_prob, entropy, value); "
        "act(obs) with get_parameters(), or of an agent of torch. "
        f"It has: {', '.join(found) or 'no public methods'}.{near} Add one, for example:\n\n"
        "    class Agent(torch.nn.Module):\n"
        "        def distribution(self, obs):\n"
        "            return torch.distributions.Categorical(logits=self.actor(obs))\n"
    )
