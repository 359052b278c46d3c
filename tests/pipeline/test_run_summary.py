"""The summary of a run adds up from the first record to the last document."""

from __future__ import annotations

from dataclasses import replace

import msgspec

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


def test_documents_that_tokenize_quarantined_are_counted(finished_run: datakit.RunResult) -> None:
    (cache,) = finished_run.steps_of("tokenize")
    totals = msgspec.structs.replace(cache.manifest.totals, rows=141)
    counters = cache.manifest.counters | {"tokenize/documents": 141, "tokenize/quarantined": 2}
    manifest = msgspec.structs.replace(cache.manifest, totals=totals, counters=counters)
    steps = tuple(replace(step, manifest=manifest) if step is cache else step for step in finished_run.steps)
    result = replace(finished_run, steps=steps)
    line = stage_lines(result)[-1]
    assert (line.stage, line.rows_in, line.dropped, line.rows_out) == ("tokenize", 143, {"quarantined": 2}, 141)
    assert "141 of 150 kept" in repr(result) and "2 quarantined" in repr(result)
