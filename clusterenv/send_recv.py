"""EnvPool's way of stepping: some environments step while the caller computes actions for others."""

from __future__ import annotations

import contextlib
import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.batches import ResetBatch
from clusterenv.errors import ClusterEnvError, StateError
from clusterenv.head import POLL_S, Head
from clusterenv.layout import SpaceLayout
from clusterenv.outcomes import Fresh, Outcome, Pending, Reply, Returned
from clusterenv.peers import Peer, State
from clusterenv.reset_args import ResetArgs
from clusterenv.rows import Ids, Rows, StepReturn, decoded, own_infos
from clusterenv.stepping import Stepping, action_frames, step_batch
from clusterenv.transport import messages as m

Array = NDArray[Any]


class At(enum.IntEnum):
    """Where an environment is."""

    CALLER = 0
    """Received, and given no action since."""
    WAITING = 1
    """Sent an action that its worker has not been given, since it carries out another command."""
    WORKER = 2
    """Stepping."""
    DONE = 3
    """Stepped, and not received."""


class Seen(enum.IntEnum):
    """What the caller knows of the worker of an environment."""

    PRESENT = 0
    LOST = 1
    """It was lost, which the next step of the environment will tell."""
    AWAY = 2
    """Told; its next step waits for the observation of a reset."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The command that one worker carries out, and for which of its environments."""

    pending: Pending[Any]
    ids: Ids


