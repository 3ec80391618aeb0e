"""What a launched ClusterEnv works with: one session, and what is done over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterenv.acting import Acting
from clusterenv.batch_memory import BatchMemories
from clusterenv.calling import Calling
from clusterenv.config import EnvConfig
from clusterenv.facts import EnvFacts
from clusterenv.peers import worker_stats
from clusterenv.send_recv import SendRecv
from clusterenv.session import LocalSession, SerialSession
from clusterenv.stepping import Stepping
from clusterenv.streaming import Streaming


@dataclass(frozen=True, slots=True)
class Run:
    """A session and its users; one call at a time."""

    session: LocalSession | SerialSession
    memories: BatchMemories
    acting: Acting
    stepping: Stepping
    calling: Calling
    send_recv: SendRecv
    streaming: Streaming

    @classmethod
    def over(
        cls, session: LocalSession | SerialSession, config: EnvConfig, facts: EnvFacts, num_envs: int
    ) -> Run:
        """The users of a session whose workers are ready."""
        head, layouts = session.head, facts.layouts
        stepping = Stepping(head, layouts, num_envs, facts.autoreset_mode)
        spaces = (facts.single_observation_space, facts.single_action_space)
        batch_size = config.batch_size or num_envs
        serial = isinstance(session, SerialSession)
        shared = not serial and all(peer.shares_memory for peer in head.peers)
        memories = BatchMemories(layouts[0], num_envs, shared=shared)
        acting = Acting(head, config, spaces, layouts, memories)
        return cls(
            session=session,
            memories=memories,
            acting=acting,
            stepping=stepping,
            calling=Calling(head, num_envs),
            send_recv=SendRecv(head, stepping, layouts, num_envs, batch_size),
            streaming=Streaming(head, acting, stepping, config, layouts, on_demand=serial),
        )

    def close(self, *, keep_logs: bool) -> None:
        """Workers have ended, and nothing that the run made is left; see `LocalSession.close`."""
        self.session.close(keep_logs=keep_logs)
        self.memories.close()

    def stats(self) -> dict[str, Any]:
        """What each worker does and how many bytes went where."""
        head, traffic = self.session.head, self.session.traffic
        workers = [worker_stats(peer, self.acting.version) for peer in head.peers]
        return {
            "workers": workers,
            "steps": sum(worker["steps"] for worker in workers),
            "policy_version": self.acting.version,
            "weight_bytes_sent": head.weight_bytes_sent,
            "check_bytes_sent": head.check_bytes_sent,
            "checks_sent": head.checks_sent,
            "check_us": 1e6 * head.check_s / max(head.checks_sent, 1),
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "late_replies": head.late_replies,
            "late_fragments": sum(peer.late_fragments for peer in head.peers),
            "lost_fragments": sum(peer.lost_fragments for peer in head.peers),
            "refused_messages": traffic.refused_messages,
            "unproven_connections": traffic.unproven_connections,
            "threads": {"runners": [peer.welcome.runners for peer in head.peers]},
        }
