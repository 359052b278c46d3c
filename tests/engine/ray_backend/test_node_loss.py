"""A cluster that loses a node in one stage after the other, its root on S3, ends with the bytes of a quiet machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import datakit
from tests.support.s3 import s3_root
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree

if importlib.util.find_spec("ray") is None:  # importing it here would be before our settings for it
    pytest.skip("datakit[ray] is not installed", allow_module_level=True)

from tests.support.faults.node_loss import Run, run, workers

pytestmark = pytest.mark.ray


def test_nodes_lost_in_stage_after_stage_change_no_byte(tmp_path: Path) -> None:
    recipe = write_shelf(tmp_path / "shelf", sources=1)
    datakit.run(recipe, root=tmp_path / "quiet", workers=2)
    (tmp_path / "private").mkdir()
    stages = {"normalize": "sort", "signatures": "sign", "dedup": "verify", "consolidate": "join", "tokenize": "encode"}
    with workers(tmp_path / "private") as cluster, s3_root(latency=0.05) as root:
        shaken = run(recipe, root, cluster, dict.fromkeys(stages.values(), 1))
    assert shaken.struck, "no task was met while it ran"
    assert not shaken.troubles(Run(tree=tree(str(tmp_path / "quiet"))))
