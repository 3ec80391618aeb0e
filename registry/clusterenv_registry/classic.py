"""Names that scripts of other libraries use for environments that Gymnasium has under an id."""

from __future__ import annotations

from typing import Final

CLASSIC: Final = {
    "MujocoAnt": "Ant-v5",
    "MujocoHalfCheetah": "HalfCheetah-v5",
    "MujocoHopper": "Hopper-v5",
    "MujocoHumanoid": "Humanoid-v5",
    "MujocoHumanoidStandup": "HumanoidStandup-v5",
    "MujocoInvertedDoublePendulum": "InvertedDoublePendulum-v5",
    "MujocoInvertedPendulum": "InvertedPendulum-v5",
    "MujocoPusher": "Pusher-v5",
    "MujocoReacher": "Reacher-v5",
    "MujocoSwimmer": "Swimmer-v5",
    "MujocoWalker2d": "Walker2d-v5",
}
"""Pinned: a newer version of an environment has other dynamics or rewards, so its results are others."""
