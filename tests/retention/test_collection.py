"""`datakit gc --unreachable --delete` moves what nothing needs, and harms no run that begins meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from datakit.cli.retention.gc_command import gc
from datakit.engine.scheduler.finish import EXCHANGE_FOLDER
from datakit.errors import RetentionError, StorageError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import COLLECT, EXPIRED_SECONDS, USE, LeaseFile
from datakit.retention import collection, trash
from datakit.retention.collection import Garbage, find_garbage, remove_garbage
from datakit.retention.leftovers import DAY_SECONDS
from datakit.storage import atomic
from tests.support.engine.runs import wait_until
from tests.support.retention.tiny_roots import (
    age,
    begin_step,
    is_whole,
    step_path,
    steps_of,
    training_run,
    trashed,
    write_dataset,
    write_step,
    write_training_run,
)
from tests.support.s3 import s3_root
from tests.support.small_shelf import tree

OLD = {
    step_path("shelf", "dedup", "old"), step_path("shelf", "tokenize", "old"),
    step_path("sources/web", "normalize", "old"),
}  # fmt: skip
OLD_CACHE = step_path("shelf", "tokenize", "old")


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root in which the recipe of `shelf` has changed once."""
    write_dataset(str(tmp_path / "root"), "shelf", "old")
    write_dataset(str(tmp_path / "root"), "shelf", "new")
    return str(tmp_path / "root")


def collect(root: str) -> set[str]:
    """Collect everything, and return the paths of the moved steps."""
    found = remove_garbage(root, 0.0, unreachable=True)
    return {entry.url.removeprefix(f"{root}/") for entry in found.unreachable}


def test_unreachable_steps_are_moved_whole(root: str) -> None:
    before = steps_of(root)
    listed = find_garbage(root, 0.0)
    assert {entry.url.removeprefix(f"{root}/") for entry in listed.unreachable} == OLD
    assert all(entry.bytes > 100 and entry.why == "nothing refers to it" for entry in listed.unreachable)
    assert steps_of(root) == before, "listing removes nothing"
    assert collect(root) == OLD
    assert steps_of(root) == before - OLD
    assert trashed(root) == OLD
    assert collect(root) == set()


def set_back(root: str, step: str) -> None:
    """Make a step two days older."""
    for path in Path(root, step).rglob("*"):
        moment = path.stat().st_mtime - 2 * DAY_SECONDS
        os.utime(path, (moment, moment))


def test_young_unreachable_step_is_kept_with_the_steps_it_was_made_from(root: str) -> None:
    """An interrupted run of a changed recipe has finished a new step, which no record names yet."""
    for step in steps_of(root):
        set_back(root, step)
    young = write_step(root, step_path("shelf", "dedup", "newest"), [step_path("sources/web", "normalize", "old")])
    listed = {entry.url.removeprefix(f"{root}/") for entry in find_garbage(root, DAY_SECONDS).unreachable}
    assert listed == {step for step in OLD if not step.startswith("sources/")}
    kept = {step.url.removeprefix(f"{root}/"): step.why for step in find_garbage(root, DAY_SECONDS).kept}
    why = "changed in the last 24 hours (--older-than)"
    assert kept == {young: why, step_path("sources/web", "normalize", "old"): why}
    set_back(root, young)
    listed = {entry.url.removeprefix(f"{root}/") for entry in find_garbage(root, DAY_SECONDS).unreachable}
    assert listed == {*OLD, young}


