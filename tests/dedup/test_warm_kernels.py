"""After warming up, no task compiles a kernel."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from datakit.dedup import stage, warm_kernels
from datakit.dedup.clusters import components
from datakit.dedup.minhash import kernels as minhash_kernels
from datakit.dedup.minhash.signatures import sign
from datakit.dedup.verification import kernels as verify_kernels
from datakit.text import shingle_kernels
from datakit.text.shingles import shingle_sets
from tests.support.dedup.dedup_inputs import deduplicate
from tests.support.dedup.made_up_texts import mixed_sources


def test_no_task_compiles_after_warming_up(tmp_path: Path) -> None:
    warm_kernels.warm()
    compiled = [
        minhash_kernels.sign,
        shingle_kernels.shingle_sets,
        components._unite,
        verify_kernels.verify_documents,
        verify_kernels.copy_lists,
    ]
    before = [len(kernel.signatures) for kernel in compiled]
    texts = pa.array(["a b c d e f", "ü b c d e f", "x"], pa.large_string())
    for column in (texts, texts.slice(1), texts.cast(pa.string()), pa.chunked_array([texts, texts.slice(2)])):
        sign(column, bands=14, rows=8, ngram=5, seed=42, min_shingles=5)
        shingle_sets(column, 5)
    deduplicate(tmp_path, mixed_sources(tmp_path), stage.Config(max_removal=1.0))
    assert [len(kernel.signatures) for kernel in compiled] == before
