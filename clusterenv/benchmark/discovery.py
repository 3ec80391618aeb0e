"""What many installed plugins add to the start of a program that looks one name up."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from clusterenv.benchmark.report import Spread
from clusterenv.errors import ConfigError

HOOK = """
from clusterenv_registry import hookimpl

@hookimpl
def clusterenv_register_envs():
    return {"PluginNUMBER": "plugin_NUMBER:Env"}
"""

CHILD = """
import sys, time
sys.path[:0] = sys.argv[1:]
began = time.process_time()
from clusterenv_registry import plugins
imported = time.process_time()
found = plugins.installed()
done = time.process_time()
print(imported - began, done - imported, len(found.entries))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscoveryBenchmark:
    """CPU time of finding and loading installed plugins, with `count` more of them and without, in turn."""

    count: int = 200
    """Plugins to lay down in a folder of their own."""
    repeats: int = 15
    """Fresh processes for each."""

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("count", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a whole number from 1")

    def run(self) -> None:
        """Measure and print."""
        imports, without, with_them = self.measure()
        added = Spread.of([1e3 * (many - few) for many, few in zip(with_them, without, strict=True)])
        sys.stdout.write(
            f"import of pluggy and the registry: {1e3 * Spread.of(imports).median:.1f} ms of CPU\n"
            f"{self.count} plugins add {added.median:.1f} ms ({added.min:.1f} to {added.max:.1f}) of CPU\n"
        )

    def measure(self) -> tuple[list[float], list[float], list[float]]:
        """CPU seconds of the import, of discovery without the plugins, and with them."""
        imports, without, with_them = [], [], []
        with TemporaryDirectory() as folder:
            _lay_down(Path(folder), self.count)
            _child([folder], self.count)  # compiles their modules, as an installer does
            for _ in range(self.repeats):
                imported, few, _ = _child([], 0)
                _, many, _ = _child([folder], self.count)
                imports.append(imported)
                without.append(few)
                with_them.append(many)
        return imports, without, with_them


def _lay_down(site: Path, count: int) -> None:
    """Distributions with one module each, as an installer leaves them."""
    for number in range(count):
        (site / f"plugin_{number}.py").write_text(HOOK.replace("NUMBER", str(number)))
        info = site / f"plugin_{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{number}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[clusterenv]\nenvs = plugin_{number}\n")


def _child(sites: Sequence[str], least: int) -> tuple[float, float, int]:
    """CPU seconds of import and of discovery in a fresh process, and the environments found."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *sites], capture_output=True, text=True, check=True, timeout=120
    )
    imported, found, entries = done.stdout.split()
    assert int(entries) >= least, f"{entries} environments were found, of {least}"
    return float(imported), float(found), int(entries)
