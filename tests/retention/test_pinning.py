"""`datakit pin` keeps a step, says why, and takes part in the protocol of leases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.errors import NotFoundError, UsageError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import COLLECT
from datakit.leases.pins import read_pins
from datakit.retention import pinning
from datakit.retention.collection import remove_garbage
from datakit.retention.pinning import pin_step, unpin_step
from datakit.storage.latest import Current, record_latest
from tests.support.command_line import invoke
from tests.support.retention.tiny_roots import number, set_latest, step_path, write_dataset, write_step

CACHE, OLD = step_path("shelf", "tokenize", "new"), step_path("shelf", "tokenize", "old")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a superseded cache and a current one."""
    write_dataset(str(tmp_path / "root"), "shelf", "old")
    write_dataset(str(tmp_path / "root"), "shelf", "new")
    return tmp_path / "root"


def test_pinned_cache_survives_gc_until_it_is_unpinned(root: Path) -> None:
    assert invoke("pin", f"root/{OLD}", "--reason", "for a paper", cwd=root.parent).returncode == 0
    assert invoke("gc", "root", "--unreachable", "--delete", "--older-than", "0", cwd=root.parent).returncode == 0
    assert (root / OLD / "manifest.json").exists()
    shown = json.loads(invoke("pin", "--list", "root", "--json", cwd=root.parent).stdout)
    (entry,) = shown["pins"]
    assert (entry["directory"], entry["exists"], entry["pin"]["reason"]) == (str(root / OLD), True, "for a paper")
    assert invoke("unpin", f"root/{OLD}", cwd=root.parent).returncode == 0
    done = invoke("gc", "root", "--unreachable", "--delete", "--older-than", "0", cwd=root.parent)
    assert "the steps are in the trash" in done.stderr
    assert not (root / OLD).exists()


def test_dataset_stands_for_its_current_step(root: Path) -> None:
    done = invoke("pin", "root/shelf", "--reason", "published", cwd=root.parent)
    assert done.stdout == f"pinned: {root}/{CACHE}\n"
    shown = invoke("pin", "--list", "root", cwd=root.parent)
    assert "published" in shown.stdout and str(root / CACHE) in shown.stdout


def test_pinned_dataset_keeps_its_texts(root: Path) -> None:
    """The cache is not made from the consolidate step, which only the record of current steps names."""
    inputs = [step_path("sources/web", "normalize", "new"), step_path("shelf", "dedup", "new")]
    texts = write_step(str(root), step_path("shelf", "consolidate", "new"), inputs)
    current = Current(Path(CACHE).name, number(CACHE))
    record_latest(str(root / "shelf"), current, current, documents=Current(Path(texts).name, number(texts)))
    pins = pin_step(str(root / "shelf"), "published", lambda text: None)
    assert [directory for directory, _ in pins] == [str(root / CACHE), str(root / texts)]
    write_dataset(str(root), "shelf", "newer")
    remove_garbage(str(root), 0, unreachable=True)
    assert (root / texts / "manifest.json").exists()
    unpin_step(str(root / CACHE))
    assert [directory for directory, _ in pin_step(str(root / CACHE), "x", lambda text: None)] == [str(root / CACHE)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pin",), "name a step and a reason"),
        (("pin", f"root/{OLD}"), "name a step and a reason"),
        (("pin", f"root/{OLD}", "--reason", " "), "name a step and a reason"),
        (("pin", "root/none", "--reason", "x"), "is neither a finished step nor a dataset"),
        (("pin", "--list", "root", "--reason", "x"), "takes no --reason"),
        (("pin", "--list", "nowhere"), "does not exist"),
        (("unpin", f"root/{OLD}"), "is not pinned"),
        (("unpin", "root"), "is not the directory of a step"),
    ],
)
def test_wrong_command_says_what_to_give(root: Path, words: tuple[str, ...], said: str) -> None:
    done = invoke(*words, cwd=root.parent)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert not (root / ".pins").exists()


def test_step_that_gc_took_before_it_was_pinned_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is announced, then pinned, then moved: the pin waits for the announcement to end."""
    wait = pinning.wait_for_collections

    def move_while_waiting(*arguments: object) -> None:
        (root / OLD).rename(root / "moved")
        announcement.__exit__(None, None, None)
        wait(str(root), [OLD], lambda text: None)

    monkeypatch.setattr(pinning, "wait_for_collections", move_while_waiting)
    announcement = Lease(str(root), COLLECT, "datakit gc")
    announcement.hold([f"{root}/{OLD}"])
    with pytest.raises(NotFoundError, match="was removed before it was pinned"):
        pin_step(f"{root}/{OLD}", "late", lambda text: None)
    assert read_pins(str(root)) == []


def test_pin_of_a_removed_step_is_shown_as_such(root: Path) -> None:
    pin_step(f"{root}/{OLD}", "for a paper", lambda text: None)
    (root / OLD / "manifest.json").unlink()
    assert "no: removed" in invoke("pin", "--list", "root", cwd=root.parent).stdout
    assert invoke("unpin", f"root/{OLD}", cwd=root.parent).returncode == 0


def silent(text: str) -> None:
    """Show no message."""


def test_root_named_sources_gets_its_own_pins(tmp_path: Path) -> None:
    root = tmp_path / "sources"
    cache = write_dataset(str(root), "shelf")
    source = step_path("sources/web", "normalize", "0")
    for step in (cache, source):
        pin_step(f"{root}/{step}", "a test", silent)
    assert [pin.step for pin in read_pins(str(root))] == [cache, source]
    assert [*tmp_path.iterdir()] == [root]
    for step in (cache, source):
        unpin_step(f"{root}/{step}")
    assert read_pins(str(root)) == []


def test_step_that_may_belong_to_two_roots_is_refused(root: Path) -> None:
    """The folder of a source also holds what only a dataset has."""
    source = step_path("sources/web", "normalize", "new")
    set_latest(str(root), source)
    with pytest.raises(UsageError, match="looks like a step of a source, but"):
        pin_step(f"{root}/{source}", "a test", silent)
    assert not (root / ".pins").exists()


@pytest.mark.parametrize(
    ("link", "target", "step"),
    [
        ("other/shelf", "root/shelf", f"other/{OLD}"),
        (f"other/{CACHE}", f"root/{OLD}", f"other/{CACHE}"),
        ("other/a/b/current", f"root/{OLD}", "other/a/b/current"),
        ("other/sources", "root/sources", f"other/{step_path('sources/web', 'normalize', 'old')}"),
    ],
    ids=["dataset", "step", "another-name", "sources"],
)
def test_step_behind_a_link_is_refused_with_its_real_path(root: Path, link: str, target: str, step: str) -> None:
    place = root.parent / link
    place.parent.mkdir(parents=True)
    place.symlink_to(root.parent / target)
    real = (root.parent / step).resolve()
    for words in (("pin", step, "--reason", "x"), ("unpin", step)):
        done = invoke(*words, cwd=root.parent)
        assert done.returncode == 2
        assert f"the step is really in the root {root}; give {real}" in " ".join(done.stderr.split())
    assert not (root / ".pins").exists() and not (root.parent / "other" / ".pins").exists()


def test_link_to_a_root_stands_for_the_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "sources").symlink_to(root)
    pin_step(f"{tmp_path}/sources/{OLD}", "a test", silent)
    assert [pin.step for pin in read_pins(str(root))] == [OLD]
    unpin_step(f"{root}/{OLD}")
    assert read_pins(str(root)) == []
