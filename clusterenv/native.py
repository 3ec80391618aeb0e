"""The compiled kernels, found and re-exported; the only module that imports `clusterenv._core`.

Arguments are used as they are: a dtype, shape or stride that does not fit exactly is a TypeError or
ValueError that names the argument, and then no output has been written.
"""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from clusterenv import __version__

_CORE = "clusterenv._core"
_DISTRIBUTION = "clusterenv-rl"


def _load_core() -> ModuleType:
    """`_core` from beside this file, else from the installed distribution that this checkout hides."""
    try:
        return import_module(_CORE)
    except ModuleNotFoundError as error:
        if error.name != _CORE:
            raise
    return _load_installed_core(Path(__file__).parent)


def _load_installed_core(package: Path) -> ModuleType:
    """`_core` of the installed distribution, which must have the version of `package`."""
    remedy = f"run `pip install {package.parent}`"
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise ImportError(
            f"{package} has no compiled core and {_DISTRIBUTION} is not installed: {remedy}"
        ) from None
    if distribution.version != __version__:
        raise ImportError(
            f"{package} is version {__version__}, but its compiled core would come from the installed "
            f"{_DISTRIBUTION} {distribution.version}: {remedy}"
        )
    spec = PathFinder.find_spec(_CORE, [str(distribution.locate_file("clusterenv"))])
    if spec is None or spec.loader is None:
        raise ImportError(f"the installed {_DISTRIBUTION} {__version__} has no compiled core: {remedy}")
    core = module_from_spec(spec)
    sys.modules[_CORE] = core
    spec.loader.exec_module(core)
    return core


if TYPE_CHECKING:
    from clusterenv import _core
    from clusterenv._core import Collector as Collector
    from clusterenv._core import Doorbell as Doorbell
    from clusterenv._core import Drawing as Drawing
    from clusterenv._core import Environments as Environments
    from clusterenv._core import Network as Network
    from clusterenv._core import Slab as Slab
else:
    _core = _load_core()
    Collector = _core.Collector
    Drawing = _core.Drawing
    Environments = _core.Environments
    Network = _core.Network

k3 = _core.k3
kl_bernoulli = _core.kl_bernoulli
kl_categorical = _core.kl_categorical
kl_diag_gaussian = _core.kl_diag_gaussian
log_prob_bernoulli = _core.log_prob_bernoulli
log_prob_categorical = _core.log_prob_categorical
log_prob_diag_gaussian = _core.log_prob_diag_gaussian
pack_rows = _core.pack_rows
sample_bernoulli = _core.sample_bernoulli
sample_categorical = _core.sample_categorical
sample_diag_gaussian = _core.sample_diag_gaussian
sample_rows = _core.sample_rows


def __getattr__(name: str) -> object:
    """What processes share, looked up when it is asked for, since most of them share nothing."""
    if name in ("Doorbell", "Slab"):
        return getattr(_core, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
