"""Resets and steps of all workers, each begun and finished, as one Gymnasium batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from clusterenv.batches import ActBatch, Buffer, FrameReader, ResetBatch, StepBatch, frames_of
from clusterenv.errors import ProtocolError, StateError
from clusterenv.head import Head
from clusterenv.infos import batch_infos
from clusterenv.layout import Nested, SpaceLayout
from clusterenv.outcomes import Absent, Fresh, Outcome, Pending, Reply, Returned
from clusterenv.peers import Peer
from clusterenv.reset_args import ResetArgs
from clusterenv.rows import Ids, Rows, StepReturn, decoded, gymnasium_step, joined_obs, own_infos
from clusterenv.transport import messages as m

Array = NDArray[Any]


class Stepping:
    """Carries resets and steps to the workers, and remembers what each environment observed last."""

    def __init__(
        self, head: Head, layouts: tuple[SpaceLayout, SpaceLayout], num_envs: int, mode: AutoresetMode
    ) -> None:
        """`layouts` are those of one environment: observation, action."""
        self._head = head
        self._obs, self._actions = layouts
        self._num_envs = num_envs
        self._mode = mode
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self.last_obs: list[list[Array]] | None = None
        """Leaves [n, ...] by rank; None before the first reset."""

    # --- reset ------------------------------------------------------------------------------------------

    def begin_reset(self, args: ResetArgs, peers: Sequence[Peer] | None = None) -> Pending[m.ResetReply]:
        """Environments of all workers (or of `peers`) are being reset."""
        if args.noise_seed is not None:
            self._head.seeded(args.noise_seed)
        self._head.wait_present()

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            message = m.ResetCommand(
                seeds=args.seeds[peer.rows],
                mask=None if args.mask is None else args.mask[peer.rows].tolist(),
                has_options=args.options is not None,
                noise_seed=args.noise_seed,
            )
            return message, [] if args.options is None else [args.options]

        # A masked reset cannot tell of the episodes that a lost worker has cut: the next step does.
        fresh = Fresh.SKIP if args.mask is None else Fresh.WAIT
        return self._head.begin(command, m.ResetReply, fresh=fresh, peers=peers)

    def finish_reset(self, pending: Pending[m.ResetReply], args: ResetArgs) -> tuple[Nested, dict[str, Any]]:
        """Observations [N, ...] and infos."""
        batches = [self.reset_batch(outcome) for outcome in self._head.finish(pending)]
        self._ended[slice(None) if args.mask is None else args.mask] = False
        self.last_obs = [batch.obs for batch in batches]
        self._head.unseen.clear()
        infos = sorted((row for batch in batches for row in decoded(batch.infos)), key=lambda row: row[0])
        return joined_obs(self.last_obs, self._obs), batch_infos(infos, self._num_envs)

    def reset_batch(self, outcome: Outcome[m.ResetReply]) -> ResetBatch:
        """What a worker's reset gave; for one that is away its last observations, zeros if there are none."""
        peer = outcome.peer
        if not isinstance(outcome, Absent):
            frames, message = outcome.frames, outcome.message
            batch = self._head.read(peer, lambda: self._read_reset(peer, frames, message), Fresh.SKIP)
            if isinstance(batch, ResetBatch):
                return batch
        known = None if self.last_obs is None else self.last_obs[peer.rank]
        return ResetBatch(obs=known or self._obs.zeros(peer.num_envs))

    def _read_reset(self, peer: Peer, frames: Sequence[memoryview], message: m.ResetReply) -> ResetBatch:
        batch = ResetBatch.of_frames(frames, self._obs, num_envs=peer.num_envs, infos=message.infos)
        own_infos(message.infos, peer_ids(peer))
        if not set(message.ended) <= set(peer.env_indices):
            raise ProtocolError(f"worker {peer.rank} tells of ends of environments {message.ended}")
        batch.ended = message.ended
        return batch

    # --- step -------------------------------------------------------------------------------------------

    def refuse_ended(self, ids: Ids | slice = slice(None)) -> None:
        """Return if every environment, or every one of `ids` [k], can step.

        Raises:
            StateError: if not.
        """
        if self._mode is AutoresetMode.DISABLED and self._ended[ids].any():
            rows = np.flatnonzero(self._ended)
            asked = rows if isinstance(ids, slice) else np.intersect1d(rows, ids)
            raise StateError(
                f"environments {asked.tolist()} have ended and autoreset is disabled; reset them with "
                "reset(options={'reset_mask': mask}) first"
            )

    def look_for_ends(self) -> None:
        """It is known which environments have ended, of those too that moved in a call that failed."""
        if self._mode is AutoresetMode.DISABLED:
            self.present_obs()

    def begin_step(self, leaves: Sequence[Array]) -> Pending[m.StepReply]:
        """All environments are being stepped with action leaves [N, ...]."""

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            return m.StepCommand(mask=None), action_frames(leaves, peer.rows)

        return self._head.begin(command, m.StepReply, fresh=Fresh.SHOW)

    def finish_step(self, pending: Pending[m.StepReply]) -> StepReturn:
        """What Gymnasium's `step` returns."""
        return self.stepped([self._step_batch(outcome) for outcome in self._head.finish(pending)])

    def _step_batch(self, outcome: Outcome[m.StepReply]) -> StepBatch | Returned | Absent:
        if not isinstance(outcome, Reply):
            return outcome
        peer, reply = outcome.peer, outcome
        return self._head.read(peer, lambda: step_batch(reply, self._obs, peer.num_envs), Fresh.SHOW)

    def stepped(self, outcomes: Sequence[StepBatch | ActBatch | Returned | Absent]) -> StepReturn:
        """What Gymnasium's `step` returns, from what became of each worker, by rank."""
        parts = [self._rows(outcome, peer) for outcome, peer in zip(outcomes, self._head.peers, strict=True)]
        self.last_obs = [part.obs for part in parts]
        self._head.unseen.clear()
        return self.gymnasium_step(parts)

    def gymnasium_step(self, parts: Sequence[Rows]) -> StepReturn:
        """What the caller gets for some rows; those that ended are remembered."""
        step = gymnasium_step(parts, self._obs)
        for part in parts:
            self._ended[part.ids] = part.terminations | part.truncations
        return step

    def _rows(self, outcome: StepBatch | ActBatch | Returned | Absent, peer: Peer) -> Rows:
        """The rows of one worker: stepped, lost in this step, away, or back with a reset."""
        ids = peer_ids(peer)
        if isinstance(outcome, Returned):
            batch = self.reset_batch(outcome)
            return Rows.without_step(ids, batch.obs, infos=decoded(batch.infos))
        if not isinstance(outcome, Absent):
            step = outcome.step if isinstance(outcome, ActBatch) else outcome
            rows = self._head.read(peer, lambda: Rows.of(step, ids, self._obs), Fresh.SHOW)
            if isinstance(rows, Rows):
                return rows
            outcome = rows
        assert self.last_obs is not None
        return Rows.without_step(ids, self.last_obs[peer.rank], lost=outcome.just_lost)

    # --- what others moved ------------------------------------------------------------------------------

    def present_obs(self) -> list[list[Array]]:
        """`last_obs`, once workers were asked whose answers nobody has kept since a call failed."""
        assert self.last_obs is not None
        unseen = [peer for peer in self._head.peers if peer.rank in self._head.unseen]
        if unseen:
            outcomes = self._head.finish(
                self._head.begin(_observe, m.ResetReply, fresh=Fresh.WAIT, peers=unseen)
            )
            for outcome in outcomes:
                batch = self.reset_batch(outcome)
                self.last_obs[outcome.peer.rank] = batch.obs
                if isinstance(outcome, Reply):
                    self._ended[outcome.peer.rows] = False
                    self._ended[batch.ended] = True
            self._head.unseen.clear()
        return self.last_obs

    def stands_at(self, peer: Peer, frames: Sequence[Buffer]) -> None:
        """The environments of a worker stand at these observations, and none of them has ended."""
        batch = ResetBatch.of_frames(frames, self._obs, num_envs=peer.num_envs, infos=[])
        self.stood_at(peer, batch.obs)
        self._head.unseen.discard(peer.rank)

    def stood_at(self, peer: Peer, obs: list[Array]) -> None:
        """What a worker observed last: `obs`, leaves [n, ...]; no episode has ended with it."""
        assert self.last_obs is not None
        self.last_obs[peer.rank] = obs
        self._ended[peer.rows] = False

    def goes_on_from(self, last_obs: Nested, versions: NDArray[np.int64]) -> None:
        """The next step goes on from observations [N, ...], in workers that acted.

        `versions` [T, N] are those of the policy that acted, 0 where none did.
        """
        assert self.last_obs is not None
        leaves = self._obs.flatten(last_obs)
        for peer in self._head.peers:
            if versions[:, peer.rows].any():
                self.last_obs[peer.rank] = [leaf[peer.rows].copy() for leaf in leaves]
        self._head.unseen.clear()
        self._ended[:] = False


def peer_ids(peer: Peer) -> Ids:
    """The global numbers of a worker's environments."""
    return np.arange(peer.rows.start, peer.rows.stop, dtype=np.int64)


def _observe(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
    """A reset of no environment, whose answer is what all of a worker's observe now."""
    seeds: list[int | None] = [None] * peer.num_envs
    mask = [False] * peer.num_envs
    return m.ResetCommand(seeds=seeds, mask=mask, has_options=False, noise_seed=None), []


def action_frames(leaves: Sequence[Array], rows: slice | Array) -> list[Buffer]:
    """The frames of a StepCommand: some rows of action leaves [N, ...].

    They are copies, since what is sent must not change before it was read, and the caller may use its arrays.
    """
    return frames_of([np.array(leaf[rows], order="C") for leaf in leaves])


def step_batch(reply: Reply[m.StepReply], obs: SpaceLayout, num_rows: int) -> StepBatch:
    """What a worker answered to a StepCommand for `num_rows` environments."""
    message, reader = reply.message, FrameReader(reply.frames)
    batch = reader.done(StepBatch.read(reader, obs, num_rows, message.num_final))
    batch.infos, batch.final_infos, batch.lost = message.infos, message.final_infos, message.lost
    return batch
