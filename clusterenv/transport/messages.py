"""The kinds of message and their fields; `docs/protocol.md` is the authority, golden bytes tie both."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 5

Count = Annotated[int, Meta(ge=0, lt=1 << 48)]
Text = Annotated[str, Meta(max_length=1 << 20)]
Word = Annotated[str, Meta(max_length=1024)]
Blocks = Annotated[list[bytes], Meta(max_length=1 << 16)]
Counts = Annotated[list[Count], Meta(max_length=1 << 20)]
Few = Meta(max_length=256)
PerEnv = Meta(max_length=1 << 20)


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Root of all messages; arrays and blobs follow as raw frames.

    None is a part of itself, so Python's collector of cycles need not look at them: a head of many workers
    keeps thousands, and looking at all of them over and over took a third of its time.
    """


# --- worker to head -------------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """First message of a worker: who and where it is."""

    rank: Count
    host: Word
    pid: Count
    python: Word
    executable: Word
    versions: Annotated[dict[Word, Word], Few]
    cpus: Count


class SharedMemory(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True, gc=False
):
    """Memory that a head on the worker's machine may step environments through, see `lane`."""

    pid: Count
    descriptor: Count
    nbytes: Count
    nonce: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class BatchMemory(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True, gc=False
):
    """Memory of the head for the observations of a batch with `num_envs` environments, see `in_place`."""

    pid: Count
    descriptor: Count
    nbytes: Count
    nonce: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    num_envs: Count


