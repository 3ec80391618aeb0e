"""A game of Procgen that tells how its episodes end, which libenv does not.

A game goes on to its next level within the step that ends the one before, so that the last observation is
never painted, and it does not tell a time limit from an end of the game. Two places in the memory of a game
are touched for this: its table of virtual methods and its time limit. Where these are is true of the one
build of the library that is shipped with this package; `library.load` checks its hash.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from weakref import WeakValueDictionary

from clusterenv_procgen.library import Arrays, Handle, Pixels

_GAMES_OFFSET = 0x58  # of the vector of games in what libenv_make returns
_TIMEOUT_OFFSET = 0x279C  # of the time limit in a game, in steps
_HEADER = 2  # words in front of a table of virtual methods
_METHODS = 31  # in the table of each game
_OBSERVE, _GAME_RESET = 2, 4  # their places in it
_NEVER = 2**31 - 1
_HEADER_BYTES = _HEADER * ctypes.sizeof(ctypes.c_void_p)

_Method = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Game(Handle):
    """One game, with its row of the arrays. It has no time limit, and its last observations are kept."""

    def __init__(
        self,
        arrays: Arrays,
        row: int,
        options: Mapping[str, str | int | bool],
        *,
        rand_seed: int,
        final_obs: Pixels,
        paint_final: bool,
    ) -> None:
        """The game is at the start of its first level.

        Args:
            arrays: as for `Handle`.
            row: its place in the arrays.
            options: as `Options.for_library` gives them.
            rand_seed: 0 to 2**31 - 1; the sequence of levels follows from it.
            final_obs: [n, 64, 64, 3] whose row is written when a level ends.
            paint_final: then the frame is painted as well.

        Raises:
            LibraryMissing: if the library cannot be used here.
        """
        super().__init__(arrays, range(row, row + 1), options, rand_seed=rand_seed)
        games = ctypes.c_void_p.from_address((self.handle.value or 0) + _GAMES_OFFSET).value
        self.address = ctypes.c_void_p.from_address(games or 0).value or 0
        timeout = ctypes.c_int32.from_address(self.address + _TIMEOUT_OFFSET)
        self.time_limit = int(timeout.value)
        """After how many steps Procgen would end an episode."""
        timeout.value = _NEVER
        self._obs, self._final_obs = arrays.obs[row], final_obs[row]
        self._paint_final = paint_final
        _keep_endings(self)

    def keep_ending(self) -> None:
        """What is in the row of observations is the last one of a level."""
        self._final_obs[:] = self._obs
        if self._paint_final:
            self.observe()


_games: WeakValueDictionary[int, Game] = WeakValueDictionary()  # by address
_tables: dict[int, ctypes.Array[ctypes.c_void_p]] = {}  # address of a table of methods -> ours in its place
_originals: dict[int, tuple[Callable[..., None], Callable[..., None]]] = {}  # address of ours -> methods


def _keep_endings(game: Game) -> None:
    """`keep_ending` of the game is called whenever its level is about to be replaced.

    Procgen's step resets the game, if it has ended, before it is painted. The reset calls the virtual method
    that makes the new level; the game is given a table of methods with our function in that place, which has
    the old level painted first.
    """
    table = ctypes.c_size_t.from_address(game.address)
    if table.value not in _tables:
        words = (ctypes.c_void_p * (_HEADER + _METHODS)).from_address(table.value - _HEADER_BYTES)
        ours = type(words)(*words)
        observe, game_reset = (_Method(words[_HEADER + place] or 0) for place in (_OBSERVE, _GAME_RESET))
        _originals[ctypes.addressof(ours) + _HEADER_BYTES] = observe, game_reset
        ours[_HEADER + _GAME_RESET] = ctypes.cast(_before_reset, ctypes.c_void_p)
        _tables[table.value] = ours
    table.value = ctypes.addressof(_tables[table.value]) + _HEADER_BYTES
    _games[game.address] = game


def _call_before_reset(address: int) -> None:
    observe, game_reset = _originals[ctypes.c_size_t.from_address(address).value]
    game = _games.get(address)
    if game is not None:
        observe(address)
        game.keep_ending()
    game_reset(address)


_before_reset = _Method(_call_before_reset)
