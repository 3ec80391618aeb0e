"""Procgen's compiled library through its C interface, libenv."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "library"
LIBRARY = "procgen/data/prebuilt/libenv.so"
ASSETS = "procgen/data/assets/"
SHA256 = "4ce4e3d8e4dcae5a112bfcd6f8ee910ab7a2183a1230f0cbec38502fb5e1b0e2"

OBS_SHAPE = (64, 64, 3)
FRAME_SHAPE = (512, 512, 3)

Address = ctypes.c_void_p
Pixels = NDArray[np.uint8]


class LibraryMissing(ImportError):
    """Procgen's compiled library cannot be used here; the message says what to do."""


class _Option(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 128),
        ("dtype", ctypes.c_int),
        ("count", ctypes.c_int),
        ("data", Address),
    )


class _Options(ctypes.Structure):
    _fields_ = (("items", ctypes.POINTER(_Option)), ("count", ctypes.c_int))


class _Buffers(ctypes.Structure):
    _fields_ = (("ob", Address), ("rew", Address), ("first", Address), ("info", Address), ("ac", Address))


_UINT8, _INT32 = 1, 2  # libenv's names of types


@functools.cache
def load() -> ctypes.CDLL:
    """The library, loaded once for a process; its calls let other threads of Python run.

    Raises:
        LibraryMissing: if it is not there, is another build, or needs what is not installed.
    """
    path = FOLDER / LIBRARY
    if not path.exists():
        raise LibraryMissing(f"{path} is missing; install the plugin with pip, which fetches the library")
    seen = hashlib.sha256(path.read_bytes()).hexdigest()
    if seen != SHA256:
        raise LibraryMissing(f"{path} has the SHA-256 {seen}; expected {SHA256}: install the plugin again")
    try:
        # One of the libraries looks for this one below the current folder; loaded before, it is found.
        for beside in (FOLDER / "procgen_mirror.libs").glob("libelf-*"):
            ctypes.CDLL(str(beside))
        # Names are looked up in its own libraries first, so that another Qt in the process does no harm.
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    except OSError as error:
        raise LibraryMissing(
            f"Procgen's library cannot be loaded: {error}. It needs the libraries of OpenGL and "
            "GLib, but no display: apt-get install libgl1 libglib2.0-0 (dnf install mesa-libGL glib2)"
        ) from error
    library.libenv_make.restype = Address
    library.libenv_make.argtypes = (ctypes.c_int, _Options)
    library.libenv_set_buffers.argtypes = (Address, Address)
    for name in ("libenv_act", "libenv_observe", "libenv_close"):
        getattr(library, name).argtypes = (Address,)
        getattr(library, name).restype = None
    return library


class Arrays:
    """What n games read and write, [n, ...]."""

    def __init__(self, n: int, *, render: bool = False) -> None:
        """All zero; with `render` there is room for frames."""
        self.actions = np.zeros(n, np.int32)
        self.obs = np.zeros((n, *OBS_SHAPE), np.uint8)
        self.rewards = np.zeros(n, np.float32)
        self.first = np.zeros(n, np.bool_)
        """[n] whether the observation is the first of an episode."""
        self.level_seed = np.zeros(n, np.int32)
        """[n] the level that is seen."""
        self.prev_level_seed = np.zeros(n, np.int32)
        """[n] the level that the last action was for."""
        self.prev_level_complete = np.zeros(n, np.bool_)
        """[n] whether that action solved it."""
        self.frames = np.zeros((n, *FRAME_SHAPE), np.uint8) if render else None
        """[n, 512, 512, 3] for people, or None."""

    def infos(self) -> list[NDArray[Any]]:
        """The arrays of what libenv calls infos, in its order."""
        infos = [self.prev_level_seed, self.prev_level_complete, self.level_seed]
        return infos if self.frames is None else [*infos, self.frames]


class Handle:
    """Games of one kind that are stepped together, as libenv has them. Not thread-safe.

    A game that ends goes on with its next level in the same step, and then `first` is set.
    """

    def __init__(
        self,
        arrays: Arrays,
        rows: range,
        options: Mapping[str, str | int | bool],
        *,
        rand_seed: int,
        num_threads: int = 0,
    ) -> None:
        """The games are at the start of their first levels, with their rows of the arrays written.

        Args:
            arrays: of these games and of others; they must live as long as the handle.
            rows: where in the arrays these games are.
            options: as `Options.for_library` gives them.
            rand_seed: 0 to 2**31 - 1; the sequences of levels follow from it.
            num_threads: threads of the library that take the steps; 0: the one that calls `act`.

        Raises:
            LibraryMissing: if the library cannot be used here.
        """
        self.handle = Address()
        self._library = load()
        every = {
            **options,
            "rand_seed": rand_seed,
            "num_threads": num_threads,
            "render_human": arrays.frames is not None,
            "resource_root": str(FOLDER / ASSETS) + os.sep,
        }
        self.handle = Address(self._library.libenv_make(len(rows), _packed(every)))

        def places(*of: NDArray[Any]) -> ctypes.Array[ctypes.c_void_p]:
            return (Address * (len(of) * len(rows)))(*(a[row:].ctypes.data for a in of for row in rows))

        start = slice(rows.start, None)
        self._kept = arrays, places(arrays.obs), places(*arrays.infos()), places(arrays.actions)
        obs, infos, actions = map(ctypes.addressof, self._kept[1:])
        rewards, first = arrays.rewards[start].ctypes.data, arrays.first[start].ctypes.data
        buffers = _Buffers(obs, rewards, first, infos, actions)
        self._library.libenv_set_buffers(self.handle, ctypes.byref(buffers))
        self._library.libenv_observe(self.handle)

    def act(self) -> None:
        """All games begin a step with the actions in their arrays; -1 ends a level.

        Without threads of the library it has been taken on return, else when `observe` returns.
        """
        self._library.libenv_act(self.handle)

    def observe(self) -> None:
        """The step has been taken, and the frames, if there are any, are painted."""
        self._library.libenv_observe(self.handle)

    def __del__(self) -> None:
        """The games are gone."""
        self.close()

    def close(self) -> None:
        """The games are gone, and their arrays may go. May be called again."""
        if self.handle:
            self._library.libenv_close(self.handle)
            self.handle = Address()


def _packed(options: Mapping[str, str | int | bool]) -> _Options:
    """The options for libenv_make; what they point to lives as long as they."""
    items = (_Option * len(options))()
    kept = []
    for item, (name, value) in zip(items, options.items(), strict=True):
        data: ctypes.Array[ctypes.c_char] | ctypes.c_uint8 | ctypes.c_int32
        if isinstance(value, str):
            text = value.encode()
            data, item.dtype, item.count = ctypes.create_string_buffer(text), _UINT8, len(text)
        elif isinstance(value, bool):
            data, item.dtype, item.count = ctypes.c_uint8(value), _UINT8, 1
        else:
            data, item.dtype, item.count = ctypes.c_int32(value), _INT32, 1
        item.name, item.data = name.encode(), ctypes.addressof(data)
        kept.append(data)
    packed = _Options(items, len(options))
    packed.kept = kept
    return packed
