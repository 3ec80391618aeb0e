"""The code of a registered file or package: read where it lies, run where there may be no copy of it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from clusterenv_registry.entry import FileSource
from clusterenv_registry.errors import SourceError

MOST_BYTES = 32 << 20
"""Of one environment's code, which travels to every worker."""

_INIT = "__init__.py"


@dataclass(frozen=True, slots=True)
class Code:
    """What a FileSource held when the head read it."""

    source: FileSource
    files: Mapping[str, bytes] = field(repr=False)
    """By path inside the package; a single file has its own name."""
    sha256: str

    def __str__(self) -> str:
        """As the source."""
        return str(self.source)

    @property
    def is_package(self) -> bool:
        """Whether it is a folder of modules."""
        return Path(self.source.path).suffix != ".py"


def read(source: FileSource) -> Code:
    """The code of `source` as it is now.

    Raises:
        SourceError: if it cannot be read, or is too large to send.
    """
    path = Path(source.path)
    try:
        files = _package(path) if path.is_dir() else {path.name: path.read_bytes()}
    except FileNotFoundError:
        raise SourceError(f"{path} is not there on {socket.gethostname()}; was it moved?") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read on {socket.gethostname()}: {error.strerror}") from error
    return Code(source, files, digest(files))


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over names and contents, in hexadecimal digits."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(f"{len(name)} {name} {len(content)} ".encode())
        total.update(content)
    return total.hexdigest()


def module_of(code: Code) -> ModuleType:
    """The module that `code` defines, run once in a process for each content.

    Raises:
        SourceError: if the code is not what the head read, or its package's name is taken.
    """
    if digest(code.files) != code.sha256:
        raise SourceError(f"the code of {code} is not what its hash says; it was changed on its way here")
    return _package_module(code) if code.is_package else _file_module(code)


def _package(folder: Path) -> dict[str, bytes]:
    """Everything in a package but caches and hidden files; data files belong to it."""
    if not (folder / _INIT).is_file():
        raise SourceError(f"{folder} has no {_INIT}; expected a package or a .py file")
    files: dict[str, bytes] = {}
    left = MOST_BYTES
    for path in sorted(_files(folder)):
        left -= path.stat().st_size
        if left < 0:
            raise SourceError(
                f"{folder} holds more than {MOST_BYTES >> 20} MiB, too much to send to every worker; keep "
                "data elsewhere, or install the package on the nodes and register package.module:Class"
            )
        files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(root, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _file_module(code: Code) -> ModuleType:
    path = code.source.path
    name = f"_clusterenv_file_{hashlib.sha256((path + code.sha256).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = path
    (content,) = code.files.values()
    with _only_if_it_runs(module):
        exec(compile(content, path, "exec"), module.__dict__)
    return module


def _package_module(code: Code) -> ModuleType:
    name = Path(code.source.path).name
    known = sys.modules.get(name)
    if known is not None:
        where = getattr(known, "__path__", None)
        if where and _digest_of(Path(next(iter(where)))) == code.sha256:
            return known
        raise SourceError(
            f"{code} is a package {name!r}, but another module of that name is imported here already "
            f"({getattr(known, '__file__', None)}); rename the package"
        )
    folder = _folder_with(code)
    spec = importlib.util.spec_from_file_location(
        name, folder / _INIT, submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _only_if_it_runs(module):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _only_if_it_runs(module: ModuleType) -> Iterator[None]:
    """`module` can be imported while it runs, as dataclasses and pickle need, and after it has run well."""
    sys.modules[module.__name__] = module
    try:
        yield
    except BaseException:
        for name in [name for name in sys.modules if name.partition(".")[0] == module.__name__]:
            del sys.modules[name]
        raise


def _folder_with(code: Code) -> Path:
    """A folder that holds just this code: its own, if it is here and unchanged, else a copy."""
    from multiprocessing.util import get_temp_dir  # private to this user, and removed with the run

    own = Path(code.source.path)
    if _digest_of(own) == code.sha256:
        return own
    copy = Path(get_temp_dir()) / f"code-{code.sha256[:16]}" / own.name
    if not copy.is_dir():
        _unpack(code, copy)
    return copy


def _unpack(code: Code, folder: Path) -> None:
    """Write the files so that `folder` is there as a whole or not at all; others may be writing it too."""
    folder.parent.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    for name, content in code.files.items():
        path = scratch / name
        if not path.resolve().is_relative_to(scratch.resolve()):
            raise SourceError(f"the code of {code} has a file {name!r}, which lies outside it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with contextlib.suppress(OSError):  # another process was first
        scratch.replace(folder)


def _digest_of(folder: Path) -> str | None:
    try:
        return digest(_package(folder))
    except (SourceError, OSError):
        return None