def test_reasons_why_superseded_steps_are_kept(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_training_run(root, "tiny", [OLD_CACHE])
    assert gc(root) == 0
    run = f"tiny/{Path(training_run(root, 'tiny')).name}"
    told = " ".join(capsys.readouterr().err.split())
    assert f"3 steps kept, though not current: read by the training run {run}" in told
    assert "0 leftovers" in told
    Path(training_run(root, "tiny")).rename(f"{root}/gone")
    assert gc(root) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "3 steps kept, though not current: changed in the last 24 hours (--older-than)" in told
    assert gc(root, older_than=0.0) == 0
    assert "kept" not in capsys.readouterr().err


def test_delete_without_unreachable_keeps_finished_steps(root: str) -> None:
    begun = step_path("shelf", "dedup", "begun")
    begin_step(root, begun)
    before = steps_of(root)
    found = remove_garbage(root, 0.0)
    assert [entry.url for entry in found.leftovers] == [f"{root}/{begun}"]
    assert found.unreachable == ()
    assert steps_of(root) == before


def test_unfinished_step_in_a_live_lease_is_kept(root: str) -> None:
    begun = step_path("shelf", "dedup", "begun")
    begin_step(root, begun)
    with Lease(root, USE, "run") as lease:
        lease.hold([f"{root}/{begun}"])
        assert find_garbage(root, 0.0).leftovers == ()
        assert remove_garbage(root, 0.0).leftovers == ()
    assert len(remove_garbage(root, 0.0).leftovers) == 1


def test_step_of_exchange_files_is_announced(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, announced = f"{root}/{OLD_CACHE}/{EXCHANGE_FOLDER}", list[str]()
    atomic.commit_bytes(b"x", f"{place}/file")
    monkeypatch.setattr(Lease, "hold", lambda self, steps: announced.extend(steps))
    assert [entry.url for entry in remove_garbage(root, 0.0).leftovers] == [place]
    assert announced == [f"{root}/{OLD_CACHE}"]


def test_step_trashed_twice_on_one_day_keeps_both_copies(root: str) -> None:
    assert OLD_CACHE in collect(root)
    write_step(root, OLD_CACHE)
    assert collect(root) == {OLD_CACHE}
    places = sorted(path.name for path in Path(root, ".trash").glob("*/shelf/tokenize-*"))
    assert places == [Path(OLD_CACHE).name, f"{Path(OLD_CACHE).name}.2"]


def test_step_moved_back_from_the_trash_is_found_again(root: str) -> None:
    collect(root)
    (place,) = Path(root, ".trash").glob(f"*/{OLD_CACHE}")
    trash.move_back(str(place), root, OLD_CACHE)
    assert is_whole(root, OLD_CACHE)


def test_trash_is_emptied_after_fourteen_days(root: str) -> None:
    collect(root)
    (day,) = Path(root, ".trash").iterdir()
    for name in ("2020-01-01", "not-a-day", "2020-01-01x"):
        (Path(root, ".trash", name) / "shelf").mkdir(parents=True)
        (Path(root, ".trash", name) / "shelf" / "file").write_text("x")
    (Path(root) / "precious").mkdir()
    (Path(root) / "precious" / "file").write_text("x")
    Path(root, ".trash", "2020-01-02").symlink_to(Path(root, "precious"))
    listed = find_garbage(root, 0.0).trash
    assert [(entry.url, entry.bytes) for entry in listed] == [(f"{root}/.trash/2020-01-01", 1)]
    assert remove_garbage(root, 0.0).trash == ()
    assert Path(root, ".trash", "2020-01-01").exists(), "--delete alone removes leftovers only"
    assert len(remove_garbage(root, 0.0, unreachable=True).trash) == 1
    left = sorted(path.name for path in Path(root, ".trash").iterdir())
    assert left == ["2020-01-01x", "2020-01-02", day.name, "not-a-day"]
    assert Path(root, "precious", "file").exists()


def test_run_that_begins_between_listing_and_announcement_keeps_its_step(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is seen when everything is read for the second time."""
    with Lease(root, USE, "run") as lease:

        def list_then_run(*arguments: object) -> Garbage:
            found = find_garbage(root, 0.0)
            lease.hold([f"{root}/{OLD_CACHE}"])
            return found

        monkeypatch.setattr(collection, "find_garbage", list_then_run)
        assert collect(root) == set()
    assert steps_of(root) >= OLD


def test_step_is_moved_back_if_the_announcement_expired_before_the_move(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process sleeps between its last check and its move, and a run ends the announcement meanwhile."""
    moved_in = trash.move_in

    def sleep_then_move(root: str, step: str) -> str:
        age(root, ".leases", EXPIRED_SECONDS)
        lease.hold([f"{root}/{path}" for path in OLD])
        return moved_in(root, step)

    monkeypatch.setattr(trash, "move_in", sleep_then_move)
    before = steps_of(root)
    with Lease(root, USE, "run") as lease, pytest.raises(StorageError, match="did not renew it"):
        collect(root)
    assert steps_of(root) == before
    assert all(is_whole(root, step) for step in before)


def test_lease_that_comes_too_late_finds_no_half_of_its_steps(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that names only a cache waits while the cache and then its inputs are moved."""
    moved_in = trash.move_in

    def move_then_lease(root: str, step: str) -> str:
        if not Path(root, ".leases", "use-late.json").exists():
            content = LeaseFile(USE, [OLD_CACHE], "host", 1, "datakit train")
            Path(root, ".leases", "use-late.json").write_bytes(msgspec.json.encode(content))
        return moved_in(root, step)

    monkeypatch.setattr(trash, "move_in", move_then_lease)
    assert collect(root) == OLD
    assert steps_of(root).isdisjoint(OLD)


def test_two_collections_at_once_are_refused(root: str) -> None:
    with Lease(root, COLLECT, "datakit gc") as other:
        other.hold([f"{root}/x/dedup-000000000000"])
        with pytest.raises(RetentionError, match=r"datakit gc \(process .* is removing steps .* wait for it to end"):
            collect(root)
        age(root, ".leases", EXPIRED_SECONDS)
        assert collect(root) == OLD


def test_kill_between_two_moves_leaves_only_whole_steps(root: str) -> None:
    """A dead collection delays nobody for longer than its announcement lives, and the next one goes on."""
    before = steps_of(root)
    child = os.fork()
    if child == 0:
        moved_in = trash.move_in

        def move_and_die(root: str, step: str) -> str:
            moved_in(root, step)
            os._exit(9)

        trash.move_in = move_and_die
        collect(root)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(trashed(root)) == 1
    assert steps_of(root) | trashed(root) == before
    age(root, ".leases", EXPIRED_SECONDS)
    assert collect(root) | trashed(root) == OLD


def test_nothing_outside_of_the_root_is_touched(root: str, tmp_path: Path) -> None:
    """Links in place of datasets, sources and steps lead out of the root; what is behind them stays."""
    outside = str(tmp_path / "outside")
    write_dataset(outside, "mine", "old")
    write_dataset(outside, "mine", "new")
    begin_step(outside, step_path("mine", "dedup", "begun"))
    Path(root, "mine").symlink_to(Path(outside, "mine"))
    Path(root, "sources", "web2").symlink_to(Path(outside, "sources", "web"))
    Path(root, "shelf", "dedup-00000000000a").symlink_to(Path(outside, step_path("mine", "dedup", "old")))
    before = tree(Path(outside), without=())
    found = find_garbage(root, 0.0)
    assert {entry.url.removeprefix(f"{root}/") for entry in found.unreachable} == OLD
    assert len(found.linked) > 2
    assert collect(root) == OLD
    assert tree(Path(outside), without=()) == before
    assert Path(root, "shelf", "dedup-00000000000a").is_symlink()


@pytest.mark.parametrize("folder", [".trash", ".leases", ".pins", ".ferry-roots"])
def test_own_folder_that_is_a_link_stops_the_removal(root: str, tmp_path: Path, folder: str) -> None:
    outside = tmp_path / "outside"
    (outside / "2020-01-01").mkdir(parents=True)
    (outside / "2020-01-01" / "file").write_text("x")
    Path(root, folder).rmdir() if Path(root, folder).exists() else None
    Path(root, folder).symlink_to(outside)
    before = steps_of(root)
    with pytest.raises(RetentionError, match="is a link"):
        collect(root)
    assert steps_of(root) == before
    assert [*outside.rglob("*")] == [outside / "2020-01-01", outside / "2020-01-01" / "file"]


def test_steps_are_moved_and_restored_in_a_store() -> None:
    with s3_root() as root:
        write_dataset(root, "shelf", "old")
        write_dataset(root, "shelf", "new")
        assert collect(root) == OLD
        assert not any(is_whole(root, step) for step in OLD)
        assert is_whole(root, step_path("shelf", "tokenize", "new"))
        (day,) = trash.days(root)
        trash.move_back(f"{day.url}/{OLD_CACHE}", root, OLD_CACHE)
        assert is_whole(root, OLD_CACHE)
        assert collect(root) == {OLD_CACHE}
        with Lease(root, USE, "run") as lease:
            lease.hold([f"{root}/{OLD_CACHE}"])
            wait_until(lambda: find_garbage(root, 0.0).unreachable == ())
