"""Imported by a forkserver before all else: it ends with its worker, also while it imports what is large."""

from __future__ import annotations

from clusterenv.lifetime import end_with_parent

end_with_parent()
