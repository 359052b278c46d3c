"""Real text on one machine, a private Ray cluster, and two Ray nodes with their root on S3: always the same bytes.

`make soak` runs all 13 files (121 MB, three formats, eight sources) on both clusters; `make test` runs a few files of
the standard library on the private one. Steps on two nodes with S3: tests/engine/ray_backend/test_executor.py.
Conservation and lineage of small datasets: test_running.py, test_inspect_command.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import datakit
from datakit.storage.manifest import Manifest
from tests.support.data import corpus_recipe, need_data
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import manifests, tree


@pytest.fixture(scope="module", params=["small", pytest.param("121 MB", marks=pytest.mark.soak)])
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of one small source, and the benchmark's recipe."""
    folder = tmp_path_factory.mktemp("corpus")
    return write_shelf(folder, sources=1) if request.param == "small" else corpus_recipe(folder)


@pytest.fixture(scope="module")
def local(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root in which the recipe was run on this machine."""
    root = str(tmp_path_factory.mktemp("local"))
    datakit.run(recipe, root=root, workers=2)
    return root


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root in which all 13 files were run on this machine."""
    root = str(tmp_path_factory.mktemp("corpus-root"))
    datakit.run(corpus_recipe(tmp_path_factory.mktemp("corpus")), root=root, workers=2)
    return root


def of_stage(root: str, stage: str) -> list[Manifest]:
    return [manifest for manifest in manifests(root).values() if manifest.stage == stage]


@pytest.mark.soak
def test_rows_are_conserved_from_files_to_cache(corpus: str) -> None:
    expected = _documents_of_tokens_tsv()
    normalized = of_stage(corpus, "normalize")
    assert sum(manifest.counters["normalize/records_in"] for manifest in normalized) == sum(expected.values())
    duplicates = sum(manifest.counters["normalize/duplicates"] for manifest in normalized)
    rows = sum(manifest.totals.rows for manifest in normalized)
    assert rows == sum(expected.values()) - duplicates  # nothing blank, nothing broken in these files
    (dedup,), (clean,), (cache,) = (of_stage(corpus, stage) for stage in ("dedup", "consolidate", "tokenize"))
    assert dedup.totals.rows == dedup.counters["dedup/exact_removed"] + dedup.counters["dedup/fuzzy_removed"]
    assert clean.totals.rows == rows - dedup.totals.rows == cache.totals.rows
    assert len({partition.source for partition in clean.partitions}) == 8
    opened = datakit.open_cache(next(path for path in _directories(corpus, "tokenize")))
    assert opened.tokens == cache.totals.tokens == sum(partition.tokens or 0 for partition in cache.partitions)


def _documents_of_tokens_tsv() -> dict[str, int]:
    lines = (need_data() / "TOKENS.tsv").read_text().splitlines()[1:]
    return {line.split("\t")[0]: int(line.split("\t")[3]) for line in lines}


def _directories(root: str, stage: str) -> Iterator[str]:
    return (os.path.join(root, path) for path, manifest in manifests(root).items() if manifest.stage == stage)


@pytest.mark.soak
def test_inspect_shows_the_lineage_of_a_cache(corpus: str) -> None:
    (cache,) = _directories(corpus, "tokenize")
    command = [sys.executable, "-m", "datakit", "inspect", cache]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for stage in ("tokenize", "consolidate", "dedup", "signatures", "normalize", "download"):
        assert stage in shown
    for source in ("code", "laws-de", "nltk", "novels-en", "peps", "php-en", "php-ja", "tldr"):
        assert source in shown
    plain = subprocess.run([*command, "--json"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert json.loads(plain)


@pytest.mark.ray
def test_private_ray_cluster_writes_the_same_bytes(recipe: Path, local: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    datakit.run(recipe, root=tmp_path, ray="local", workers=2)
    assert tree(str(tmp_path)) == tree(local)


@pytest.mark.soak
@pytest.mark.ray
def test_two_nodes_with_root_on_s3_write_the_same_bytes(recipe: Path, local: str, tmp_path: Path) -> None:
    """The small recipe only to its normalized texts: each request takes long through a server in Python."""
    pytest.importorskip("ray")
    from tests.support.faults.cluster import two_nodes

    small = recipe.name.startswith("shelf")
    until = ["--until", "normalize"] if small else []
    with s3_root() as root, two_nodes(tmp_path) as cluster:
        command = [
            sys.executable,
            "-m",
            "datakit",
            "run",
            str(recipe),
            "--root",
            root,
            "--ray",
            cluster.address,
            *until,
        ]
        environment = os.environ | cluster.environment
        run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-2000:]
        written, expected = tree(root), tree(local)
    assert written == {path: data for path, data in expected.items() if path in written}
    assert small or written.keys() == expected.keys()
    assert any("/normalize-" in path for path in written)