class SendRecv:
    """Sends actions to workers that are free and gathers what they answer, in the order of arrival.

    A worker carries out one command at a time; what is sent to it meanwhile goes out when it answers.
    """

    def __init__(
        self,
        head: Head,
        stepping: Stepping,
        layouts: tuple[SpaceLayout, SpaceLayout],
        num_envs: int,
        batch_size: int,
    ) -> None:
        """Idle until the first `reset`."""
        self._head = head
        self._stepping = stepping
        self._obs, self._action_layout = layouts
        self._batch_size = batch_size
        self._actions = self._action_layout.zeros(num_envs)
        self._at = np.full(num_envs, At.CALLER, np.int8)
        self._seen = np.full(num_envs, Seen.PRESENT, np.int8)
        self._work: dict[int, _Work] = {}  # by rank
        self._back: dict[int, ResetBatch] = {}  # by rank: the reset after a worker's return
        self._done: deque[Rows] = deque()
        self._last_ids: Ids = np.arange(num_envs, dtype=np.int64)
        self._failed = False

    @property
    def is_busy(self) -> bool:
        """Whether environments are on their way, so that no other call may be made."""
        return bool(self._at.any())

    def reset(self, args: ResetArgs) -> None:
        """All environments are being reset; what was on its way is forgotten."""
        self.stop()
        self._stepping.last_obs = [self._obs.zeros(peer.num_envs) for peer in self._head.peers]
        for peer in self._head.peers:
            self._work[peer.rank] = _Work(self._stepping.begin_reset(args, [peer]), _ids(peer))
            self._at[peer.rows] = At.WORKER

    def stop(self) -> None:
        """Nothing is on its way any more: workers have finished, and what they gave is forgotten."""
        while self._work:
            done = self._head.wait([work.pending for work in self._work.values()])
            for rank, work in list(self._work.items()):
                if work.pending in done:
                    del self._work[rank]
                    with contextlib.suppress(ClusterEnvError):
                        self._head.finish(work.pending)
        self._done.clear()
        self._at[:] = At.CALLER
        self._last_ids = np.arange(len(self._at), dtype=np.int64)
        self._failed = False
        self.others_moved()

    def others_moved(self) -> None:
        """A reset, step or rollout of all has told, or will tell, what became of the workers."""
        self._seen[:] = Seen.PRESENT
        self._back.clear()

    # --- send and recv ----------------------------------------------------------------------------------

    def checked_ids(self, ids: Ids | None) -> Ids:
        """The environments that actions are for; without `ids` those received last, all after a reset.

        Raises:
            StateError: if one of them is not the caller's to send, or has ended and is not reset by itself.
        """
        self._refuse_failed()
        ids = self._last_ids if ids is None else ids
        elsewhere = ids[self._at[ids] != At.CALLER]
        if elsewhere.size:
            raise StateError(
                f"environments {elsewhere.tolist()} are on their way; send actions for those that recv gave"
            )
        self._stepping.refuse_ended(ids)
        return ids

    def send(self, leaves: Sequence[Array], ids: Ids) -> None:
        """Environments `ids` [k] step with action leaves [k, ...], as soon as their workers are free."""
        for kept, leaf in zip(self._actions, leaves, strict=True):
            kept[ids] = leaf
        self._at[ids] = At.WAITING
        self._go_on(0.0)

    def recv(self) -> StepReturn:
        """What the first `batch_size` environments gave; `info["env_id"]` says which they are.

        Raises:
            StateError: if fewer are on their way.
            EnvError, WorkerLost: as for `step`.
        """
        self._refuse_failed()
        under_way = int((self._at != At.CALLER).sum())
        if under_way < self._batch_size:
            raise StateError(
                f"recv waits for batch_size = {self._batch_size} environments, but {under_way} are on their "
                "way; call async_reset once, then send actions for what was received"
            )
        self._go_on(0.0)
        while sum(map(len, self._done)) < self._batch_size:
            self._fill_with_absent()
            self._go_on(POLL_S)
        parts = self._taken()
        step = self._stepping.gymnasium_step(parts)
        self._last_ids = np.concatenate([part.ids for part in parts])
        self._at[self._last_ids] = At.CALLER
        everyone = np.ones(len(self._last_ids), np.bool_)
        step[4].update(env_id=self._last_ids.copy(), _env_id=everyone)
        return step

    def _taken(self) -> list[Rows]:
        """`batch_size` rows of those that are done, the first ones."""
        parts: list[Rows] = []
        missing = self._batch_size
        while missing:
            part = self._done.popleft()
            if len(part) > missing:
                part, rest = part.cut(missing)
                self._done.appendleft(rest)
            parts.append(part)
            missing -= len(part)
        return parts

    def _refuse_failed(self) -> None:
        if self._failed:
            raise StateError("an environment raised; call async_reset or reset first")

    # --- workers ----------------------------------------------------------------------------------------

    def _go_on(self, timeout_s: float) -> None:
        """Take what has arrived, after at most `timeout_s`, and give free workers what waits for them."""
        try:
            done = self._head.wait([work.pending for work in self._work.values()], timeout_s)
            for rank, work in list(self._work.items()):
                if work.pending in done:
                    del self._work[rank]
                    self._take(self._head.finish(work.pending)[0], work.ids)
            for peer in self._head.peers:
                if peer.rank not in self._work:
                    self._give(peer)
        except ClusterEnvError:
            self._failed = True
            raise

    def _give(self, peer: Peer) -> None:
        """Let a free worker step those of its environments that wait for it."""
        ids = self._waiting(peer)
        if not ids.size:
            return
        self._answer_for(peer, ids)
        ids = self._waiting(peer)
        present = ids[self._seen[ids] == Seen.PRESENT]
        if not present.size and (not ids.size or peer.state is not State.READY or peer.fresh is None):
            return
        mask = np.zeros(peer.num_envs, np.bool_)
        mask[present - peer.first_env] = True

        def command(_: Peer) -> tuple[m.Message, Sequence[Any]]:
            whole = None if mask.all() else mask.tolist()
            return m.StepCommand(mask=whole), action_frames(self._actions, present)

        pending = self._head.begin(command, m.StepReply, fresh=Fresh.SHOW, peers=[peer])
        if pending.asked:
            self._at[present] = At.WORKER
            self._work[peer.rank] = _Work(pending, present)
        else:
            self._take(pending.outcomes[peer.rank], ids)

    def _take(self, outcome: Outcome[Any], ids: Ids) -> None:
        """What became of a worker's command for environments `ids`."""
        peer = outcome.peer
        if isinstance(outcome, Reply):
            reply = outcome
            rows = self._head.read(peer, lambda: self._rows(reply, ids), Fresh.SHOW)
            if isinstance(rows, Rows):
                self._deliver(peer, rows)
                return
            outcome = rows
        own = _ids(peer)
        if isinstance(outcome, Returned):
            self._back[peer.rank] = self._stepping.reset_batch(outcome)
            self._seen[own[self._seen[own] == Seen.PRESENT]] = Seen.AWAY
        else:
            self._back.pop(peer.rank, None)
            self._seen[own[self._seen[own] == Seen.PRESENT]] = Seen.LOST if outcome.just_lost else Seen.AWAY
        self._at[ids[self._at[ids] == At.WORKER]] = At.WAITING
        self._answer_for(peer, self._waiting(peer))

    def _rows(self, reply: Reply[Any], ids: Ids) -> Rows:
        if isinstance(reply.message, m.ResetReply):
            infos = reply.message.infos
            batch = ResetBatch.of_frames(reply.frames, self._obs, num_envs=reply.peer.num_envs, infos=infos)
            return Rows.without_step(ids, batch.obs, infos=own_infos(infos, ids), valid=True)
        return Rows.of(step_batch(reply, self._obs, len(ids)), ids, self._obs)

    def _answer_for(self, peer: Peer, ids: Ids) -> None:
        """Environments that wait for a worker that was lost get their rows from what is known of it."""
        lost, away = (ids[self._seen[ids] == seen] for seen in (Seen.LOST, Seen.AWAY))
        if lost.size:
            self._deliver(peer, Rows.without_step(lost, self._known(peer, lost), lost=True))
            self._seen[lost] = Seen.AWAY
        back = self._back.get(peer.rank)
        if away.size and back is not None:
            infos = [row for row in decoded(back.infos) if row[0] in set(away.tolist())]
            obs = [leaf[away - peer.first_env] for leaf in back.obs]
            self._deliver(peer, Rows.without_step(away, obs, infos=infos))
            self._seen[away] = Seen.PRESENT
        elif away.size and peer.state is State.GONE:
            self._deliver(peer, Rows.without_step(away, self._known(peer, away)))

    def _fill_with_absent(self) -> None:
        """Rows of absent workers hold what was last seen, once the others cannot fill a batch."""
        absent = (self._at == At.WAITING) & (self._seen == Seen.AWAY)
        others = np.count_nonzero(self._at != At.CALLER) - np.count_nonzero(absent)
        if not 0 < others < self._batch_size:
            return
        for peer in self._head.peers:
            ids = _ids(peer)[absent[peer.rows]]
            if ids.size and peer.state is not State.READY:
                self._deliver(peer, Rows.without_step(ids, self._known(peer, ids)))

    def _deliver(self, peer: Peer, rows: Rows) -> None:
        """Rows of a worker are ready to be received."""
        assert self._stepping.last_obs is not None
        leaves = self._stepping.last_obs[peer.rank]
        if not all(leaf.flags.writeable for leaf in leaves):  # as a reset or step of all left them
            leaves = self._stepping.last_obs[peer.rank] = [leaf.copy() for leaf in leaves]
        for leaf, news in zip(leaves, rows.obs, strict=True):
            leaf[rows.ids - peer.first_env] = news
        self._at[rows.ids] = At.DONE
        self._done.append(rows)

    def _known(self, peer: Peer, ids: Ids) -> list[Array]:
        """The last observations of some of a worker's environments."""
        assert self._stepping.last_obs is not None
        return [leaf[ids - peer.first_env] for leaf in self._stepping.last_obs[peer.rank]]

    def _waiting(self, peer: Peer) -> Ids:
        own = _ids(peer)
        waiting: Ids = own[self._at[own] == At.WAITING]
        return waiting


def _ids(peer: Peer) -> Ids:
    return np.arange(peer.rows.start, peer.rows.stop, dtype=np.int64)
