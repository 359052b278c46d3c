"""Only a root that a ferry created empty can expire, and only with its own marker."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.ferries import Options, ferry_named, run_ferry, status
from datakit.leases.lease import Lease
from datakit.leases.lease_files import USE
from datakit.leases.pins import write_pin
from datakit.retention.ferry_roots import FerryRoot, create_ferry_root, expired_ferry_roots, remove_ferry_root
from datakit.storage import store_clock
from tests.support.command_line import invoke
from tests.support.retention.tiny_roots import step_path, write_dataset
from tests.support.s3 import s3_root

CACHE = step_path("shelf", "tokenize", "0")
HOUR = 3600.0


def expire(root: FerryRoot, parent: Path) -> None:
    """Let a root's time to live end, by its files' times and what they state."""
    for path in (Path(root.url, ".datakit-ferry.json"), parent / ".ferry-roots" / f"{root.nonce}.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"created": content["created"] - 2 * HOUR}))
        moment = path.stat().st_mtime - 2 * HOUR
        os.utime(path, (moment, moment))


def expired(parent: Path) -> list[str]:
    return [root.url for root in expired_ferry_roots(str(parent))]


@pytest.fixture
def old(tmp_path: Path) -> FerryRoot:
    """A ferry's root with a dataset, whose time to live is over."""
    root = create_ferry_root(str(tmp_path), "smoke", HOUR)
    assert os.listdir(root.url) == [".datakit-ferry.json"]
    write_dataset(root.url, "shelf")
    assert expired(tmp_path) == []
    expire(root, tmp_path)
    return root


def test_expired_root_is_listed_and_removed(old: FerryRoot, tmp_path: Path) -> None:
    young = create_ferry_root(str(tmp_path), "smoke", HOUR)
    (tmp_path / "precious").write_text("x")
    Path(old.url, "link").symlink_to(tmp_path / "precious")
    listed = json.loads(invoke("gc", ".", "--json", cwd=tmp_path).stdout)["ferry_roots"]
    assert [entry["url"] for entry in listed] == [old.url]
    assert listed[0]["bytes"] > 1000
    assert invoke("gc", ".", "--delete", cwd=tmp_path).returncode == 0
    assert Path(old.url).exists(), "--delete alone removes leftovers only"
    done = invoke("gc", ".", "--ferry-roots", "--delete", cwd=tmp_path)
    assert "1 expired ferry root" in done.stderr
    assert not Path(old.url).exists()
    assert Path(young.url).exists() and (tmp_path / "precious").exists()
    assert [path.name for path in (tmp_path / ".ferry-roots").iterdir()] == [f"{young.nonce}.json"]


def test_pin_or_lease_keeps_an_expired_root(old: FerryRoot, tmp_path: Path) -> None:
    (found,) = expired_ferry_roots(str(tmp_path))
    with Lease(old.url, USE, "datakit run shelf") as lease:
        lease.hold([f"{old.url}/{CACHE}"])
        assert expired(tmp_path) == []
        assert not remove_ferry_root(str(tmp_path), found)
    assert expired(tmp_path) == [old.url]
    write_pin(old.url, CACHE, "look at it")
    assert expired(tmp_path) == []
    assert Path(old.url, CACHE, "manifest.json").exists()


def test_running_ferry_keeps_an_expired_root(old: FerryRoot, tmp_path: Path) -> None:
    (found,) = expired_ferry_roots(str(tmp_path))
    with status.held(old.url):
        assert expired_ferry_roots(str(tmp_path)) == []
        assert not remove_ferry_root(str(tmp_path), found)
        assert invoke("gc", ".", "--ferry-roots", "--delete", cwd=tmp_path).returncode == 0
        assert Path(old.url, CACHE, "manifest.json").exists()
    assert expired_ferry_roots(str(tmp_path)) == [found]


@pytest.mark.parametrize("timeout", [None, 100.0, 2 * 86_400.0])
def test_root_may_not_expire_before_its_ferry_ends(tmp_path: Path, timeout: float | None) -> None:
    """A ferry that is allowed to run for longer, or only for less time, needs another time to live."""
    ferry = ferry_named("smoke")
    ttl = (timeout or ferry.timeout) + 599
    with pytest.raises(UsageError, match=f"--ttl is {ttl:.0f} seconds; give a longer --ttl"):
        run_ferry(ferry, Options(str(tmp_path), ttl, timeout=timeout), lambda text: None)
    assert [*tmp_path.iterdir()] == []


def test_time_to_live_is_compared_with_the_given_time_limit(tmp_path: Path) -> None:
    done = invoke("ferry", "run", "smoke", "--timeout", "2d", cwd=tmp_path)
    assert done.returncode == 2
    assert "may run for 173400 seconds" in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_folder_without_its_own_marker_never_expires(old: FerryRoot, tmp_path: Path) -> None:
    marker, record = Path(old.url, ".datakit-ferry.json"), tmp_path / ".ferry-roots" / f"{old.nonce}.json"
    good = marker.read_text()
    copy = shutil.copytree(old.url, tmp_path / "copy")
    assert expired(tmp_path) == [old.url], "a copy takes the marker along, but no record names it"
    for change in ({"nonce": "0" * 32}, {"root": "copy"}, {"ttl_seconds": 1.0}, {"format": "datakit.ferryroot/9"}):
        marker.write_text(json.dumps(json.loads(good) | change))
        os.utime(marker, (0, 0))
        assert expired(tmp_path) == []
    marker.unlink()
    assert expired(tmp_path) == []
    marker.write_text(good)
    os.utime(marker, (0, 0))
    assert expired(tmp_path) == [old.url]
    for root in ("../outside", ".", "copy/..", "copy"):
        record.write_text(json.dumps(json.loads(good) | {"root": root}))
        os.utime(record, (0, 0))
        assert expired(tmp_path) == []
    assert copy.exists()


def test_root_behind_a_link_never_expires(old: FerryRoot, tmp_path: Path) -> None:
    aside = tmp_path / "outside" / "root"
    aside.parent.mkdir()
    shutil.move(old.url, aside)
    Path(old.url).symlink_to(aside)
    assert expired(tmp_path) == []


def test_killed_removal_is_continued(old: FerryRoot, tmp_path: Path) -> None:
    shutil.rmtree(Path(old.url, "shelf"))
    (found,) = expired_ferry_roots(str(tmp_path))
    assert remove_ferry_root(str(tmp_path), found)
    assert not Path(old.url).exists()


@pytest.mark.parametrize(("name", "seconds"), [("../x", 1.0), ("smoke", 0.0)])
def test_wrong_name_or_time_to_live_is_refused(tmp_path: Path, name: str, seconds: float) -> None:
    with pytest.raises(UsageError, match="needs a valid name and a time to live"):
        create_ferry_root(str(tmp_path), name, seconds)
    assert list(tmp_path.iterdir()) == []


def test_ferry_roots_work_in_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = store_clock.now
    with s3_root() as parent:
        root = create_ferry_root(parent, "nightly", HOUR)
        write_dataset(root.url, "shelf")
        other = create_ferry_root(parent, "nightly", 3 * HOUR)
        assert expired_ferry_roots(parent) == []
        monkeypatch.setattr(store_clock, "now", lambda place: clock(place) + 2 * HOUR)
        (found,) = expired_ferry_roots(parent)
        assert found.url == root.url
        assert remove_ferry_root(parent, found)
        assert expired_ferry_roots(parent) == []
        assert invoke("du", other.url, cwd=Path("/")).returncode == 0
