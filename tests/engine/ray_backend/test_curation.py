"""Two worker nodes curate like one machine, even if an annotator crashes on a document or nodes are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from datakit.validate.validation import validate
from tests.support.annotate.curated_shelf import write_curated_shelf
from tests.support.faults.node_loss import Run, run, workers
from tests.support.trees import tree

CRASH = 'if any("(shallow and deep) copying" in text for text in batch["text"].to_pylist()): __import__("os")._exit(3)'
LOST = {"annotate": 1, "select": 1}


@pytest.mark.parametrize("strikes", [{}, pytest.param(LOST, marks=pytest.mark.soak)], ids=["quiet", "nodes lost"])
def test_two_nodes_write_the_bytes_of_one_machine(tmp_path: Path, strikes: dict[str, int]) -> None:
    recipe, root = write_curated_shelf(tmp_path / "shelf", CRASH, limit=1), str(tmp_path / "root")
    quiet = datakit.run(recipe, root=tmp_path / "quiet", workers=1)
    assert sorted(step.manifest.quarantine.records for step in quiet.steps_of("annotate")) == [0, 0, 1]
    assert quiet.steps_of("select")[0].manifest.counters["select/dropped_unannotated"] == 1
    (tmp_path / "private").mkdir()
    with workers(tmp_path / "private") as cluster:
        found = run(recipe, root, cluster, strikes)
    assert not found.troubles(Run(tree=tree(str(tmp_path / "quiet"))))
    assert {stage for stage, _ in found.phases.values()} >= {"annotate", "rules", "select", "tokenize"}
    assert found.seen["annotate"], "no task was met while it ran"
    assert bool(found.struck) == bool(strikes)
    assert validate(root).findings == []
