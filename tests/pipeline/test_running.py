"""A run gives the same bytes whatever happens, reuses finished steps, and counts every document it drops."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import xxhash

import datakit
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.worker import local_executor
from datakit.pipeline import lazy_executor
from datakit.recipe import Recipe, load_recipe
from datakit.retention.leftovers import find_leftovers
from datakit.storage import urls
from datakit.storage.ids import ids_from_arrow, partition_range, strictly_ascending
from datakit.storage.manifest import Manifest, computed_fingerprint, read_manifest
from datakit.storage.parquet import read_shard
from tests.support.paths import REPOSITORY
from tests.support.processes import ended
from tests.support.small_shelf import prose, write_lines
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import manifests, only, tree

NAMES = (
    *("data", "duplicates", "exchange", "ledger", "manifest.json", "partial.json", "quarantine", "raw", "runs"),
    *("sources", "tokenizer.json", "README.md"),
)
TABLES = '[dedup]\n[tokenize]\ntokenizer = "train"\n[tokenize.train]\nvocabulary = 300\n'


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of three sources from the standard library."""
    return write_shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="module")
def undisturbed(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root in which one worker ran the recipe undisturbed."""
    root = str(tmp_path_factory.mktemp("undisturbed"))
    datakit.run(recipe, root=root, workers=1)
    return root


def test_four_workers_write_the_bytes_of_one(recipe: Path, undisturbed: str, tmp_path: Path) -> None:
    datakit.run(recipe, root=tmp_path, workers=4)
    assert tree(str(tmp_path)) == tree(undisturbed)


def test_source_may_have_the_name_of_any_file_of_a_step(tmp_path: Path) -> None:
    sources = ""
    for number, name in enumerate(NAMES):
        write_lines(tmp_path / "texts" / name / "ledger.jsonl", [prose(100 * number + row) for row in range(5)])
        sources += f'[[sources]]\nname = "{name}"\nurl = "texts/{name}"\n'
    (tmp_path / "named.toml").write_text(f'name = "named"\n{sources}{TABLES}')
    result = datakit.run(tmp_path / "named.toml", tmp_path / "root", workers=2)
    for stage, rows in (("consolidate", 5), ("tokenize", 5), ("dedup", 0)):
        (step,) = result.steps_of(stage)
        assert {part.source: part.rows for part in step.manifest.partitions} == dict.fromkeys(NAMES, rows)
    assert result.cache is not None
    cache = datakit.open_cache(result.cache)
    assert len(list(cache.documents())) == 5 * len(NAMES)
    assert find_leftovers(str(tmp_path / "root"), 0.0) == []
    assert {step.directory for step in datakit.status(tmp_path / "root")} == {step.directory for step in result.steps}
    assert datakit.run(tmp_path / "named.toml", tmp_path / "root").reused


def test_second_run_changes_nothing_and_starts_no_process(recipe: Path, undisturbed: str) -> None:
    before = tree(undisturbed)
    children = len(psutil.Process().children(recursive=True))
    result = datakit.run(recipe, root=undisturbed)
    assert result.reused
    assert len(psutil.Process().children(recursive=True)) == children
    assert tree(undisturbed) == before


def test_manifests_hash_every_file_and_allow_to_compute_the_fingerprint(undisturbed: str) -> None:
    for path, manifest in manifests(undisturbed).items():
        assert computed_fingerprint(manifest) == manifest.fingerprint
        described = {part.path for part in manifest.partitions} | {file.path for file in manifest.files}
        described |= {"manifest.json"} | ({"tokenizer.json"} if manifest.stage == "tokenize" else set())
        inside = {info.path for info in urls.listing(urls.join(undisturbed, path))}
        for name in (name for name in inside - described if not name.startswith("ledger/")):
            assert manifest.stage == "tokenize", f"{path}: no checksum of {name}"  # `details` has those of the shards
        for reference in manifest.inputs:
            above = read_manifest(urls.parent(urls.join(undisturbed, path, reference.path)))
            assert (reference.checksum, reference.identity) == (above.checksum, above.identity)


def test_every_document_is_kept_or_counted(undisturbed: str) -> None:
    by_stage: dict[str, list[Manifest]] = {}
    for manifest in manifests(undisturbed).values():
        by_stage.setdefault(manifest.stage, []).append(manifest)
    normalized = 0
    for manifest in by_stage["normalize"]:
        counters = manifest.counters
        reasons = ("missing", "blank", "duplicates", "where_dropped", "sample_dropped", "quarantined")
        lost = sum(counters.get(f"normalize/{reason}", 0) for reason in reasons)
        assert counters["normalize/records_in"] == manifest.totals.rows + lost
        normalized += manifest.totals.rows
    (dedup,), (clean,), (cache,) = by_stage["dedup"], by_stage["consolidate"], by_stage["tokenize"]
    removed = dedup.counters["dedup/exact_removed"] + dedup.counters["dedup/fuzzy_removed"]
    assert removed == dedup.totals.rows > 0
    assert clean.totals.rows == normalized - removed
    assert cache.totals.rows == clean.totals.rows
    assert cache.totals.text_bytes == clean.totals.text_bytes


def test_ids_are_sorted_text_hashes_in_their_partition(undisturbed: str) -> None:
    steps = {path: manifest for path, manifest in manifests(undisturbed).items() if manifest.stage == "normalize"}
    assert len(steps) == 3
    for path, manifest in steps.items():
        bits = (len(manifest.partitions) - 1).bit_length()
        for index, partition in enumerate(manifest.partitions):
            table = read_shard(urls.join(undisturbed, path, partition.path))
            ids = table["id"].to_pylist()
            assert ids == [xxhash.xxh3_128_hexdigest(text.encode()) for text in table["text"].to_pylist()]
            assert strictly_ascending(*ids_from_arrow(table["id"]))
            low, high = partition_range(index, bits)
            assert all(low <= entry <= high for entry in ids)


def test_every_removal_names_a_kept_document(undisturbed: str) -> None:
    directory, dedup = only(undisturbed, "dedup")
    clean_directory, clean = only(undisturbed, "consolidate")
    kept = {(part.source, entry) for part in clean.partitions
            for entry in read_shard(urls.join(clean_directory, part.path))["id"].to_pylist()}  # fmt: skip
    removed = [row for part in dedup.partitions for row in read_shard(urls.join(directory, part.path)).to_pylist()]
    assert {row["reason"] for row in removed} == {"exact", "fuzzy"}
    for row in removed:
        assert (row["representative_source"], row["representative_id"]) in kept
        assert row["jaccard"] >= 0.8


def test_cache_holds_the_clean_dataset_token_by_token(undisturbed: str) -> None:
    from tokenizers import Tokenizer

    directory, _ = only(undisturbed, "tokenize")
    clean_directory, clean = only(undisturbed, "consolidate")
    trained, _ = only(undisturbed, "train-tokenizer")
    tokenizer = Tokenizer.from_file(str(Path(trained) / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    expected, names = [], []
    for part in clean.partitions:
        table = read_shard(urls.join(clean_directory, part.path))
        names += table["id"].to_pylist()
        expected += [[*encoding.ids, end] for encoding in tokenizer.encode_batch(table["text"].to_pylist())]
    cache = datakit.open_cache(directory)
    assert cache.tokens == sum(map(len, expected))
    assert np.array_equal(cache.read(0, cache.tokens), np.concatenate(expected))
    read = list(cache.documents())
    assert [document.id for document in read] == names
    assert all(np.array_equal(one.tokens, wanted) for one, wanted in zip(read, expected, strict=True))


def test_moved_root_is_reused(recipe: Path, undisturbed: str, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(undisturbed, moved)
    assert datakit.run(recipe, root=moved).reused


def test_added_source_recomputes_nothing_of_the_others(recipe: Path, undisturbed: str, tmp_path: Path) -> None:
    two = write_shelf(recipe.parent, sources=2)
    datakit.run(two, root=tmp_path, workers=2, until="dedup")
    before = {path: os.stat(tmp_path / path).st_mtime_ns for path in tree(str(tmp_path))}
    result = datakit.run(recipe, root=tmp_path, workers=2, until="dedup")
    reused = {(step.stage, step.source) for step in result.steps if step.reused}
    for stage in ("download", "normalize", "signatures"):
        assert {(stage, "modules"), (stage, "pages")} <= reused
        assert (stage, "mixed") not in reused
    assert before.items() <= {path: os.stat(tmp_path / path).st_mtime_ns for path in tree(str(tmp_path))}.items()
    expected = {path: data for path, data in tree(undisturbed).items() if path.startswith(("sources/", "shelf/dedup-"))}
    assert expected.items() <= tree(str(tmp_path)).items()


def test_changed_parameter_makes_new_steps_and_touches_no_old_one(
    recipe: Path, undisturbed: str, tmp_path: Path
) -> None:
    root = str(shutil.copytree(undisturbed, tmp_path / "copy"))
    before = tree(root)
    result = datakit.run(recipe, root=root, settings=["dedup.threshold=0.95"], workers=2, until="consolidate")
    assert {step.stage for step in result.steps if not step.reused} == {"dedup", "select", "consolidate"}
    after = tree(root)
    assert before.items() <= after.items() and len(after) > len(before)


def test_recipes_that_share_a_source_share_its_steps(finished_run: datakit.RunResult, finished_copy: Path) -> None:
    source = load_recipe(finished_copy / "shelf" / "shelf.toml").sources[0]
    other = datakit.run(Recipe("other", (source,), dedup={}), finished_copy / "root")
    mine = {step.label: urls.relative(step.directory, finished_run.root) for step in finished_run.steps}
    assert {step.label: step.reused for step in other.steps} == {
        "download novels": True, "normalize novels": True, "signatures novels": True,
        "dedup": False, "select": False, "consolidate": False,
    }  # fmt: skip
    shared = {step.label: urls.relative(step.directory, other.root) for step in other.steps if step.reused}
    assert shared.items() <= mine.items()
    assert other.cache is None


def test_cache_needs_no_consolidate_step(finished_run: datakit.RunResult, finished_copy: Path) -> None:
    recipe, root = finished_copy / "shelf" / "shelf.toml", finished_copy / "root"
    without = datakit.run(recipe, root, settings=["consolidate.write=false"])
    assert without.reused and without.steps_of("consolidate") == []
    assert Path(without.cache or "").name == Path(finished_run.cache or "").name
    anew = datakit.run(recipe, finished_copy / "other", settings=["consolidate.write=false"], workers=2)
    assert list((finished_copy / "other" / "shelf").glob("consolidate-*")) == []
    assert tree(anew.cache or "") == tree(without.cache or "")


def test_second_run_makes_no_executor_and_no_log(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("an executor was made")

    monkeypatch.setattr(lazy_executor, "LocalExecutor", refuse)
    monkeypatch.setattr(local_executor, "LocalExecutor", refuse)
    again = datakit.run(finished / "shelf" / "shelf.toml", finished / "root", ray="nowhere:1")
    assert again.reused
    assert again.log is None


def test_driver_killed_in_every_stage_resumes_to_the_same_bytes(recipe: Path, undisturbed: str, tmp_path: Path) -> None:
    """Several drivers work in one root: each is killed in the next stage, and the last run completes what they left."""
    root = str(tmp_path)
    for stage in (
        "normalize",
        "signatures",
        "dedup",
        "select",
        "consolidate",
        "train-tokenizer",
        "contract",
        "tokenize",
    ):
        _kill_in(stage, recipe, tmp_path)
    datakit.run(recipe, root=root, workers=2)
    assert tree(root) == tree(undisturbed)
    assert not list(tmp_path.rglob(".tmp-*"))
    done = [
        (path, line.phase, line.key)
        for path in manifests(root)
        for line in read_ledger(urls.join(root, path))
        if isinstance(line, AttemptLine)
    ]
    assert len(done) == len(set(done)), "a task that was in the ledger ran again"


def _kill_in(stage: str, recipe: Path, root: Path) -> None:
    """Start a driver, and kill it with its workers once the stage has a directory."""
    driver = _start(recipe, str(root))
    _until(lambda: driver.poll() is not None or any(root.glob(f"shelf/{stage}-*")) or
           any(root.glob(f"sources/*/{stage}-*")))  # fmt: skip
    family = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
    driver.send_signal(signal.SIGKILL)
    driver.wait(60)
    _until(lambda: all(ended(process) for process in family))


def test_two_concurrent_drivers_write_the_same_bytes(recipe: Path, undisturbed: str, tmp_path: Path) -> None:
    drivers = [_start(recipe, str(tmp_path)) for _ in range(2)]
    assert [driver.wait(300) for driver in drivers] == [0, 0]
    assert tree(str(tmp_path)) == tree(undisturbed)


def _start(recipe: Path, root: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", root, "--workers", "2"]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
