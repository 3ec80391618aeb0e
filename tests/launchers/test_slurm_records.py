from __future__ import annotations

from pathlib import Path

from clusterenv.launchers.slurm_records import ExitRecords


def test_record_is_known_after_a_look_and_belongs_to_its_incarnation(tmp_path: Path) -> None:
    records = ExitRecords(tmp_path)
    (tmp_path / "worker-3.1.exit").write_text("143 0\n")
    assert records.code(3, 1, restarts=0) is None
    assert records.read()
    assert records.code(3, 1, restarts=0) == 143
    assert records.code(3, 0, restarts=0) is None
    assert records.code(2, 1, restarts=0) is None
    assert not records.read(now=True)  # nothing new


def test_looks_are_seldom_unless_asked_for(tmp_path: Path) -> None:
    records = ExitRecords(tmp_path)
    assert not records.read()
    (tmp_path / "worker-0.0.exit").write_text("0 0\n")
    assert not records.read()
    assert records.read(now=True)
    assert records.code(0, 0, restarts=0) == 0


def test_record_of_an_earlier_run_of_a_requeued_job_does_not_count(tmp_path: Path) -> None:
    records = ExitRecords(tmp_path)
    (tmp_path / "worker-0.0.exit").write_text("0 0\n")
    records.read()
    assert records.code(0, 0, restarts=1) is None
    (tmp_path / "worker-0.0.exit").write_text("7 2\n")
    records.read(now=True)
    assert records.code(0, 0, restarts=1) == 7


def test_folder_that_is_gone_or_a_record_half_written_is_no_error(tmp_path: Path) -> None:
    records = ExitRecords(tmp_path / "gone")
    assert not records.read()
    records = ExitRecords(tmp_path)
    (tmp_path / "worker-0.0.exit").write_text("")
    assert not records.read()
    (tmp_path / "worker-0.0.exit.new").write_text("5 0")
    assert not records.read(now=True)
