"""The learner's agent as the workers see it: published, compared on sampled states, and acted with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv import native
from clusterenv.adapters import AgentAdapter, adapt
from clusterenv.batches import ActBatch, EpisodeRecord, Fragment, unmoved_step
from clusterenv.config import EnvConfig
from clusterenv.distributions import Family
from clusterenv.errors import AgentError
from clusterenv.head import Head
from clusterenv.layout import SpaceLayout
from clusterenv.outcomes import Absent, Fresh, Reply, Returned
from clusterenv.peers import Peer
from clusterenv.policy import Publisher, Snapshot, policy_lag
from clusterenv.policy_sync import compares, prototype_rows, sample_size
from clusterenv.rollout import Rollout, assemble
from clusterenv.sync_config import PROTOTYPE
from clusterenv.transport import messages as m

Array = NDArray[Any]
References = Mapping[int, tuple[m.Reference, Array]]


@dataclass(frozen=True, slots=True)
class Sample:
    """States of one worker that both sides can name."""

    number: int
    obs: list[Array]
    """Leaves [rows, ...] of what was seen there."""
    actions: list[Array]
    """Leaves [rows, ...] of what was done there; none where nothing was done yet."""
    env_ids: Array
    """[rows]"""


@dataclass(frozen=True, slots=True)
class Acted:
    """One step with the agent: each worker's batch, and what the agent passed thinks of what was done."""

    outcomes: list[ActBatch | Returned | Absent]
    info: dict[str, Any]


