"""Films of episodes: one mp4 file for each, written while it is played."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.errors import ConfigError

CURE = 'pip install "clusterenv-rl[video]"'


class Films:
    """Writes `episode-0000.mp4` and so on into a folder; as a context it closes the one under way."""

    def __init__(self, folder: Path, frames_per_s: float) -> None:
        """The folder is there, and nothing in it is changed yet.

        Raises:
            ConfigError: if the package that writes films is missing, or the folder cannot be made.
        """
        try:
            self._write_frames = import_module("imageio_ffmpeg").write_frames
        except ImportError as error:
            raise ConfigError("video", str(folder), f"None, or imageio-ffmpeg installed: {CURE}") from error
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                "video", str(folder), f"a folder that can be made ({error.strerror})"
            ) from error
        self._folder = folder
        self._frames_per_s = frames_per_s
        self._episode = 0
        self._writer: Any = None

    def __enter__(self) -> Films:
        """The films themselves."""
        return self

    def __exit__(self, _: type[BaseException] | None, __: object, ___: TracebackType | None) -> None:
        """The last film is whole, if only up to what was added."""
        self._close()

    def add(self, frame: object) -> None:
        """Add a picture [height, width, 3] uint8 to the film of this episode.

        Raises:
            ConfigError: if it is no picture, or the film cannot be written.
        """
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
            raise ConfigError("video", str(self._folder), "an environment that renders pictures (rgb_array)")
        picture: NDArray[np.uint8] = np.ascontiguousarray(frame[:, :, :3])
        try:
            if self._writer is None:
                self._writer = self._begun(picture.shape[1], picture.shape[0])
            self._writer.send(picture)
        except OSError as error:
            self._writer = None
            expected = f"a folder in which films can be written ({error.strerror or 'ffmpeg has failed'})"
            raise ConfigError("video", str(self._folder), expected) from error

    def end_episode(self) -> None:
        """What is added next is of another episode."""
        self._close()
        self._episode += 1

    def _begun(self, width: int, height: int) -> Any:  # noqa: ANN401 - a generator that takes frames
        path = self._folder / f"episode-{self._episode:04d}.mp4"
        writer = self._write_frames(str(path), (width, height), fps=self._frames_per_s, macro_block_size=2)
        next(writer)
        return writer

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
