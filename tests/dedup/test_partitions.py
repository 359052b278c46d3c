"""Signatures must belong to the documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datakit.dedup import stage
from datakit.errors import CorruptError
from tests.support.dedup.dedup_inputs import dedup_step, run_step, write_source
from tests.support.dedup.made_up_texts import text_of


def test_signatures_of_other_documents_are_rejected(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(5)]
    step = dedup_step(tmp_path / "dedup", [write_source(tmp_path, "s", texts)], stage.Config())
    fewer = write_source(tmp_path / "other", "s", texts[:4])
    with pytest.raises(CorruptError, match="have different row counts"):
        run_step(replace(step, inputs=(fewer, step.inputs[1])))
