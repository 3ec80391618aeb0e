"""What a worker says beside its frames, held against what the head knows of it."""

from __future__ import annotations

from collections.abc import Sequence

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


def own_episodes(peer: Peer, episodes: Sequence[m.Episode]) -> list[EpisodeRecord]:
    """The episodes that a worker tells of.

    Raises:
        ProtocolError: if one is not of its environments.
    """
    own = peer.env_indices
    for episode in episodes:
        if episode.env_id not in own:
            raise ProtocolError(f"worker {peer.rank} tells of an episode of environment {episode.env_id}")
    return [
        EpisodeRecord(env_id=e.env_id, episode_return=e.episode_return, length=e.length) for e in episodes
    ]
