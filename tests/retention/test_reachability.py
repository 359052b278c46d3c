"""A step is kept if anything in the root needs it; what cannot be read stops the decision."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from datakit.errors import RetentionError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import EXPIRED_SECONDS, USE
from datakit.leases.pins import write_pin
from datakit.leases.training_record import write_record
from datakit.retention.reachability import reachability
from datakit.storage import manifest as manifests
from datakit.storage import urls
from datakit.storage.latest import Current, SourceRecords, record_latest
from datakit.storage.manifest import InputReference
from tests.support.retention.tiny_roots import (
    age,
    described,
    step_path,
    training_run,
    write_dataset,
    write_step,
    write_training_run,
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root in which the recipe of `shelf` has changed once, and `old` are the steps of the first recipe."""
    write_dataset(str(tmp_path / "root"), "shelf", "old")
    write_dataset(str(tmp_path / "root"), "shelf", "new")
    return str(tmp_path / "root")


OLD = [step_path("shelf", stage, "old") for stage in ("dedup", "tokenize")]
OLD_CACHE, OLD_TEXT = OLD[1], step_path("sources/web", "normalize", "old")


def unreachable(root: str) -> list[str]:
    return reachability(root).unreachable()


def test_steps_of_an_earlier_recipe_are_unreachable(root: str) -> None:
    found = reachability(root)
    assert found.unreachable() == [*OLD, OLD_TEXT]
    assert found.needed[step_path("shelf", "tokenize", "new")] == "current in shelf"
    assert "was made from it" in found.needed[step_path("sources/web", "download", "0")]


def test_source_that_another_dataset_reads_is_kept(root: str) -> None:
    write_dataset(root, "another", "old")
    assert unreachable(root) == OLD


def test_pinned_step_keeps_its_inputs(root: str) -> None:
    write_pin(root, OLD[0], "for a paper")
    assert unreachable(root) == [OLD_CACHE]
    assert reachability(root).needed[OLD[0]] == "pinned: for a paper"


def test_consolidate_step_beside_the_current_step_is_kept(root: str) -> None:
    """`latest.json` names it, although no current step was made from it. In this test, another step takes its place."""
    current = Current(urls.name(step_path("shelf", "tokenize", "new")), "0")
    record_latest(urls.join(root, "shelf"), current, current, documents=Current(urls.name(OLD[0]), "0"))
    assert unreachable(root) == [OLD_CACHE]


def test_annotate_steps_of_the_last_run_are_kept(root: str) -> None:
    """`latest.json` names them, although no other step was made from them."""
    annotated = f"sources/web/annotate-{'0' * 12}"
    write_step(root, annotated, [])
    current = Current(urls.name(step_path("shelf", "tokenize", "new")), "0")
    assert annotated in unreachable(root)
    attributes = {"web": Current(urls.name(annotated), "0")}
    record_latest(urls.join(root, "shelf"), current, current, SourceRecords(attributes=attributes))
    assert annotated not in unreachable(root)
    assert reachability(root).needed[annotated] == "current in shelf"


def test_training_run_in_the_root_keeps_its_caches(root: str) -> None:
    write_training_run(root, "model", [OLD_CACHE])
    assert unreachable(root) == []


def test_finished_training_run_keeps_its_caches(root: str) -> None:
    place = Path(root, "model", "train-000000000000")
    path = "model/dedup-000000000000"  # the manifest is written for a step's name, and then moved
    write_step(root, path, [OLD_CACHE])
    place.mkdir()
    shutil.move(f"{root}/{path}/manifest.json", place)
    shutil.rmtree(f"{root}/{path}")
    assert unreachable(root) == []


def test_training_run_without_a_record_keeps_every_cache(root: str) -> None:
    Path(root, "model", "train-000000000000").mkdir(parents=True)
    assert unreachable(root) == []
    assert "does not record which caches it reads" in reachability(root).needed[OLD_CACHE]


NEW_CACHE = step_path("shelf", "tokenize", "new")


