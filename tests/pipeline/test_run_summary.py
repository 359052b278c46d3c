"""The summary of a run adds up from the first record to the last document."""

from __future__ import annotations

from dataclasses import replace

import msgspec

import datakit
from datakit.pipeline.run_summary import stage_lines


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


def test_time_of_a_stage_counts_overlapping_steps_once(finished_run: datakit.RunResult) -> None:
    """The first source is normalized from 1 to 4 s, and the other one from 2 to 3 s or from 3 to 7 s."""
    steps = finished_run.steps_of("normalize")
    for (began, seconds), expected in {(2.0, 1.0): 3.0, (3.0, 4.0): 6.0, (5.0, 1.0): 4.0}.items():
        timed = (replace(steps[0], began=1.0, seconds=3.0), replace(steps[1], began=began, seconds=seconds))
        (line,) = stage_lines(replace(finished_run, steps=timed))
        assert line.seconds == expected
