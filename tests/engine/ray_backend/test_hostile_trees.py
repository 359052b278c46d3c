"""Hostile trees on a cluster of two nodes end as on one machine, and leave no secret in Ray's files and processes."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.canary import Canaries, leaks_in_environments, leaks_in_files, planted, rays_processes, watched
from tests.support.faults.cluster import SharedCluster
from tests.support.hostile.case import Case, Place
from tests.support.hostile.kinds import ALL
from tests.support.hostile.run import Launcher, failures, launched

NAMES = (
    "json-nested-100000-deep", "parquet-flipped-bits-0", "parquet-with-pickles", "arrow-with-pickles",
    "arrow-offsets-behind-the-text", "gzip-cut-in-the-middle-strictly", "bomb-line-gz", "bomb-arrow-zeros",
    "name-not-utf-8", "name-in-the-list-of-bad-records", "link-to-a-file-outside", "link-to-the-environment",
    "special-pipe-in-a-source", "tokenizer-names-a-module", "tokenizer-expression-that-backtracks",
)  # fmt: skip
CASES = [case for case in ALL if case.name in NAMES]
IN_EVERY_RUN = ("parquet-with-pickles", "name-in-the-list-of-bad-records")


@pytest.fixture(scope="module")
def canaries(shared_cluster: SharedCluster) -> Iterator[Canaries]:
    """Secrets in the environment of all drivers; at the end, Ray may have kept none."""
    cluster = shared_cluster.cluster
    with planted() as secrets, watched(secrets) as titles:
        yield secrets
        assert leaks_in_files(secrets, cluster.folder) == []
        assert leaks_in_environments(secrets, rays_processes(cluster.mark)) == []
    assert titles == []


@pytest.fixture(scope="module")
def launcher(canaries: Canaries) -> Iterator[Launcher]:
    with launched() as started:
        yield started


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in IN_EVERY_RUN else pytest.mark.soak) for case in CASES],
    ids=lambda case: case.name,
)
def test_hostile_tree_ends_as_on_one_machine(
    case: Case, tmp_path: Path, launcher: Launcher, canaries: Canaries, shared_cluster: SharedCluster
) -> None:
    cluster = shared_cluster.cluster
    place = Place(
        tmp_path, f"document{uuid.uuid4().hex}", f"outside{uuid.uuid4().hex}", lambda: tmp_path, lambda: tmp_path
    )
    place.make()
    case.build(place)
    on_ray = dataclasses.replace(case, words=(*case.words, "--ray", cluster.address), environment=cluster.environment)
    if found := failures(on_ray, place, launcher, canaries):
        pytest.fail("\n".join(found), pytrace=False)


def test_all_named_cases_exist() -> None:
    assert len(CASES) == len(NAMES) >= 10