def test_record_of_an_earlier_version_does_not_name_all_caches(root: str) -> None:
    """It names only the caches that were found through a dataset."""
    write_training_run(root, "model", [NEW_CACHE])
    assert OLD_CACHE in unreachable(root)
    path = Path(training_run(root, "model"), "caches.json")
    path.write_text(json.dumps({place: found for place, found in json.loads(path.read_text()).items()
                                if place != "format"}))  # fmt: skip
    assert unreachable(root) == []
    assert "does not record which caches it reads" in reachability(root).needed[OLD_CACHE]


def test_record_that_names_a_missing_cache_keeps_every_cache(root: str) -> None:
    """The path may be wrong, because the run reached the root by another path."""
    record = {"../../../../elsewhere/shelf": (f"../../../../elsewhere/{OLD_CACHE}", "0" * 32)}
    write_record(training_run(root, "model"), record)
    assert unreachable(root) == []
    assert reachability(root).needed[OLD_CACHE].endswith(f"elsewhere/{OLD_CACHE}, which is not there")


def test_record_may_name_a_cache_of_another_root(root: str, tmp_path: Path) -> None:
    other = write_dataset(str(tmp_path / "other"), "shelf")
    write_record(training_run(root, "model"), {"x": (f"../../../other/{other}", "0" * 32)})
    assert unreachable(root) == [*OLD, OLD_TEXT]


def test_record_written_through_a_link_keeps_its_cache(root: str, tmp_path: Path) -> None:
    """The run was given the root once by a link and once by its real path."""
    link = tmp_path / "a" / "deep" / "link"
    link.parent.mkdir(parents=True)
    link.symlink_to(root)
    write_dataset(root, "another", "old")
    for place, base in ((f"{root}/{OLD_CACHE}", link), (f"{link}/{OLD_CACHE}", root)):
        run = training_run(str(base), "model")
        write_record(run, {"x": (os.path.relpath(place, run), "0" * 32)})
        for reached in (root, str(link)):
            assert OLD_CACHE not in unreachable(reached)


def test_packing_step_keeps_the_cache_that_it_counts(root: str) -> None:
    write_step(root, "packing/packing-64-split-000000000000", [OLD_CACHE])
    assert unreachable(root) == []


def test_imported_cache_keeps_the_step_whose_arrays_it_reads(root: str) -> None:
    shard = {"directory": f"../../{OLD_CACHE}/{'data/all/part'}", "form": 0, "files": []}
    details = {"foreign": {"layout": "levanter", "forms": [{}], "shards": [shard]}}
    write_step(root, "imported/dedup-000000000000", details=details)
    Path(root, "imported/dedup-000000000000").rename(Path(root, "imported/cache"))
    assert unreachable(root) == []


def test_live_lease_keeps_its_steps_until_it_expires(root: str) -> None:
    with Lease(root, USE, "datakit run shelf") as lease:
        lease.hold([f"{root}/{OLD_CACHE}"])
        assert unreachable(root) == []
        age(root, ".leases", EXPIRED_SECONDS)
        assert unreachable(root) == [*OLD, OLD_TEXT]


def test_dataset_without_a_record_keeps_its_finished_steps(root: str) -> None:
    Path(root, "shelf", "latest.json").unlink()
    assert unreachable(root) == []


def test_dataset_without_a_record_keeps_the_steps_of_the_sources_in_its_log(root: str) -> None:
    """A run that ends after its sources has finished no step of its dataset."""
    log = Path(root, "begun", "runs", "20260101-000000", "events.jsonl")
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps({"event": "run_started", "sources": {"web": ""}}) + "\n")
    assert unreachable(root) == OLD
    assert reachability(root).needed[OLD_TEXT] == "no latest.json records which steps of begun are current"


def test_steps_are_found_without_a_folder_of_sources(tmp_path: Path) -> None:
    write_dataset(str(tmp_path), "shelf", "old", sources=())
    write_dataset(str(tmp_path), "shelf", "new", sources=())
    assert unreachable(str(tmp_path)) == OLD


def test_dataset_on_another_disk_keeps_the_sources_of_this_root(root: str, tmp_path: Path) -> None:
    shutil.move(f"{root}/shelf", tmp_path / "elsewhere")
    Path(root, "shelf").symlink_to(tmp_path / "elsewhere")
    assert OLD_TEXT in unreachable(root)
    assert step_path("sources/web", "normalize", "new") not in unreachable(root)


