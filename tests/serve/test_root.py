"""A listing holds what recipes made, and nothing to which a link outside or an odd name leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import NotFoundError, RootError
from datakit.serve import root as room
from datakit.serve.root import ServedRoot
from datakit.storage import atomic
from tests.support.s3 import s3_root

RUN = "20260102T030405678Z-1234-0a1b2c"
TRAINING = "train-0123456789ab"


def make_root(folder: Path) -> Path:
    for dataset in ("books", "web"):
        (folder / "root" / dataset / "runs" / RUN).mkdir(parents=True)
    (folder / "root" / "web" / TRAINING).mkdir()
    (folder / "root" / "sources" / "novels").mkdir(parents=True)
    return folder / "root"


def test_listing_finds_datasets_runs_and_training_runs(tmp_path: Path) -> None:
    root = ServedRoot(str(make_root(tmp_path)))
    listing = root.listing()
    assert sorted(listing.datasets) == ["books", "web"] and listing.hidden == 0
    assert set(listing.entries) == {("run", "books", RUN), ("run", "web", RUN), ("training", "web", TRAINING)}
    assert root.entry("run", "web", RUN).url == f"{root.url}/web/runs/{RUN}"


@pytest.mark.parametrize("name", ["..", ".", "/etc", "../books", "books/../web", "web\0", "", "a" * 5000, "sources"])
def test_name_that_is_not_listed_is_not_found(tmp_path: Path, name: str) -> None:
    root = ServedRoot(str(make_root(tmp_path)))
    with pytest.raises(NotFoundError):
        root.dataset(name)
    with pytest.raises(NotFoundError):
        root.entry("run", "web", name)
    with pytest.raises(NotFoundError):
        root.entry("run", name, RUN)


def test_links_out_of_the_root_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LISTING_SECONDS", 0.0)
    place, outside = make_root(tmp_path), tmp_path / "outside"
    (outside / "runs" / "secret").mkdir(parents=True)
    root = ServedRoot(str(place))
    (place / "stolen").symlink_to(outside)
    (place / "web" / "runs" / "stolen").symlink_to(outside / "runs" / "secret")
    (place / "web" / "train-ffffffffffff").symlink_to(outside)
    (place / "inner").symlink_to(place / "books")
    (place / "<b>").mkdir()
    (place / "books" / "runs" / RUN).rmdir()
    (place / "books" / "runs").rmdir()
    (place / "books" / "runs").symlink_to(outside / "runs")
    listing = root.listing()
    assert sorted(listing.datasets) == ["books", "inner", "web"]
    assert [entry.name for entry in listing.of("run")] == [RUN] and listing.hidden == 6, (
        "the linked runs of books also as those of inner"
    )


def test_link_below_a_step_is_refused_for_reports(tmp_path: Path) -> None:
    place = make_root(tmp_path)
    step = place / "web" / "dedup-0123456789ab" / "data"
    step.mkdir(parents=True)
    (step / "inner").symlink_to(place / "books")
    root = ServedRoot(str(place))
    root.require_inside([str(step.parent)])
    (step / "a.parquet").symlink_to("/etc/passwd")
    with pytest.raises(RootError, match=r"contains 'a\.parquet', a link out of the root"):
        root.require_inside([str(step.parent)])
    with pytest.raises(RootError, match="outside of the root"):
        root.require_inside([str(tmp_path / "elsewhere")])


def test_step_with_too_many_files_is_refused_for_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_LINKS", 1)
    place = make_root(tmp_path)
    with pytest.raises(RootError, match="contains too many files"):
        ServedRoot(str(place)).require_inside([str(place / "web")])


def test_root_in_an_object_store_is_listed() -> None:
    with s3_root() as url:
        atomic.commit_bytes(b"{}\n", f"{url}/web/runs/{RUN}/events.jsonl")
        atomic.commit_bytes(b"{}\n", f"{url}/web/{TRAINING}/metrics.jsonl")
        root = ServedRoot(url)
        assert set(root.listing().entries) == {("run", "web", RUN), ("training", "web", TRAINING)}
        assert root.inside(f"{url}/web") and not root.inside(f"{url}/../other") and not root.inside("s3://other/web")


def test_missing_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a directory"):
        ServedRoot(str(tmp_path / "none"))