class Ready(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The worker's environments are built; digests of the layouts of one environment's spaces."""

    obs_digest: Word
    action_digest: Word
    pids: Counts
    threads: Count
    shared: SharedMemory | None = None


class Heartbeat(Message, frozen=True, kw_only=True):
    """The worker lives; env steps taken so far, and the sequence number of the command in work (0: none)."""

    steps: Count
    working_on: Count


class Ack(Message, frozen=True, kw_only=True):
    """The command with this message's sequence number was carried out and has no other answer."""


class Rebuilt(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True, gc=False
):
    """One environment that raised and was built anew, and its error in one line."""

    env_id: Count
    error: Word


RebuiltEnvs = Annotated[list[Rebuilt], Meta(max_length=1 << 20)]


class ResetReply(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to ResetCommand. Frames: ResetBatch.frames()."""

    infos: Blocks
    rebuilt: RebuiltEnvs = []
    ended: Counts = []


class StepReply(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to StepCommand. Frames: StepBatch.frames(), of the k rows that stepped, but those `lost`."""

    num_final: Count
    infos: Blocks
    final_infos: Blocks
    rebuilt: RebuiltEnvs = []
    lost: Counts = []


class PolicyInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a worker tells of its policy with each batch that it acted in."""

    policy_version: Count
    kl: float
    sync_count: Count
    syncs_by_reason: Annotated[dict[Word, Count], Few]
    checks: Count
    check_s: float
    kl_threshold: float


class ActReply(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to ActCommand. Frames: ActBatch.frames(). `sample` is 0 if no later check needs this step."""

    policy: PolicyInfo
    sample: Count
    num_final: Count
    infos: Blocks
    final_infos: Blocks
    rebuilt: RebuiltEnvs = []
    lost: Counts = []


class Episode(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True, gc=False
):
    """One episode that ended in a fragment."""

    env_id: Count
    episode_return: float
    length: Count


class FragmentReply(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to RolloutCommand, and one of many to StreamCommand. Frames: Fragment.frames()."""

    policy: PolicyInfo
    num_sampled: Count
    fragment: Count
    num_steps: Count
    num_final: Count
    episodes: Annotated[list[Episode], Meta(max_length=1 << 22)]
    family: Word | None
    family_sizes: Counts
    has_versions: bool = False
    rebuilt: RebuiltEnvs = []
    in_place: bool = False


class PullRequest(Message, frozen=True, kw_only=True):
    """The worker asks for the newest weights, with the reason."""

    have_version: Count
    reason: Word


class Failure(Message, frozen=True, kw_only=True):
    """A command failed on the worker: an environment or the agent raised, a runner was lost or hung."""

    kind: Word
    message: Text
    traceback: Text = ""
    env_index: int | None = None
    action: Text | None = None
    exit_code: int | None = None


class CallReply(Message, frozen=True, kw_only=True):
    """Answer to CallCommand. Frames: what each of the k environments gave, see `values.join`."""


class StreamEnded(Message, frozen=True, kw_only=True):
    """Last answer to StreamCommand, after StopStream. Frames: present observation leaves [n, ...]."""

    abandoned: Count


class Used(Message, frozen=True, kw_only=True):
    """Now and then: what the worker and all processes that it has started use."""

    cpu_s: float
    memory_bytes: Count


class Goodbye(Message, frozen=True, kw_only=True):
    """The worker leaves of its own will."""

    reason: Text


class Lend(Message, frozen=True, kw_only=True):
    """Memory for frames that need not travel: a head on the worker's own machine may map it."""

    pid: Count
    descriptor: Count
    nbytes: Count
    nonce: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


# --- head to worker -------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, kw_only=True, omit_defaults=True):
    """All that a worker needs to know. Frames: the cloudpickled callables that `env_blob_of` numbers."""

    rank: Count
    num_workers: Count
    first_env: Count
    num_envs: Count
    env_blob_of: Counts
    noise_seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    autoreset_mode: Word
    same_bounds: bool
    sys_path: Annotated[list[Text], Meta(max_length=1 << 12)]
    runners: Count
    kl_threshold: float
    auto_threshold: bool
    max_lag: Count
    max_age_s: float
    min_interval: Count
    sync: Word
    n_ref: Count
    lease_s: float
    head_grace_s: float
    setup_timeout_s: float
    step_timeout_s: float
    backend: Word | None = None
    env_rebuilds: Count = 0
    head_host: Word = ""


class Refused(Message, frozen=True, kw_only=True):
    """The peer is not wanted here, with the reason; it ends."""

    reason: Text


class HeartbeatAck(Message, frozen=True, kw_only=True):
    """The head lives."""


class ResetCommand(Message, frozen=True, kw_only=True):
    """Reset the rows of the mask (all if it is none). Frames: the cloudpickled options, if `has_options`.

    A `noise_seed` keys the policy's noise anew and sets its step counters to 0.
    """

    noise_seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None
    seeds: Annotated[list[Annotated[int, Meta(ge=0)] | None], PerEnv]
    mask: Annotated[list[bool], PerEnv] | None
    has_options: bool


class StepCommand(Message, frozen=True, kw_only=True):
    """Step the k rows of the mask (all if it is none). Frames: action leaves [k, ...]."""

    mask: Annotated[list[bool], PerEnv] | None = None


class FetchStepCommand(Message, frozen=True, kw_only=True):
    """What the step gave that was asked for through shared memory, and did not fit there; see StepCommand."""


class CallCommand(Message, frozen=True, kw_only=True):
    """Call a method, or read an attribute, of the rows of the mask. Frames: the cloudpickled arguments."""

    name: Word
    mask: Annotated[list[bool], PerEnv] | None


class SetAttrCommand(Message, frozen=True, kw_only=True):
    """Set an attribute of the k rows of the mask. Frames: 1 or k cloudpickled values, see `values.join`."""

    name: Word
    mask: Annotated[list[bool], PerEnv] | None
    num_values: Count


class AgentMessage(Message, frozen=True, kw_only=True):
    """A new agent without its weights, and its number. Frames: the cloudpickled agent."""

    agent: Count


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Version v of the learner's policy on the states of one sample; a frame holds θ_v [rows, P] float32.

    Without a family the frame holds log π_v [rows] float32 of the actions that were taken there. The sample
    is of present observations, unless the worker has `kept` it.
    """

    sample: Count
    kept: bool
    rows: Count
    family: Word | None
    family_sizes: Counts


class ActCommand(Message, frozen=True, kw_only=True):
    """Act once; `version` is the newest. Frames: θ_v if `reference`, then the weights if `has_weights`."""

    version: Count
    reference: Reference | None
    has_weights: bool


class RolloutCommand(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Act `num_steps` times; observations go to `memory` if it can be reached. Frames as for ActCommand."""

    version: Count
    num_steps: Count
    reference: Reference | None
    has_weights: bool
    memory: BatchMemory | None = None


class StreamCommand(Message, frozen=True, kw_only=True):
    """Make fragments of `num_steps` without being asked again, `room` of them and one for each Room."""

    version: Count
    num_steps: Count
    room: Count
    sync_at: Word
    max_lag: Count
    yields: bool


class Published(Message, frozen=True, kw_only=True):
    """A new version of the policy, for a worker that streams. Frames as for ActCommand."""

    version: Count
    reference: Reference | None
    has_weights: bool


class Room(Message, frozen=True, kw_only=True):
    """The learner has taken fragments of a worker that streams: it may make as many more."""

    fragments: Count


class StopStream(Message, frozen=True, kw_only=True):
    """Make no more fragments; the one under way is given up after the step under way."""


class WeightsReply(Message, frozen=True, kw_only=True):
    """The newest snapshot. Frames: safetensors bytes."""

    version: Count


class CloseCommand(Message, frozen=True, kw_only=True):
    """End in good order."""

    reason: Text


class Lent(Message, frozen=True, kw_only=True):
    """Answers Lend: whether the head has mapped the memory with this nonce."""

    nonce: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    mapped: bool


KINDS: dict[int, type[Message]] = {
    1: Hello,
    2: Ready,
    3: Heartbeat,
    4: Ack,
    5: ResetReply,
    6: StepReply,
    7: ActReply,
    8: FragmentReply,
    9: PullRequest,
    10: Failure,
    11: Goodbye,
    12: CallReply,
    13: StreamEnded,
    14: Used,
    15: Lend,
    32: Welcome,
    33: Refused,
    34: HeartbeatAck,
    35: ResetCommand,
    36: StepCommand,
    37: AgentMessage,
    38: ActCommand,
    39: RolloutCommand,
    40: WeightsReply,
    41: CloseCommand,
    42: CallCommand,
    43: SetAttrCommand,
    44: StreamCommand,
    45: Published,
    46: Room,
    47: StopStream,
    48: FetchStepCommand,
    49: Lent,
}
"""Number on the wire of each kind: up to 31 from workers, from 32 on from the head."""
