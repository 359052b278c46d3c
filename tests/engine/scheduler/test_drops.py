"""Dropped files are neither needed nor written again, wherever a driver is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from datakit.engine.ledger.ledger import AnyLine, DroppedLine, read_ledger, read_segments
from datakit.engine.ledger.status import read_status
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler import drops, earlier_results
from datakit.engine.scheduler.driver import run_step
from datakit.errors import PartialError
from tests.support.engine.dropping import FOLDERS, GATE, GATED, dropping_step, plan
from tests.support.engine.engine_tasks import number_step, numbers
from tests.support.engine.inline_executor import InlineExecutor
from tests.support.engine.runs import attempts, outputs, run_numbers, run_step_of, wait_until
from tests.support.paths import REPOSITORY


@pytest.fixture(autouse=True)
def _drop_small_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drops, "DROP_BYTES", 1)


def finish(directory: Path, tasks: int = 2, middle: str = "third") -> dict[str, bytes]:
    """Run the step, or the rest of it, and return its files."""
    run_step_of(dropping_step(str(directory)), plan(tasks, middle))
    return outputs(directory)


def content(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of the last phase, without the lines that list other exchange folders."""
    return {path: data.partition(b"beside")[0] for path, data in files.items() if path.startswith("last/")}


def driver(directory: Path, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start a driver that kills itself at a given moment of the removal of a folder. arguments: see `dropping.main`."""
    command = [sys.executable, "-m", "tests.support.engine.dropping", str(directory), *arguments]
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **variables})


def killed(directory: Path, folder: str, moment: str, middle: str = "third") -> None:
    assert driver(directory, folder, moment, middle).wait(timeout=120) == -signal.SIGKILL
    assert not (directory / "manifest.json").exists()


def done(directory: Path) -> Counter[str]:
    """Count the tasks of each phase that were done, including repetitions."""
    return Counter(line.phase for line in attempts(directory) if line.result is not None)


def test_a_phase_drops_folders_that_no_later_phase_reads(tmp_path: Path) -> None:
    """When the last phase ran, only the folder that it read existed, so the disk holds the files of two phases."""
    files = finish(tmp_path)
    lines = [line for line in read_ledger(str(tmp_path)) if isinstance(line, DroppedLine)]
    assert [(line.by, line.folders) for line in lines] == [
        (by, [folder]) for folder, by in zip(FOLDERS, (*FOLDERS[1:], "last"), strict=True)
    ]
    assert b"last/1.txt\nbeside []" in files["last/1.txt"]
    assert not (tmp_path / "exchange").exists()


def test_small_folders_stay_until_the_step_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drops, "DROP_BYTES", 1 << 20)
    assert b"beside ['first', 'second', 'third']" in finish(tmp_path)["last/1.txt"]
    assert not any(isinstance(line, DroppedLine) for line in read_ledger(str(tmp_path)))


@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_a_killed_driver_repeats_nothing(tmp_path: Path, moment: str) -> None:
    killed(tmp_path / "killed", "second", moment)
    assert done(tmp_path / "killed") == {"first": 2, "second": 2, "third": 2}
    assert finish(tmp_path / "killed") == finish(tmp_path / "calm")
    assert done(tmp_path / "killed") == dict.fromkeys((*FOLDERS, "last"), 2)
    status = read_status(str(tmp_path / "killed"))
    assert (status.state, status.unknown_lines) == ("done", 0)


def test_dropped_files_are_written_again_if_the_files_made_from_them_are_lost(tmp_path: Path) -> None:
    """They are dropped again, so the disk holds no more than in a run that was not interrupted."""
    killed(tmp_path / "killed", "third", "after")
    (tmp_path / "killed" / "exchange" / "fourth" / "1-of-2.txt").unlink()
    assert finish(tmp_path / "killed") == finish(tmp_path / "calm")
    assert done(tmp_path / "killed") == {"first": 4, "second": 4, "third": 4, "fourth": 3, "last": 2}


def test_dropped_files_are_written_again_if_later_tasks_have_changed(tmp_path: Path) -> None:
    killed(tmp_path / "killed", "third", "after")
    assert content(finish(tmp_path / "killed", tasks=3)) == content(finish(tmp_path / "calm", tasks=3))
    assert done(tmp_path / "killed") == {"first": 4, "second": 5, "third": 4, "fourth": 4, "last": 2}


def test_a_version_that_does_not_know_the_lines_repeats_the_work(tmp_path: Path) -> None:
    killed(tmp_path / "killed", "third", "after")
    for segment in (tmp_path / "killed" / "ledger").iterdir():
        segment.write_bytes(segment.read_bytes().replace(b'"kind":"dropped"', b'"kind":"newer"'))
    assert content(finish(tmp_path / "killed")) == content(finish(tmp_path / "calm"))
    assert done(tmp_path / "killed") == {"first": 4, "second": 4, "third": 4, "fourth": 2, "last": 2}


def test_a_second_driver_continues_from_the_results_of_the_one_that_dropped_its_inputs(tmp_path: Path) -> None:
    gate, shared = tmp_path / "gate", tmp_path / "shared"
    slow = driver(shared, "none", "never", **{GATE: str(gate)})
    wait_until(lambda: gate.with_suffix(".waiting").exists())
    before = done(shared)
    killed(shared, "third", "after")
    gate.touch()
    assert slow.wait(timeout=120) == 0
    assert outputs(shared) == finish(tmp_path / "calm")
    assert before == {"first": 2, "second": 2}
    assert done(shared)["last"] == 2


@pytest.mark.parametrize("gated", ["third", "fourth"])
def test_a_second_driver_continues_if_files_are_dropped_that_both_have_restored(tmp_path: Path, gated: str) -> None:
    """It was restoring them in phase `third`, or reading the restored ones in phase `fourth`."""
    gate, shared = tmp_path / "gate", tmp_path / "shared"
    killed(shared, "third", "after")
    (shared / "exchange" / "fourth" / "1-of-2.txt").unlink()
    slow = driver(shared, "none", "never", **{GATE: str(gate), GATED: gated})
    wait_until(lambda: gate.with_suffix(".waiting").exists())
    killed(shared, "third", "after")
    gate.touch()
    assert slow.wait(timeout=120) == 0
    assert content(outputs(shared)) == content(finish(tmp_path / "calm"))


def test_files_are_not_needed_once_any_phase_has_been_the_last_to_read_them(tmp_path: Path) -> None:
    """A changed setting made another phase the last reader of a folder that had been dropped before."""
    killed(tmp_path / "killed", "second", "after")
    killed(tmp_path / "killed", "other", "after", "other")
    before = done(tmp_path / "killed")
    assert content(finish(tmp_path / "killed", middle="other")) == content(finish(tmp_path / "calm", middle="other"))
    assert done(tmp_path / "killed") == before + Counter(last=2)


def test_a_damaged_leftover_is_not_taken_for_a_dropped_file(tmp_path: Path) -> None:
    """A file in a folder that no driver dropped must exist, even if other folders were dropped."""
    killed(tmp_path / "killed", "second", "after")
    shutil.rmtree(tmp_path / "killed" / "exchange" / "third")
    assert content(finish(tmp_path / "killed")) == content(finish(tmp_path / "calm"))


def test_tasks_that_miss_a_file_do_not_read_the_whole_ledger_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the work would grow with the number of failures times the number of tasks."""
    read: list[str] = []

    def reading(segments: Sequence[str]) -> Iterator[AnyLine]:
        read.extend(segments)
        return read_segments(segments)

    run_numbers(tmp_path / "other")
    (other,) = (tmp_path / "other" / "ledger").iterdir()
    (ledger := tmp_path / "step" / "ledger").mkdir(parents=True)
    shutil.copy(other, ledger)
    monkeypatch.setattr(earlier_results, "read_segments", reading)
    step = number_step(str(tmp_path / "step"))
    with pytest.raises(PartialError, match="4 of 16 tasks failed"):
        run_step(step, numbers(16, dict.fromkeys(range(4), "missing")), InlineExecutor, Observer())
    assert [Path(segment).name for segment in read] == [other.name]
