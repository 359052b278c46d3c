"""The main job on real text, seen from outside: the same bytes whatever happens, and nothing lost uncounted."""

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
from datakit.storage import urls
from datakit.storage.ids import ids_from_arrow, partition_range, strictly_ascending
from datakit.storage.manifest import Manifest
from datakit.storage.parquet import read_shard
from tests.support.paths import REPOSITORY
from tests.support.processes import ended
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import manifests, only, tree


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of three sources."""
    return write_shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="module")
def finished(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root in which the recipe was run undisturbed, by one worker."""
    root = str(tmp_path_factory.mktemp("finished"))
    datakit.run(recipe, root=root, workers=1)
    return root


def test_four_workers_write_the_bytes_of_one(recipe: Path, finished: str, tmp_path: Path) -> None:
    datakit.run(recipe, root=tmp_path, workers=4)
    assert tree(str(tmp_path)) == tree(finished)


def test_a_second_run_finds_everything_done_and_starts_no_worker(recipe: Path, finished: str) -> None:
    before = tree(finished)
    children = len(psutil.Process().children(recursive=True))
    result = datakit.run(recipe, root=finished)
    assert result.reused
    assert len(psutil.Process().children(recursive=True)) == children
    assert tree(finished) == before


def test_every_document_is_kept_or_counted(finished: str) -> None:
    by_stage: dict[str, list[Manifest]] = {}
    for manifest in manifests(finished).values():
        by_stage.setdefault(manifest.stage, []).append(manifest)
    normalized = 0
    for manifest in by_stage["normalize"]:
        counters = manifest.counters
        reasons = ("blank", "duplicates", "where_dropped", "sample_dropped", "quarantined")
        lost = sum(counters.get(f"normalize/{reason}", 0) for reason in reasons)
        assert counters["normalize/records_in"] == manifest.totals.rows + lost
        normalized += manifest.totals.rows
    (dedup,), (clean,), (cache,) = by_stage["dedup"], by_stage["consolidate"], by_stage["tokenize"]
    removed = dedup.counters["dedup/exact_removed"] + dedup.counters["dedup/fuzzy_removed"]
    assert removed == dedup.totals.rows > 0
    assert clean.totals.rows == normalized - removed
    assert cache.totals.rows == clean.totals.rows
    assert cache.totals.text_bytes == clean.totals.text_bytes


def test_ids_are_the_hash_of_the_text_in_order_in_their_partition(finished: str) -> None:
    steps = {path: manifest for path, manifest in manifests(finished).items() if manifest.stage == "normalize"}
    assert len(steps) == 3
    for path, manifest in steps.items():
        bits = (len(manifest.partitions) - 1).bit_length()
        for index, partition in enumerate(manifest.partitions):
            table = read_shard(urls.join(finished, path, partition.path))
            ids = table["id"].to_pylist()
            assert ids == [xxhash.xxh3_128_hexdigest(text.encode()) for text in table["text"].to_pylist()]
            assert strictly_ascending(*ids_from_arrow(table["id"]))
            low, high = partition_range(index, bits)
            assert all(low <= entry <= high for entry in ids)


def test_every_removal_names_a_document_that_stayed(finished: str) -> None:
    directory, dedup = only(finished, "dedup")
    clean_directory, clean = only(finished, "consolidate")
    kept = {(part.source, entry) for part in clean.partitions
            for entry in read_shard(urls.join(clean_directory, part.path))["id"].to_pylist()}  # fmt: skip
    removed = [row for part in dedup.partitions for row in read_shard(urls.join(directory, part.path)).to_pylist()]
    assert {row["reason"] for row in removed} == {"exact", "fuzzy"}
    for row in removed:
        assert (row["representative_source"], row["representative_id"]) in kept
        assert row["jaccard"] >= 0.8


def test_the_cache_holds_the_documents_of_the_clean_dataset_token_by_token(finished: str) -> None:
    from tokenizers import Tokenizer

    directory, _ = only(finished, "tokenize")
    clean_directory, clean = only(finished, "consolidate")
    trained, _ = only(finished, "train-tokenizer")
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


def test_a_moved_root_is_the_same_dataset(recipe: Path, finished: str, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(finished, moved)
    assert datakit.run(recipe, root=moved).reused


def test_a_source_added_later_recomputes_nothing_of_the_others(recipe: Path, finished: str, tmp_path: Path) -> None:
    two = write_shelf(recipe.parent, sources=2)
    datakit.run(two, root=tmp_path, workers=2)
    before = {path: os.stat(tmp_path / path).st_mtime_ns for path in tree(str(tmp_path))}
    result = datakit.run(recipe, root=tmp_path, workers=2)
    reused = {(step.stage, step.source) for step in result.steps if step.reused}
    for stage in ("download", "normalize", "signatures"):
        assert {(stage, "modules"), (stage, "pages")} <= reused
        assert (stage, "mixed") not in reused
    assert before.items() <= {path: os.stat(tmp_path / path).st_mtime_ns for path in tree(str(tmp_path))}.items()
    assert tree(finished).items() <= tree(str(tmp_path)).items()


def test_a_changed_parameter_makes_a_new_step_and_touches_no_old_one(
    recipe: Path, finished: str, tmp_path: Path
) -> None:
    root = str(tmp_path / "copy")
    shutil.copytree(finished, root)
    before = tree(root)
    result = datakit.run(recipe, root=root, settings=["dedup.threshold=0.95"], workers=2)
    redone = {step.stage for step in result.steps if not step.reused}
    assert redone == {"dedup", "consolidate", "train-tokenizer", "tokenize"}
    after = tree(root)
    assert before.items() <= after.items() and len(after) > len(before)


@pytest.mark.parametrize("moment", ["normalize", "signatures", "dedup", "consolidate", "train-tokenizer", "tokenize"])
def test_a_driver_killed_in_any_stage_is_resumed_to_the_same_bytes(
    recipe: Path, finished: str, tmp_path: Path, moment: str
) -> None:
    root = str(tmp_path)
    driver = _start(recipe, root)
    _until(lambda: driver.poll() is not None or any(moment in str(path) for path in tmp_path.glob("*/*/")) or
           any(moment in str(path) for path in tmp_path.glob("*/*/*/")))  # fmt: skip
    family = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
    driver.send_signal(signal.SIGKILL)
    driver.wait(10)
    _until(lambda: all(ended(process) for process in family))
    datakit.run(recipe, root=root, workers=2)
    assert tree(root) == tree(finished)
    assert not list(tmp_path.rglob(".tmp-*"))
    done = [
        (path, line.phase, line.key)
        for path in manifests(root)
        for line in read_ledger(urls.join(root, path))
        if isinstance(line, AttemptLine)
    ]
    assert len(done) == len(set(done)), "a task that was in the ledger ran again"


def test_two_drivers_at_once_both_finish_with_the_same_bytes(recipe: Path, finished: str, tmp_path: Path) -> None:
    drivers = [_start(recipe, str(tmp_path)) for _ in range(2)]
    assert [driver.wait(120) for driver in drivers] == [0, 0]
    assert tree(str(tmp_path)) == tree(finished)


def _start(recipe: Path, root: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", root, "--workers", "2"]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
