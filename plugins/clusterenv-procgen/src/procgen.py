"""The ids by which Procgen is known: `gymnasium.make("procgen:procgen-coinrun-v0")`.

A single file, so that an original `procgen` package that is installed as well is left alone and comes first.
"""

from __future__ import annotations

from clusterenv_procgen.gymnasium_ids import register

register()
