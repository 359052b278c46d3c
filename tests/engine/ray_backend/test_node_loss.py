"""A cluster that loses a node in stage after stage, with its root on S3, writes the bytes of an undisturbed machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from tests.support.faults.node_loss import Run, run, workers
from tests.support.s3 import s3_root
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree


@pytest.mark.soak
def test_lost_nodes_change_no_byte(tmp_path: Path) -> None:
    recipe = write_shelf(tmp_path / "shelf", sources=1)
    datakit.run(recipe, root=tmp_path / "quiet", workers=2)
    (tmp_path / "private").mkdir()
    stages = {
        "normalize": "sort",
        "signatures": "sign",
        "dedup": "verify",
        "consolidate": "write",
        "tokenize": "encode",
    }
    with workers(tmp_path / "private") as cluster, s3_root(latency=0.05) as root:
        shaken = run(recipe, root, cluster, dict.fromkeys(stages.values(), 1))
    assert shaken.struck, "no task was met while it ran"
    assert not shaken.troubles(Run(tree=tree(str(tmp_path / "quiet"))))
