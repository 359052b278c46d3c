"""The summary of a run adds up from the first record to the last document."""

from __future__ import annotations

import datakit
from datakit.pipeline import stage_lines


def test_lines_add_up_from_records_to_documents(finished_run: datakit.RunResult) -> None:
    lines = {line.stage: line for line in stage_lines(finished_run)}
    normalize, select = lines["normalize"], lines["select"]
    assert (normalize.rows_in, normalize.dropped, normalize.rows_out) == (150, {"blank": 1, "exact duplicates": 2}, 147)
    assert lines["signatures"].rows_in == select.rows_in == 147
    assert lines["dedup"].found == {"marked exact": 3, "marked fuzzy": 1}
    assert select.dropped == {"exact duplicates across sources": 3, "fuzzy duplicates": 1}
    consolidate = lines["consolidate"]
    assert (consolidate.dropped, consolidate.rows_in) == ({}, consolidate.rows_out)
    assert select.rows_out == consolidate.rows_out == lines["tokenize"].rows_in == lines["tokenize"].rows_out == 143
