"""What a worker says beside its frames, held against what the head knows of it."""

from __future__ import annotations

from clusterenv.batches import EpisodeRecord
from clusterenv.errors import ProtocolError
from clusterenv.peers import Peer
from clusterenv.transport import messages as m


def check_policy(peer: Peer, policy: m.PolicyInfo, published: int) -> None:
    """Return if a worker can have acted with the policy that it tells of.

    Raises:
        ProtocolError: if not.
    """
    if not 1 <= policy.policy_version <= published:
        raise ProtocolError(
            f"worker {peer.rank} tells of version {policy.policy_version}; published are 1..{published}"
        )


def own_episode(peer: Peer, episode: m.Episode) -> EpisodeRecord:
    """An episode that a worker tells of.

    Raises:
        ProtocolError: if it is not of its environments.
    """
    if episode.env_id not in peer.env_indices:
        raise ProtocolError(f"worker {peer.rank} tells of an episode of environment {episode.env_id}")
    return EpisodeRecord(env_id=episode.env_id, episode_return=episode.episode_return, length=episode.length)