class Acting:
    """Keeps one agent known to the workers, and acts through them."""

    def __init__(
        self,
        head: Head,
        config: EnvConfig,
        spaces: tuple[Any, Any],
        layouts: tuple[SpaceLayout, SpaceLayout],
    ) -> None:
        """`spaces` and `layouts` are those of one environment: observation, action."""
        self._head = head
        self._config = config
        self._spaces = spaces
        self._obs, self._actions = layouts
        self._publisher = Publisher()
        self._adapter: tuple[object, AgentAdapter] | None = None
        self._agent_sent = 0
        self._samples: dict[int, Sample] = {}
        self._acts = 0

    @property
    def version(self) -> int:
        """The newest published version; 0 before the first."""
        return 0 if self._publisher.current is None else self._publisher.current.version

    def start_over(self) -> None:
        """A seeded reset: what the workers are compared on depends on nothing that was before it."""
        self._acts = 0
        self._samples.clear()

    def publish(self, agent: object, *, known: bool = False) -> Snapshot:
        """The agent's present state is what workers compare with and pull from now on.

        Raises:
            AgentError: if the agent has none of the methods that can be acted with, or if workers have to be
                sent another agent although it should be `known` to them.
        """
        if self._adapter is None or self._adapter[0] is not agent:
            self._adapter = (agent, adapt(agent, *self._spaces))
        adapter = self._adapter[1]
        snapshot = self._publisher.publish(adapter)
        if known and snapshot.agent != self._agent_sent:
            raise AgentError(
                "the agent's state has other names or shapes than when the stream was opened; open another"
            )
        self._head.publish(snapshot)
        if snapshot.agent != self._agent_sent:
            self._head.introduce(m.AgentMessage(agent=snapshot.agent), adapter.dumps())
            self._agent_sent = snapshot.agent
            self._samples.clear()
        return snapshot

    # --- rollout ----------------------------------------------------------------------------------------

    def rollout(self, agent: object, num_steps: int) -> Rollout:
        """[T, N] of transitions, by rank."""
        snapshot = self.publish(agent)
        references = self._references(snapshot.version, self._samples, self._samples)

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            reference, frames = _attached(references, peer)
            frames += self._broadcast(peer, snapshot)
            message = m.RolloutCommand(
                version=snapshot.version,
                num_steps=num_steps,
                reference=reference,
                has_weights=self._is_broadcast(peer, snapshot),
            )
            return message, frames

        fragments: list[Fragment | None] = []
        while not any(fragments):  # never an empty batch: all lost at once, so wait for the first to return
            outcomes = self._head.call(command, m.FragmentReply)
            fragments = [self._collected(o) if isinstance(o, Reply) else None for o in outcomes]
        return assemble(
            fragments,
            obs_layout=self._obs,
            action_layout=self._actions,
            first_envs=[peer.first_env for peer in self._head.peers],
            published_version=snapshot.version,
            kl=[0.0 if peer.policy is None else peer.policy.kl for peer in self._head.peers],
            num_envs=sum(peer.num_envs for peer in self._head.peers),
        )

    def _collected(self, reply: Reply[m.FragmentReply]) -> Fragment:
        fragment = self.fragment(reply.peer, reply.message, reply.frames)
        self._samples[reply.peer.rank] = self.sample(reply.peer, reply.message, fragment)
        return fragment

    def fragment(self, peer: Peer, message: m.FragmentReply, frames: Sequence[Any]) -> Fragment:
        """What a worker has collected."""
        return Fragment.of_frames(
            frames,
            self._obs,
            self._actions,
            num_steps=message.num_steps,
            num_envs=peer.num_envs,
            num_final=message.num_final,
            policy_version=message.policy.policy_version,
            episodes=[
                EpisodeRecord(env_id=e.env_id, episode_return=e.episode_return, length=e.length)
                for e in message.episodes
            ],
            has_versions=message.has_versions,
        )

    def sample(self, peer: Peer, message: m.FragmentReply, fragment: Fragment) -> Sample:
        """The states of a fragment that the worker has kept too."""
        rows = self._rows(peer, fragment.comparable, message.fragment)
        count = fragment.valid.size  # not -1, which says nothing of observations without elements
        return Sample(
            message.fragment,
            [leaf.reshape(count, *leaf.shape[2:])[rows] for leaf in fragment.obs],
            [leaf.reshape(count, *leaf.shape[2:])[rows] for leaf in fragment.actions],
            peer.first_env + rows % peer.num_envs,
        )

    def _rows(self, peer: Peer, valid: NDArray[np.bool_], number: int) -> NDArray[np.int64]:
        """The sampled rows of [T, n] that the worker finds too."""
        if self._config.sync.startswith(PROTOTYPE):
            return prototype_rows(*valid.shape, back=0)
        return native.sample_rows(
            valid.reshape(-1),
            sample_size(self._config.n_ref, len(self._head.peers)),
            seed=peer.welcome.noise_seed,
            rank=peer.rank,
            fragment=number,
        )

    # --- stream -----------------------------------------------------------------------------------------

    def news(
        self, snapshot: Snapshot, samples: Mapping[int, Sample]
    ) -> Callable[[Peer], tuple[m.Message, Sequence[Any]]]:
        """What to tell each worker that streams of a new version, with what that says on its sample."""
        references = self._references(snapshot.version, samples, samples)

        def published(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            reference, frames = _attached(references, peer)
            frames += self._broadcast(peer, snapshot)
            broadcast = self._is_broadcast(peer, snapshot)
            return m.Published(version=snapshot.version, reference=reference, has_weights=broadcast), frames

        return published

    # --- step -------------------------------------------------------------------------------------------

    def act(self, agent: object, obs: Sequence[Sequence[Array]]) -> Acted:
        """One step of all environments; `obs` are each worker's leaves [n, ...] of its last reply."""
        snapshot = self.publish(agent)
        self._acts += 1
        samples = {}
        for peer in self._lagging(snapshot.version):
            rows = self._rows(peer, np.ones((1, peer.num_envs), np.bool_), self._acts)
            leaves = [leaf[rows] for leaf in obs[peer.rank]]
            samples[peer.rank] = Sample(self._acts, leaves, [], peer.first_env + rows)
        references = self._references(snapshot.version, samples, self._samples)

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            reference, frames = _attached(references, peer)
            frames += self._broadcast(peer, snapshot)
            broadcast = self._is_broadcast(peer, snapshot)
            return m.ActCommand(version=snapshot.version, reference=reference, has_weights=broadcast), frames

        outcomes = [
            self._act_batch(outcome, obs) if isinstance(outcome, Reply) else outcome
            for outcome in self._head.call(command, m.ActReply, fresh=Fresh.SHOW)
        ]
        return Acted(outcomes, self._act_info(outcomes, obs, snapshot.version))

    def _act_batch(self, reply: Reply[m.ActReply], obs: Sequence[Sequence[Array]]) -> ActBatch:
        peer, message = reply.peer, reply.message
        batch = ActBatch.of_frames(
            reply.frames,
            self._obs,
            self._actions,
            num_envs=peer.num_envs,
            num_final=message.num_final,
            policy_version=message.policy.policy_version,
        )
        batch.step.infos = message.infos
        batch.step.final_infos = message.final_infos
        if message.sample:
            rows = self._rows(peer, np.ones(peer.num_envs, dtype=np.bool_), message.sample)
            self._samples[peer.rank] = Sample(
                message.sample,
                [leaf[rows] for leaf in obs[peer.rank]],
                [leaf[rows] for leaf in batch.actions],
                peer.first_env + rows,
            )
        return batch

    def _act_info(
        self,
        outcomes: Sequence[ActBatch | Returned | Absent],
        obs: Sequence[Sequence[Array]],
        version: int,
    ) -> dict[str, Any]:
        """Action, log-prob and value of the agent passed, how far each worker is from it, and the masks.

        Rows of a worker that did not act are zeros.
        """
        peers = self._head.peers
        batches = [
            outcome if isinstance(outcome, ActBatch) else self._no_act(peer, version)
            for peer, outcome in zip(peers, outcomes, strict=True)
        ]
        behaviour = np.concatenate([batch.log_probs for batch in batches])
        log_probs, values = behaviour.copy(), np.concatenate([batch.values for batch in batches])
        lagging = [peer for peer in peers if batches[peer.rank].policy_version != version]
        if lagging:
            rows = np.concatenate([np.arange(peer.rows.start, peer.rows.stop) for peer in lagging])
            seen = _joined([obs[peer.rank] for peer in lagging])
            done = _joined([batches[peer.rank].actions for peer in lagging])
            assert self._adapter is not None
            judged = self._adapter[1].evaluate(
                self._obs.nest(seen), self._actions.nest(done), env_ids=rows.astype(np.int64)
            )
            log_probs[rows], values[rows] = judged.log_probs, judged.values
        versions = np.array([batch.policy_version for batch in batches], dtype=np.int64)
        lags = np.array([policy_lag(version, int(u)) for u in versions], dtype=np.int64)
        kl = np.array([0.0 if peer.policy is None else peer.policy.kl for peer in peers])
        syncs = np.array([0 if peer.policy is None else peer.policy.sync_count for peer in peers], np.int64)
        counts = [peer.num_envs for peer in peers]
        info = {
            "action": self._actions.nest(_joined([batch.actions for batch in batches])),
            "log_prob": log_probs,
            "value": values,
            "behaviour_log_prob": behaviour,
            "policy_version": np.repeat(versions, counts),
            "policy_lag": np.repeat(lags, counts),
            "kl": np.repeat(kl, counts),
            "sync_count": np.repeat(syncs, counts),
        }
        return info | {f"_{key}": np.ones(sum(counts), np.bool_) for key in info}

    def _no_act(self, peer: Peer, version: int) -> ActBatch:
        zeros = np.zeros(peer.num_envs, np.float32)
        step, actions = unmoved_step(peer.num_envs), self._actions.zeros(peer.num_envs)
        return ActBatch(step=step, actions=actions, log_probs=zeros, values=zeros, policy_version=version)

    # --- what travels with a command --------------------------------------------------------------------

    def _references(
        self, version: int, samples: Mapping[int, Sample], taken: Mapping[int, Sample]
    ) -> References:
        """What version v says on each lagging worker's sample, and what it took to find out."""
        started = time.perf_counter()
        references = self._evaluated(version, samples, taken)
        self._head.checks_sent += len(references)
        self._head.check_bytes_sent += sum(said.nbytes for _, said in references.values())
        self._head.check_s += time.perf_counter() - started if references else 0.0
        return references

    def _evaluated(
        self, version: int, samples: Mapping[int, Sample], taken: Mapping[int, Sample]
    ) -> References:
        """What version v says on each lagging worker's sample, all in one batch.

        θ_v on `samples` where the agent has a closed form; else log π_v of what was done in `taken`.
        """
        lagging = self._lagging(version) if compares(self._config.sync) else []
        asked = {peer.rank: samples[peer.rank] for peer in lagging if peer.rank in samples}
        assert self._adapter is not None
        adapter = self._adapter[1]
        if asked:
            obs, env_ids = self._states(asked)
            theta = adapter.parameters(obs, env_ids=env_ids)
            if theta is not None:
                return self._dealt(asked, theta, adapter.family)
        asked = {peer.rank: taken[peer.rank] for peer in lagging if peer.rank in taken}
        if not asked:
            return {}
        obs, env_ids = self._states(asked)
        actions = self._actions.nest(_joined([sample.actions for sample in asked.values()]))
        log_probs = adapter.evaluate(obs, actions, env_ids=env_ids).log_probs
        return {} if np.isnan(log_probs).all() else self._dealt(asked, log_probs, None)

    def _states(self, samples: Mapping[int, Sample]) -> tuple[Any, NDArray[np.int64]]:
        obs = self._obs.nest(_joined([sample.obs for sample in samples.values()]))
        return obs, np.concatenate([sample.env_ids for sample in samples.values()])

    def _dealt(self, samples: Mapping[int, Sample], said: Array, family: Family | None) -> References:
        """To each worker its part of `said` [all rows, ...]."""
        references: dict[int, tuple[m.Reference, Array]] = {}
        start = 0
        for rank, sample in samples.items():
            rows = len(sample.env_ids)
            reference = m.Reference(
                sample=sample.number,
                rows=rows,
                family=None if family is None else family.kind.value,
                family_sizes=[] if family is None else list(family.sizes),
            )
            part = np.ascontiguousarray(said[start : start + rows], dtype=np.float32)
            references[rank] = (reference, part)
            start += rows
        return references

    def _lagging(self, version: int) -> list[Peer]:
        """The workers that act, but with another version."""
        return [p for p in self._head.peers if p.policy is not None and p.policy.policy_version != version]

    def _is_broadcast(self, peer: Peer, snapshot: Snapshot) -> bool:
        acting = None if peer.policy is None else peer.policy.policy_version
        return self._config.sync == "broadcast" and acting != snapshot.version

    def _broadcast(self, peer: Peer, snapshot: Snapshot) -> list[Any]:
        if not self._is_broadcast(peer, snapshot):
            return []
        self._head.weight_bytes_sent += snapshot.nbytes
        return [snapshot.payload]


def _attached(references: References, peer: Peer) -> tuple[m.Reference | None, list[Any]]:
    if peer.rank not in references:
        return None, []
    reference, said = references[peer.rank]
    return reference, [said]


def _joined(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Leaves [n, ...] of several workers, one after the other; always new arrays."""
    return [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
