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
from clusterenv.batch_memory import BatchMemories, Loan
from clusterenv.batches import ActBatch, Fragment, unmoved_step
from clusterenv.claims import check_policy, own_episodes
from clusterenv.comparing import References, Sample, evaluated, joined
from clusterenv.config import EnvConfig
from clusterenv.errors import AgentError, ProtocolError
from clusterenv.head import Head
from clusterenv.layout import Nested, SpaceLayout
from clusterenv.outcomes import Absent, Fresh, Outcome, Reply, Returned
from clusterenv.peers import Peer
from clusterenv.policy import Publisher, Snapshot, policy_lag
from clusterenv.policy_sync import compares, prototype_rows, sample_size
from clusterenv.rollout import Rollout, assemble
from clusterenv.sync_config import PROTOTYPE
from clusterenv.transport import messages as m

Array = NDArray[Any]


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
        memories: BatchMemories,
    ) -> None:
        """`spaces` and `layouts` are those of one environment: observation, action.

        Rollouts of local workers lie in `memories`, if there are such.
        """
        self._head = head
        self._config = config
        self._spaces = spaces
        self._obs, self._actions = layouts
        self._memories = memories
        self._publisher = Publisher()
        self._adapter: tuple[object, AgentAdapter] | None = None
        self._agent_sent = 0
        self._state: list[Array] = []  # leaves [1, ...] of a recurrent agent's
        self._samples: dict[int, Sample] = {}
        self._acts = 0

    @property
    def _agent(self) -> AgentAdapter:
        assert self._adapter is not None
        return self._adapter[1]

    def nest_state(self, leaves: list[Array]) -> Nested:
        """Leaves [n, ...] nested as the agent nests its state; None if it has none."""
        return self._agent.nest_state(leaves)

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
            self._state = self._adapter[1].initial_state(1)
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
        fragments: list[Fragment | None] = []
        placed: list[Array] | None = None
        while not any(fragments):  # never an empty batch: all lost at once, so wait for the first to return
            fragments, placed = self._collected(snapshot, references, num_steps)
        return assemble(
            fragments,
            obs_layout=self._obs,
            action_layout=self._actions,
            first_envs=[peer.first_env for peer in self._head.peers],
            published_version=snapshot.version,
            kl=[0.0 if peer.policy is None else peer.policy.kl for peer in self._head.peers],
            num_envs=sum(peer.num_envs for peer in self._head.peers),
            nest_state=self.nest_state,
            placed=placed,
        )

    def _collected(
        self, snapshot: Snapshot, references: References, num_steps: int
    ) -> tuple[list[Fragment | None], list[Array] | None]:
        """The fragments of all workers, by rank, and leaves [T + 1, N, ...] if observations lie in these."""
        loan = self._memories.lend(num_steps)
        told: list[int] = []

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            told.append(peer.rank)
            facts, frames = self._attached(references, peer, snapshot)
            memory = None if loan is None else loan.message
            return m.RolloutCommand(num_steps=num_steps, memory=memory, **facts), frames

        outcomes = self._head.call(command, m.FragmentReply)
        fragments = [self._read_fragment(outcome, num_steps, loan) for outcome in outcomes]
        return fragments, None if loan is None else self._memories.filled(loan, fragments, told)

    def _read_fragment(
        self, outcome: Outcome[m.FragmentReply], num_steps: int, loan: Loan | None
    ) -> Fragment | None:
        """The fragment of a worker, if it is there and is what was asked for."""
        if not isinstance(outcome, Reply):
            return None
        reply = outcome

        def read() -> Fragment:
            fragment = self.fragment(reply.peer, reply.message, reply.frames, num_steps, loan)
            self._samples[reply.peer.rank] = self.sample(reply.peer, reply.message, fragment)
            return fragment

        fragment = self._head.read(reply.peer, read, Fresh.SKIP)
        return fragment if isinstance(fragment, Fragment) else None

    def fragment(
        self,
        peer: Peer,
        message: m.FragmentReply,
        frames: Sequence[Any],
        num_steps: int,
        loan: Loan | None = None,
    ) -> Fragment:
        """What a worker has collected in `num_steps` steps, with observations in memory that it was told of.

        Raises:
            ProtocolError: if that cannot be what was asked for.
        """
        check_policy(peer, message.policy, self._head.published_version)
        if message.num_steps != num_steps:
            raise ProtocolError(f"fragment of {message.num_steps} steps; expected {num_steps}")
        if message.in_place and loan is None:
            raise ProtocolError("fragment in memory that the worker was not told of")
        return Fragment.of_frames(
            frames,
            self._obs,
            self._actions,
            num_steps=message.num_steps,
            num_envs=peer.num_envs,
            num_final=message.num_final,
            policy_version=message.policy.policy_version,
            episodes=own_episodes(peer, message.episodes),
            state=self._state,
            num_sampled=message.num_sampled,
            has_versions=message.has_versions,
            placed=[leaf[:, peer.rows] for leaf in loan.obs] if message.in_place and loan else None,
        )

    def sample(self, peer: Peer, message: m.FragmentReply, fragment: Fragment) -> Sample:
        """The states of a fragment that the worker has kept too.

        Raises:
            ProtocolError: if the agent's state is not there on all of them.
        """
        rows = self._rows(peer, fragment.comparable, message.fragment)
        if self._state and message.num_sampled != len(rows):
            raise ProtocolError(f"states of {message.num_sampled} sampled rows; expected {len(rows)}")
        steps, envs = np.divmod(rows, peer.num_envs)
        return Sample(
            message.fragment,
            [leaf[steps, envs] for leaf in fragment.obs],
            [leaf[steps, envs] for leaf in fragment.actions],
            peer.first_env + envs,
            fragment.sampled_states,
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

    def remember(self, samples: Mapping[int, Sample]) -> None:
        """The next rollout is compared on these states, by rank."""
        self._samples.update(samples)

    # --- stream -----------------------------------------------------------------------------------------

    def news(
        self, snapshot: Snapshot, samples: Mapping[int, Sample]
    ) -> Callable[[Peer], tuple[m.Message, Sequence[Any]]]:
        """What to tell each worker that streams of a new version, with what that says on its sample."""
        references = self._references(snapshot.version, samples, samples)

        def published(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            facts, frames = self._attached(references, peer, snapshot)
            return m.Published(**facts), frames

        return published

    # --- step -------------------------------------------------------------------------------------------

    def act(self, agent: object, obs: Sequence[Sequence[Array]]) -> Acted:
        """One step of all environments; `obs` are each worker's leaves [n, ...] of its last reply."""
        snapshot = self.publish(agent)
        self._acts += 1
        present = self._samples if self._state else self._present(snapshot.version, obs)
        references = self._references(snapshot.version, present, self._samples)

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            facts, frames = self._attached(references, peer, snapshot)
            return m.ActCommand(**facts), frames

        outcomes = [
            self._read_act(outcome, obs, snapshot) if isinstance(outcome, Reply) else outcome
            for outcome in self._head.call(command, m.ActReply, fresh=Fresh.SHOW)
        ]
        return Acted(outcomes, self._act_info(outcomes, obs, snapshot.version))

    def _present(self, version: int, obs: Sequence[Sequence[Array]]) -> dict[int, Sample]:
        """Of each lagging worker some of its present observations."""
        samples = {}
        for peer in self._lagging(version):
            rows = self._rows(peer, np.ones((1, peer.num_envs), np.bool_), self._acts)
            leaves = [leaf[rows] for leaf in obs[peer.rank]]
            samples[peer.rank] = Sample(self._acts, leaves, [], peer.first_env + rows, [], kept=False)
        return samples

    def _read_act(
        self, reply: Reply[m.ActReply], obs: Sequence[Sequence[Array]], snapshot: Snapshot
    ) -> ActBatch | Absent:
        def read() -> ActBatch:
            check_policy(reply.peer, reply.message.policy, snapshot.version)
            return self._act_batch(reply, obs)

        return self._head.read(reply.peer, read, Fresh.SHOW)

    def _act_batch(self, reply: Reply[m.ActReply], obs: Sequence[Sequence[Array]]) -> ActBatch:
        peer, message = reply.peer, reply.message
        batch = ActBatch.of_frames(
            reply.frames,
            self._obs,
            self._actions,
            num_envs=peer.num_envs,
            num_final=message.num_final,
            policy_version=message.policy.policy_version,
            state=self._state,
        )
        batch.step.infos = message.infos
        batch.step.final_infos = message.final_infos
        batch.step.lost = message.lost
        if message.sample:
            rows = self._rows(peer, np.ones((1, peer.num_envs), np.bool_), message.sample)
            self._samples[peer.rank] = Sample(
                message.sample,
                [leaf[rows] for leaf in obs[peer.rank]],
                [leaf[rows] for leaf in batch.actions],
                peer.first_env + rows,
                [leaf[rows] for leaf in batch.state],
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
            seen = joined([obs[peer.rank] for peer in lagging])
            done = joined([batches[peer.rank].actions for peer in lagging])
            judged = self._agent.evaluate(
                self._obs.nest(seen),
                self._actions.nest(done),
                env_ids=rows.astype(np.int64),
                state=joined([batches[peer.rank].state for peer in lagging]),
            )
            log_probs[rows], values[rows] = judged.log_probs, judged.values
        versions = np.array([batch.policy_version for batch in batches], dtype=np.int64)
        lags = np.array([policy_lag(version, int(u)) for u in versions], dtype=np.int64)
        kl = np.array([0.0 if peer.policy is None else peer.policy.kl for peer in peers])
        syncs = np.array([0 if peer.policy is None else peer.policy.sync_count for peer in peers], np.int64)
        counts = [peer.num_envs for peer in peers]
        info = {
            "action": self._actions.nest(joined([batch.actions for batch in batches])),
            "log_prob": log_probs,
            "value": values,
            "behaviour_log_prob": behaviour,
            "policy_version": np.repeat(versions, counts),
            "policy_lag": np.repeat(lags, counts),
            "kl": np.repeat(kl, counts),
            "sync_count": np.repeat(syncs, counts),
        }
        if self._state:
            info["agent_state"] = self._agent.nest_state(joined([batch.state for batch in batches]))
        return info | {f"_{key}": np.ones(sum(counts), np.bool_) for key in info}

    def _no_act(self, peer: Peer, version: int) -> ActBatch:
        zeros = np.zeros(peer.num_envs, np.float32)
        return ActBatch(
            step=unmoved_step(peer.num_envs),
            actions=self._actions.zeros(peer.num_envs),
            log_probs=zeros,
            values=zeros,
            policy_version=version,
            state=[np.zeros((peer.num_envs, *leaf.shape[1:]), leaf.dtype) for leaf in self._state],
        )

    # --- what travels with a command --------------------------------------------------------------------

    def _references(
        self, version: int, samples: Mapping[int, Sample], taken: Mapping[int, Sample]
    ) -> References:
        """What version v says on each lagging worker's sample, and what it took to find out."""
        started = time.perf_counter()
        ranks = [p.rank for p in self._lagging(version)] if compares(self._config.sync) else []
        asked, scored = ({rank: of[rank] for rank in ranks if rank in of} for of in (samples, taken))
        references = evaluated(self._agent, (self._obs, self._actions), asked, scored)
        self._head.checks_sent += len(references)
        self._head.check_bytes_sent += sum(said.nbytes for _, said in references.values())
        self._head.check_s += time.perf_counter() - started if references else 0.0
        return references

    def _lagging(self, version: int) -> list[Peer]:
        """The workers that act, but with another version."""
        return [p for p in self._head.peers if p.policy is not None and p.policy.policy_version != version]

    def _attached(
        self, references: References, peer: Peer, snapshot: Snapshot
    ) -> tuple[dict[str, Any], list[Any]]:
        """The fields `version`, `reference` and `has_weights`, and the frames that they speak of."""
        frames: list[Any] = []
        reference, said = references.get(peer.rank, (None, None))
        if said is not None:
            frames.append(said)
        acting = None if peer.policy is None else peer.policy.policy_version
        has_weights = self._config.sync == "broadcast" and acting != snapshot.version
        if has_weights:
            self._head.weight_bytes_sent += snapshot.nbytes
            frames.append(snapshot.payload)
        return {"version": snapshot.version, "reference": reference, "has_weights": has_weights}, frames
