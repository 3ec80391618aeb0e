"""What a runner is told and what it answers; plain data, for a pipe between parent and child."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from clusterenv.batches import ActBatch, Fragment, ResetBatch, StepBatch
from clusterenv.distributions import Family
from clusterenv.errors import (
    ActionError,
    AgentError,
    ClusterEnvError,
    EnvError,
    MissingAttribute,
    SpaceError,
    StateError,
)
from clusterenv.in_place import Place
from clusterenv.layout import SpaceLayout
from clusterenv.segments import Segment

Array = NDArray[Any]
SyncAt = Literal["fragment", "step", "episode"]


@dataclass(frozen=True, kw_only=True)
class RunnerSetup:
    """All that a runner needs to build its environments."""

    first_env: int
    num_envs: int
    env_blobs: list[bytes]
    """Cloudpickled callables, each once."""
    env_blob_of: list[int]
    """Number of the blob that builds each environment."""
    noise_seed: int
    """Keys the policy's noise, together with the global index of the environment and the step."""
    autoreset_mode: str
    sys_path: list[str]
    step_timeout_s: float
    cpus: list[int] | None
    """Cores to run on; none: those of the parent."""
    same_bounds: bool = True
    """Whether all observation spaces must be equal, not only laid out alike."""
    backend: str | None = None
    """Name of the backend whose vector the one blob makes."""
    num_threads: int = 1
    """Threads that a backend may use."""
    env_rebuilds: int = 0
    """Times within an hour that an environment which raises is built anew; once more is an error."""


@dataclass(frozen=True, kw_only=True)
class RunnerReady:
    """The environments are built."""

    obs_digest: str
    action_digest: str
    action_layout: SpaceLayout
    obs_layout: SpaceLayout
    env_id: str | None
    """Id of the first environment's spec."""


@dataclass(frozen=True, kw_only=True)
class Reset:
    """Reset all rows, or those of `mask` [n]."""

    seeds: list[int | None]
    options: bytes | None = None
    """A cloudpickled dict."""
    mask: NDArray[np.bool_] | None = None
    noise_seed: int | None = None
    """Keys the policy's noise anew and sets its step counters to 0."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Step all rows, or the k rows of `mask` [n], with action leaves [k, ...]."""

    actions: list[Array]
    mask: NDArray[np.bool_] | None = None


@dataclass(frozen=True, kw_only=True)
class Call:
    """Call a method of each environment, or of those of `mask` [n]; an attribute that is none is read."""

    name: str
    arguments: bytes
    """Cloudpickled (args, kwargs)."""
    mask: NDArray[np.bool_] | None = None


@dataclass(frozen=True, kw_only=True)
class SetAttr:
    """Set an attribute of each environment, or of those of `mask` [n]."""

    name: str
    values: list[bytes]
    """Cloudpickled, one for all or k, one for each."""
    mask: NDArray[np.bool_] | None = None


@dataclass(frozen=True, kw_only=True)
class SetAgent:
    """Act with another agent from now on; its weights follow."""

    blob: bytes


@dataclass(frozen=True, kw_only=True)
class LoadState:
    """Give the agent the weights of `version`."""

    version: int
    state: bytes


@dataclass(frozen=True)
class Act:
    """One step with actions of the policy."""


@dataclass(frozen=True)
class Evaluate:
    """The distribution parameters of the policy on the present observations."""


@dataclass(frozen=True, kw_only=True)
class Collect:
    """`num_steps` steps with actions of the policy, SAME_STEP."""

    num_steps: int
    in_place: bool = False
    """Whether observations are written to the Place of the last MapBatch, whose answer was yes."""
    sync_at: SyncAt | None = None
    """Where NewWeights begin to act that come meanwhile; with any, the runner looks for news at each step."""


@dataclass(frozen=True)
class MapBatch:
    """Be ready to write observations there."""

    place: Place


@dataclass(frozen=True)
class Observe:
    """The present observations, as a ResetBatch without infos."""


@dataclass(frozen=True, kw_only=True)
class ShareSteps:
    """Take steps from the memory of `segment` too, as number `runner` of those that have `slices`."""

    segment: Segment
    slices: list[slice]
    runner: int


@dataclass(frozen=True)
class FetchStep:
    """The answer to the last step that came through shared memory, which did not fit there."""


@dataclass(frozen=True, kw_only=True)
class NewWeights:
    """To be acted with from where `sync_at` of the present or next Collect says. Not answered."""

    version: int
    state: bytes


@dataclass(frozen=True)
class GiveUp:
    """Answer the Collect in work with Abandoned, after the step under way. Not answered itself."""


@dataclass(frozen=True)
class Abandoned:
    """Answer to a Collect that was given up; the environments stand where they are."""


@dataclass(frozen=True, kw_only=True)
class EvaluateBatch:
    """Answer to Evaluate: params [n, P], or none where the agent has no closed form."""

    params: NDArray[np.float32] | None
    family: Family | None


@dataclass(frozen=True, kw_only=True)
class CallBatch:
    """Answer to Call: what each of the k environments gave, as bytes of `values`."""

    results: list[bytes]


@dataclass(frozen=True)
class BatchMapped:
    """Answer to MapBatch: whether the next Collect may be `in_place`."""

    yes: bool


@dataclass(frozen=True)
class Done:
    """Answer to SetAgent, LoadState, SetAttr and ShareSteps."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A command raised; the runner takes others."""

    kind: str
    """A key of KINDS, else "internal"."""
    message: str
    traceback: str = ""
    env_index: int | None = None
    action: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """What travels of `error`."""
        kind = next((name for name, known in KINDS.items() if isinstance(error, known)), "internal")
        if isinstance(error, EnvError):
            remote = error.remote_traceback
            text = str(error).removesuffix(remote.rstrip()).rstrip() if remote else str(error)
            return cls(
                kind=kind, message=text, traceback=remote, env_index=error.env_index, action=error.action
            )
        if kind == "internal":
            text = f"{type(error).__name__}: {error}"
            return cls(kind=kind, message=text, traceback="".join(traceback.format_exception(error)))
        cause = error.__cause__
        remote = "".join(traceback.format_exception(cause)) if cause else ""
        return cls(kind=kind, message=str(error), traceback=remote)

    def error(self) -> ClusterEnvError:
        """The error to raise on the other side."""
        kind = KINDS.get(self.kind, ClusterEnvError)
        if issubclass(kind, EnvError):
            return kind(
                self.message,
                env_index=self.env_index,
                action=self.action,
                remote_traceback=self.traceback,
            )
        return kind(f"{self.message}\n\n{self.traceback}".rstrip())


KINDS: Final[dict[str, type[ClusterEnvError]]] = {
    "attribute": MissingAttribute,  # before "env", which it is too
    "env": EnvError,
    "agent": AgentError,
    "action": ActionError,
    "space": SpaceError,
    "state": StateError,
}

Command = Reset | Step | Call | SetAttr | SetAgent | LoadState | Act | Evaluate | Collect | MapBatch | Observe
LaneCommand = ShareSteps | FetchStep
"""What a runner's process answers by itself."""
Reply = (
    ResetBatch
    | StepBatch
    | CallBatch
    | ActBatch
    | EvaluateBatch
    | Fragment
    | Abandoned
    | BatchMapped
    | Done
    | Failed
)
News = NewWeights | GiveUp
"""What a runner takes while a Collect is in work, and at any other time without harm."""
