"""Put the compiled library of Procgen into the wheel of this plugin.

OpenAI's package has no version for today's Python, and `procgen-mirror`, which has, pins NumPy below 2 and
the old `gym`, so that it cannot be a dependency. Its wheel is downloaded by pip instead, and the compiled
library, the libraries beside it, the images and the licence are packed under `clusterenv_procgen/library`.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "procgen-mirror==0.10.7"
SHA256 = "992aff14a0bc39c5fd594b68c3243c06e01b1a94f47ff261e60cc316c01660a7"
TAG = "py3-none-manylinux_2_17_x86_64"
DOWNLOAD = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
DOWNLOAD += ["--platform", "manylinux2014_x86_64", "--only-binary", ":all:", "--no-deps"]
KEPT = ("procgen/data/", "procgen_mirror.libs/", "procgen_mirror-0.10.7.dist-info/LICENSE")


class ProcgenLibrary(BuildHookInterface):  # type: ignore[type-arg,misc]  # hatchling is there while building only
    """Unpacks the library before the wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """The library is beside the sources, and the wheel says what it runs on."""
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            seen = f"{sys.platform} on {platform.machine()}"
            raise RuntimeError(f"clusterenv-procgen can be built for Linux on x86_64 only; this is {seen}")
        unpack(Path(self.root) / "src" / "clusterenv_procgen" / "library")
        build_data["pure_python"] = False
        build_data["tag"] = TAG
        build_data["artifacts"].append("/src/clusterenv_procgen/library/")


def unpack(library: Path) -> None:
    """`library` holds the files of the downloaded wheel that are needed; nothing is done if it is there."""
    if library.exists():
        return
    with TemporaryDirectory(dir=library.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, *DOWNLOAD, "-d", folder, PACKAGE], check=True, timeout=600)
        (wheel,) = Path(folder).glob("*.whl")
        seen = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if seen != SHA256:
            raise RuntimeError(f"the wheel of {PACKAGE} has the SHA-256 {seen}; expected {SHA256}")
        unpacked = Path(folder) / "library"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if name.startswith(KEPT)])
        shutil.move(unpacked, library)
