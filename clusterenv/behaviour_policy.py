"""The policy that a worker acts with: compared with the newest, and replaced when it is too old (AAPS)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv import native
from clusterenv.auto_threshold import AutoThreshold, fraction_outside, log_ratios
from clusterenv.batches import ActBatch, Buffer, Fragment
from clusterenv.commands import Command, Done, Evaluate, EvaluateBatch, LoadState, News, NewWeights
from clusterenv.distributions import Family, Kind
from clusterenv.policy_sync import (
    Decision,
    ReferenceSamples,
    SyncReason,
    decide,
    divergence_of,
    prototype_rows,
    sample_size,
)
from clusterenv.sync_config import PROTOTYPE, SyncConfig
from clusterenv.transport import messages as m

Said = NDArray[np.float32]
Act = Callable[[], None]
Run = Callable[[Command, Callable[[Any], None]], None]
Tell = Callable[[News], None]
Pull = Callable[[m.PullRequest], None]


class BehaviourPolicy:
    """Knows the version that the runners act with, and sees to it that it is fresh before they act."""

    def __init__(self, run: Run, pull: Pull) -> None:
        """No agent yet; `run(command, then)` lets the runners work, `pull` asks the head for weights."""
        self._run = run
        self._pull = pull
        self._welcome: m.Welcome | None = None
        self._version: int | None = None
        self._synced_at = 0.0
        self._forced = False
        self._kl = 0.0
        self._checks = 0
        self._check_s = 0.0
        self._auto: AutoThreshold | None = None
        self._syncs_by_reason: dict[str, int] = {}
        self._fragment = 0
        self._samples = ReferenceSamples()
        self._stream_max_lag: int | None = None
        self._tell: Tell | None = None
        self._comparable: bool | None = None
        self._compared: tuple[int, int | None] | None = None
        self._awaited_weights: Callable[[m.WeightsReply, Sequence[Any]], None] | None = None

    def start(self, welcome: m.Welcome) -> None:
        """The head's rule for pulls is known."""
        self._welcome = welcome
        self._begin_auto()

    def _begin_auto(self) -> None:
        assert self._welcome is not None
        self._auto = AutoThreshold() if self._welcome.auto_threshold else None

    def info(self, version: int) -> m.PolicyInfo:
        """What travels with each batch that `version` acted in."""
        return m.PolicyInfo(
            policy_version=version,
            kl=self._kl,
            sync_count=sum(self._syncs_by_reason.values()),
            syncs_by_reason=dict(self._syncs_by_reason),
            checks=self._checks,
            check_s=self._check_s,
            kl_threshold=self._kl_threshold,
        )

    @property
    def _kl_threshold(self) -> float:
        """In force now."""
        if self._auto is not None:
            return self._auto.value
        return math.inf if self._welcome is None else self._welcome.kl_threshold

    def forget(self) -> None:
        """Another agent comes, whose versions and distributions are not comparable."""
        self._version = None
        self._begin_auto()
        self._samples.clear()
        self._comparable = self._compared = None

    def begin_stream(self, max_lag: int, tell: Tell | None) -> None:
        """Fragments are made without waiting for the head, and `max_lag` takes the place of the usual bound.

        What the head compares with may be behind what acts here then, which is no reason to pull. With `tell`
        runners are given new weights as news, which they may adopt while they act.
        """
        self._stream_max_lag = max_lag
        self._tell = tell

    def end_stream(self) -> None:
        """The usual bound holds again, and the usual way of weights."""
        self._stream_max_lag = self._tell = None

    def start_over(self) -> None:
        """What comes is to depend on nothing that was: act next with the newest weights, number from 1."""
        self._forced = True
        self._kl = 0.0
        self._begin_auto()
        self._fragment = 0
        self._samples.clear()
        self._comparable = self._compared = None

    def keep_sample(self, fragment: Fragment) -> int:
        """The number of this fragment, under which a later comparison finds what the policy said there.

        States of a recurrent agent on the sampled rows are put into the fragment, for the head.
        """
        self._fragment += 1
        rows = self._sampled_of(fragment)
        family, said = fragment.family, fragment.params
        if family is None or said is None:
            family, said = None, fragment.log_probs
        said = said.reshape(fragment.valid.size, *said.shape[2:])[rows]
        if len(rows):
            self._comparable = not np.isnan(said).all()
        self._samples.put(self._fragment, fragment.policy_version, family, said)
        fragment.sampled_states = [
            leaf.reshape(fragment.valid.size, *leaf.shape[2:])[rows] for leaf in fragment.states
        ]
        return self._fragment

    def keep_step(self, batch: ActBatch) -> int:
        """The same for one step; 0 if nothing is kept, as present observations can be compared later.

        They cannot for a recurrent agent, whose present state the head does not have.
        """
        family, said = batch.family, batch.params
        if family is None or said is None:
            family, said = None, batch.log_probs
        if np.isnan(batch.log_probs).all() or (family is not None and not batch.state):
            return 0
        self._fragment += 1
        rows = self._sampled(np.ones(len(batch.log_probs), np.bool_), self._fragment)
        self._samples.put(self._fragment, batch.policy_version, family, said[rows])
        return self._fragment

    def freshen(
        self, message: m.ActCommand | m.RolloutCommand | m.Published, frames: Sequence[Any], act: Act
    ) -> None:
        """Pull weights if the rule asks for it, then `act`."""
        if message.has_weights and self._version != message.version:
            self._forced = False
            self._load(message.version, frames[-1], SyncReason.BROADCAST, act)
            return
        reference = message.reference
        if reference is None or self._forced or self._version == message.version:
            self._settle(message.version, None, act)
        elif isinstance(message, m.Published) and self._compared == (message.version, self._version):
            self._settle(message.version, self._kl, act)
        elif reference.kept:
            said = self._samples.get(reference.sample, self._version, _family(reference))
            self._compare(message.version, reference, said, frames[0], act)
        else:
            self._run(
                Evaluate(),
                lambda batch: self._compare(
                    message.version, reference, self._current(batch, reference), frames[0], act
                ),
            )

    def on_weights(self, reply: m.WeightsReply, frames: Sequence[Any]) -> None:
        """The weights that were asked for have come; others are not needed."""
        if self._awaited_weights is not None:
            proceed, self._awaited_weights = self._awaited_weights, None
            proceed(reply, frames)

    def _current(self, batch: EvaluateBatch, reference: m.Reference) -> Said | None:
        """θ_u on the sampled rows of the current observations; None when it cannot be compared."""
        if batch.params is None or batch.family != _family(reference):
            return None
        assert self._welcome is not None
        if self._welcome.sync.startswith(PROTOTYPE):
            return batch.params
        theta: Said = batch.params[self._sampled(np.ones(len(batch.params), np.bool_), reference.sample)]
        return theta

    def _sampled_of(self, fragment: Fragment) -> NDArray[np.int64]:
        """The rows of a fragment that are compared later."""
        assert self._welcome is not None
        if self._welcome.sync.startswith(PROTOTYPE):
            return prototype_rows(*fragment.valid.shape, back=1)
        return self._sampled(fragment.comparable.reshape(-1), self._fragment)

    def _sampled(self, valid: NDArray[np.bool_], number: int) -> NDArray[np.int64]:
        """The rows that the head samples too."""
        assert self._welcome is not None
        return native.sample_rows(
            valid,
            sample_size(self._welcome.n_ref, self._welcome.num_workers),
            seed=self._welcome.noise_seed,
            rank=self._welcome.rank,
            fragment=number,
        )

    def _compare(
        self, version: int, reference: m.Reference, said_u: Said | None, frame: Buffer, act: Act
    ) -> None:
        divergence = None
        if said_u is not None and len(said_u) == reference.rows:
            said_v = np.frombuffer(frame, dtype=np.float32).reshape(said_u.shape)
            divergence = self._divergence(_family(reference), said_u, said_v)
            self._compared = (version, self._version)
        self._settle(version, divergence, act)

    def _divergence(self, family: Family | None, said_u: Said, said_v: Said) -> float:
        assert self._welcome is not None
        started = time.perf_counter()
        divergence = divergence_of(self._welcome.sync, family, said_u, said_v)
        if self._auto is not None and math.isfinite(divergence):
            self._auto.observe(divergence, fraction_outside(log_ratios(family, said_u, said_v)))
        self._check_s += time.perf_counter() - started
        self._checks += 1
        self._kl = divergence
        return divergence

    def _settle(self, version: int, divergence: float | None, act: Act) -> None:
        decision = self._decide(version, divergence)
        self._forced = False  # also where the newest weights are there already
        if not decision.pull or decision.reason is None:
            act()
            return
        reason = decision.reason
        self._awaited_weights = lambda reply, frames: self._load(reply.version, frames[0], reason, act)
        self._pull(m.PullRequest(have_version=self._version or 0, reason=reason.value))

    def _decide(self, version: int, divergence: float | None) -> Decision:
        welcome = self._welcome
        assert welcome is not None
        return decide(
            SyncConfig(
                kl_threshold=self._kl_threshold,
                max_lag=welcome.max_lag if self._stream_max_lag is None else self._stream_max_lag,
                max_age_s=welcome.max_age_s,
                min_interval=welcome.min_interval,
                sync=welcome.sync,
                n_ref=welcome.n_ref,
            ),
            acting_version=self._version,
            published_version=version,
            divergence=divergence,
            age_s=time.monotonic() - self._synced_at,
            forced=self._forced,
            awaited=self._stream_max_lag is not None and self._comparable is not False,
        )

    def _load(self, version: int, payload: Buffer, reason: SyncReason, act: Act) -> None:
        def loaded(_: Done | None = None) -> None:
            self._version = version
            self._synced_at = time.monotonic()
            self._syncs_by_reason[reason.value] = self._syncs_by_reason.get(reason.value, 0) + 1
            act()

        if self._tell is None:
            self._run(LoadState(version=version, state=bytes(payload)), loaded)
        else:
            self._tell(NewWeights(version=version, state=bytes(payload)))
            loaded()


def _family(reference: m.Reference) -> Family | None:
    if reference.family is None:
        return None
    return Family(Kind(reference.family), tuple(reference.family_sizes))
