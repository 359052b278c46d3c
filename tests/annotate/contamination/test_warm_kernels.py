"""After `warm`, no kernel is compiled or loaded again, whether the index is in memory or in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from datakit.annotate.contamination import hit_kernels, index_kernels, ngram_hashes, search_kernels
from datakit.annotate.contamination.config import Config, EvaluationFiles
from datakit.annotate.contamination.warm_kernels import warm

KERNELS = (ngram_hashes.measure, index_kernels.extract, search_kernels.search, hit_kernels.group)


@pytest.mark.parametrize("folder", ["", "index"])
def test_no_kernel_is_compiled_after_warming(tmp_path: Path, folder: str) -> None:
    warm()
    before = [len(kernel.signatures) for kernel in KERNELS]
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"question": "one two three"}) + "\n")
    config = Config({"one": EvaluationFiles(str(path))}, 3, 2, 0, index_folder=str(tmp_path / folder) if folder else "")
    batch = pa.record_batch({"text": pa.array(["zero one two three", ""], pa.large_string())})
    assert config.annotator().annotate(batch)["items"].to_pylist() == [1, None]
    assert [len(kernel.signatures) for kernel in KERNELS] == before