def damage(path: str, content: str = "{") -> Callable[[str], None]:
    """Return a function that writes a file into a root."""

    def write(root: str) -> None:
        Path(root, path).parent.mkdir(parents=True, exist_ok=True)
        Path(root, path).write_text(content)

    return write


def alter(root: str) -> None:
    path = Path(root, OLD_CACHE, "manifest.json")
    path.write_text(path.read_text().replace('"rows": 1', '"rows": 2'))


def newer(root: str) -> None:
    data = json.dumps({"format": "datakit.manifest/99"})
    Path(root, OLD_CACHE, "manifest.json").write_text(data)


def outside_file(root: str) -> None:
    """Write a manifest that names a file outside of its step."""
    found = described(root, OLD_CACHE)
    partition = msgspec.structs.replace(found.partitions[0], path="../../../outside")
    sealed = manifests.sealed(msgspec.structs.replace(found, partitions=[partition]))
    Path(root, OLD_CACHE, "manifest.json").write_bytes(b"".join(manifests.pieces(sealed)))


UNREADABLE = {
    "altered-manifest": (alter, f"{OLD_CACHE}/manifest.json"),
    "newer-manifest": (newer, "was written by a newer version of datakit"),
    "damaged-manifest": (damage(f"{OLD_CACHE}/manifest.json"), f"{OLD_CACHE}/manifest.json"),
    "manifest-with-a-path-up": (outside_file, "is not below the step's directory"),
    "damaged-manifest-of-a-training-run": (damage("model/train-000000000000/manifest.json"), "train-000000000000"),
    "damaged-record-of-caches": (damage("model/train-000000000000/caches.json"), "caches.json"),
    "damaged-manifest-of-an-import": (damage("cache/manifest.json", '{"format": "datakit.manifest/2"'), "cache/"),
    "damaged-latest": (damage("shelf/latest.json"), "shelf/latest.json"),
    "latest-that-leads-out": (
        damage("shelf/latest.json", '{"format": "datakit.latest/1", "cache": null, '
               '"step": {"directory": "../../outside", "identity": "x"}}'),
        "which is not the directory of a step",
    ),
    "newer-latest": (damage("shelf/latest.json", '{"format": "datakit.latest/9"}'), "newer version"),
    "damaged-lease": (damage(".leases/use-1.json"), "use-1.json"),
    "damaged-pin": (damage(".pins/a+b.json"), "a+b.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_anything_unreadable_stops_the_decision(root: str, name: str) -> None:
    write, said = UNREADABLE[name]
    write(root)
    with pytest.raises(RetentionError, match="nothing is removed from") as raised:
        reachability(root)
    assert said in str(raised.value)


def test_other_programs_manifests_are_ignored(root: str) -> None:
    damage("website/manifest.json", '{"name": "site"}')(root)
    damage(".trash/2026-01-01/shelf/manifest.json")(root)
    assert unreachable(root) == [*OLD, OLD_TEXT]


def test_steps_that_name_one_another_are_unreachable_together(root: str) -> None:
    one, other = "loop/dedup-000000000001", "loop/dedup-000000000002"
    for path, above in ((one, other), (other, one)):
        reference = InputReference("dedup", f"../{above.partition('/')[2]}/manifest.json", "0" * 32)
        write_step(root, path)
        found = msgspec.structs.replace(described(root, path), inputs=[reference])
        Path(root, path, "manifest.json").write_bytes(b"".join(manifests.pieces(manifests.sealed(found))))
    write_dataset(root, "loop", "new")
    assert {one, other} <= {*unreachable(root)}


def test_input_outside_of_the_root_is_not_looked_at(root: str) -> None:
    path = step_path("shelf", "tokenize", "new")
    for place in ("../../../outside/manifest.json", "../../../../../../../../etc/manifest.json"):
        found = msgspec.structs.replace(described(root, path), inputs=[InputReference("dedup", place, "0" * 32)])
        Path(root, path, "manifest.json").write_bytes(b"".join(manifests.pieces(manifests.sealed(found))))
        assert set(OLD) <= set(unreachable(root))
