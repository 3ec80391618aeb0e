"""The replay buffer, a file that survives whatever ends the process, and what is drawn from it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.replay import Replay, Rows, Sampler

DTYPE = np.dtype([("obs", np.float32, (2,)), ("action", np.int64), ("reward", np.float32)])


def rows(start: int, stop: int) -> Rows:
    """Rows that each say everywhere which number they have."""
    made = np.zeros(stop - start, DTYPE)
    numbers = np.arange(start, stop)
    made["obs"], made["action"], made["reward"] = numbers[:, None], numbers, numbers
    return made


@pytest.mark.parametrize("sizes", [(3,), (10,), (7, 7), (4, 4, 4, 4), (25,), (9, 25, 1), (0, 5)])
@pytest.mark.parametrize("spare", [0, 1, 8, 100])
def test_newest_rows_are_kept_in_order(tmp_path: Path, sizes: tuple[int, ...], spare: int) -> None:
    with Replay(10, DTYPE, tmp_path / "folder" / "replay", spare=spare) as replay:
        for start, size in zip(np.cumsum((0, *sizes)), sizes, strict=False):
            replay.add(rows(int(start), int(start) + size))

        total = sum(sizes)
        assert len(replay) == min(10, total)
        assert np.array_equal(replay.in_order(), rows(max(0, total - 10), total))


def test_every_row_that_is_there_is_sampled_and_no_other(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    with Replay(10, DTYPE, tmp_path / "replay", spare=3) as replay:
        replay.add(rows(0, 4))
        early = replay.sample(200, generator)
        replay.add(rows(4, 13))
        late = replay.sample(400, generator)

    assert set(early["action"]) == set(range(4))
    assert set(late["action"]) == set(range(3, 13))
    assert np.array_equal(late["reward"], late["action"])


def test_samples_are_not_changed_by_later_rows(tmp_path: Path) -> None:
    with Replay(4, DTYPE, tmp_path / "replay") as replay:
        replay.add(rows(0, 4))
        sampled = replay.sample(4, np.random.default_rng(0))
        before = sampled.copy()
        replay.add(rows(4, 8))

    assert np.array_equal(sampled, before)


def test_file_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    with Replay(10, DTYPE, path) as replay:
        replay.add(rows(0, 17))
    with Replay(10, DTYPE, path) as replay:
        assert np.array_equal(replay.in_order(), rows(7, 17))
        replay.add(rows(17, 20))
    with Replay(10, DTYPE, path) as replay:
        assert np.array_equal(replay.in_order(), rows(10, 20))


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from tests.learners.test_replay import DTYPE, rows
from clusterenv.learners.replay import Replay
replay, at = Replay(1000, DTYPE, Path(sys.argv[1])), 0
while True:
    replay.add(rows(at, at + 7))
    at += 7
    if at == 7 * 1000:
        print("going", flush=True)
"""


@pytest.mark.process
def test_killed_process_leaves_whole_rows_in_order(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    code = WRITER.format(path=sys.path)
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"going\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait(timeout=30)

    with Replay(1000, DTYPE, path) as replay:
        assert 1000 - 7 <= len(replay) <= 1000
        assert replay.end >= 7000
        assert np.array_equal(replay.in_order(), rows(replay.first, replay.end))


def test_rows_that_are_being_overwritten_are_not_there(tmp_path: Path) -> None:
    """What a file says when its process was killed between making room and counting."""
    path = tmp_path / "replay"
    with Replay(10, DTYPE, path) as replay:
        replay.add(rows(0, 10))
        replay._counters[0] = 3  # room for three rows, of which none is counted
        replay._rows[:2] = rows(98, 100)

    with Replay(10, DTYPE, path) as replay:
        assert np.array_equal(replay.in_order(), rows(3, 10))
        replay.add(rows(10, 14))
        assert np.array_equal(replay.in_order(), rows(4, 14))


def test_file_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    with (
        Replay(10, DTYPE, path),
        pytest.raises(ConfigError, match=r"replay_file is .*; expected a file that no other run uses"),
    ):
        Replay(10, DTYPE, path)


def test_file_of_other_rows_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    Replay(10, DTYPE, path).close()

    with pytest.raises(ConfigError, match=r'expected one of \{"capacity": 11, .*, not of \{"capacity": 10, '):
        Replay(11, DTYPE, path)
    with pytest.raises(ConfigError, match=r"reward.*, not of "):
        Replay(10, np.dtype([("reward", np.float64)]), path)


def test_file_that_is_no_buffer_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")

    with pytest.raises(ConfigError, match="expected a file that `clusterenv train` made"):
        Replay(10, DTYPE, path)

    assert path.read_text() == "mine"


def test_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    Replay(10, DTYPE, path).close()
    with path.open("r+b") as file:
        file.truncate(5000 - 900)

    with pytest.raises(ConfigError, match="expected a whole file, which this is not"):
        Replay(10, DTYPE, path)


def test_file_that_cannot_be_made_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a file that can be made \(.*\)"):
        Replay(10, DTYPE, Path("/proc/replay"))
    with pytest.raises(ConfigError, match=r"expected a file that can be made \(No space left|File too large"):
        Replay(1 << 50, DTYPE, tmp_path / "huge")

    assert list(tmp_path.iterdir()) == []


# --- going on from a milestone ---------------------------------------------------------------------------


def test_rows_of_a_milestone_are_there_after_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    with Replay(10, DTYPE, path, spare=6) as replay:
        for start, stop in ((0, 10), (10, 17)):
            replay.add(rows(start, stop))
        state = replay.state_dict()
        replay.add(rows(17, 23))
    with Replay(10, DTYPE, path, spare=6) as replay:
        assert replay.end == 23
        replay.load_state_dict(state)
        assert np.array_equal(replay.in_order(), rows(7, 17))
        replay.add(rows(17, 24))
        with pytest.raises(ConfigError, match=r"expected the file in which .* had its transitions 7 to 16"):
            replay.load_state_dict(state)


def test_rows_of_a_milestone_are_not_looked_for_in_another_file(tmp_path: Path) -> None:
    states = []
    for name in ("one", "other"):
        with Replay(10, DTYPE, tmp_path / name) as replay:
            replay.add(rows(0, 5))
            states.append(replay.state_dict())
    with (
        Replay(10, DTYPE, tmp_path / "one") as replay,
        pytest.raises(ConfigError, match="expected the file in which the run to resume"),
    ):
        replay.load_state_dict(states[1])


def test_file_with_too_little_room_between_milestones_is_refused(tmp_path: Path) -> None:
    Replay(10, DTYPE, tmp_path / "replay", spare=4).close()

    with pytest.raises(
        ConfigError, match=r"for the 9 rows between two milestones, not for 4: .*smaller by 5"
    ):
        Replay(10, DTYPE, tmp_path / "replay", spare=9)


def test_sampler_draws_so_much_for_each_row_and_goes_on_where_it_was(tmp_path: Path) -> None:
    def made() -> Sampler:
        return Sampler(seed=3, batch_size=4, replay_ratio=1.5, learning_starts=8)

    sampler = made()
    with Replay(100, DTYPE, tmp_path / "replay") as replay:
        replay.add(rows(0, 7))
        assert list(sampler.batches(replay, 7)) == []
        replay.add(rows(7, 10))
        assert [len(batch) for batch in sampler.batches(replay, 3)] == [4]  # 0.5 are owed
        state, again = sampler.state_dict(), made()
        again.load_state_dict(state)
        one, other = list(sampler.batches(replay, 5)), list(again.batches(replay, 5))

    assert len(one) == len(other) == 2
    assert np.array_equal(one, other)
