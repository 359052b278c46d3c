"""Makes the edits of a select step again, from the tables of spans and the texts, and compares them with the lists
that the step has written; then applies the lists as later stages do.

Cost: that of the select step. Memory: for each thread, the lists of a partition, and a row group of its texts.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from datakit.engine.task import Step, StepInput
from datakit.select.edit_documents import EditedPair, Editor
from datakit.select.plan_edits import edited_pairs, edits_of
from datakit.select.stage import pairs_of, reasons_to_leave
from datakit.storage.parquet import iterate_shard, read_shard
from datakit.storage.selection.edits import FOLDER, SCHEMA
from datakit.text.edited_texts import EditedTexts
from datakit.validate.between.selections import is_final
from datakit.validate.finding import Result
from datakit.validate.subject import Subject, in_parallel

STAGES = ("normalize", "rules", "dedup", "annotate", "passages")


class _Rows:
    """Keeps the rows that would be written."""

    def __init__(self) -> None:
        self.tables = [SCHEMA.empty_table()]

    def write(self, rows: pa.Table) -> None:
        self.tables.append(rows)


def check(step: Subject, result: Result) -> None:
    """Compare the edits of every partition with those that follow from the step's inputs."""
    if FOLDER not in step.manifest.details:
        return result.skip("the step edits no text")
    if missing := next(filter(None, map(step.missing, STAGES)), ""):
        return result.skip(missing)
    made = step_of(step)
    pairs = [pair for entry in made.inputs_of("normalize") for pair in pairs_of(made, entry)]
    with result.reading(step.manifest_url):
        for rows in in_parallel(partial(_compare, step, made, result), edited_pairs(made, pairs, edits_of(made))):
            result.count("edited document", rows)
    return None


def step_of(step: Subject) -> Step:
    """Return the step as the engine ran it."""
    inputs = tuple(
        StepInput(stage, manifest.dataset if stage in ("normalize", "annotate") else None, entry.directory, manifest)
        for stage in STAGES
        for entry, manifest in step.inputs_of(stage)
    )
    manifest = step.manifest
    return Step(manifest.stage, manifest.dataset, step.directory, manifest.fingerprint, manifest.parameters, inputs)


def _compare(step: Subject, made: Step, result: Result, work: EditedPair) -> int:
    """Compare the edits of one partition; return their number."""
    place, leaving = step.url(work.output), step.url(work.pair.output)
    inputs = [work.pair.dataset, *work.pair.marks, *work.tables.values()]
    if not step.sound(place, leaving, *inputs):
        result.skip("damaged files are not compared")
        return 0
    with result.reading(place):
        edits, drop, written = edits_of(made), frozenset(reasons_to_leave(made)), _Rows()
        editor = Editor(work, {name: edits[name] for name in work.edits})
        left = [joined.leaving for joined in editor.groups(drop, written)]
        found, listed = read_shard(place), read_shard(leaving)
        later = np.array([is_final(reasons) for reasons in listed["reasons"].to_pylist()], bool)
        made_again = pa.concat_tables(written.tables)
        stays = ~np.isin(made_again["row"].to_numpy(), listed["row"].to_numpy()[later])
        if not made_again.filter(pa.array(stays)).combine_chunks().equals(found.combine_chunks()):
            result.find(place, "does not list the edits that follow from the tables of spans")
            return 0
        before = listed.filter(pa.array(~later)).combine_chunks()
        if left and not pa.concat_tables(left).combine_chunks().equals(before):
            result.find(leaving, "does not list the documents that leave because of edits, rules or duplicates")
        texts = EditedTexts(place if found.num_rows else None, work.pair.dataset)
        for table in iterate_shard(work.pair.dataset, ["id", "text"]):
            texts.apply(table)
        texts.expect_end()
        return found.num_rows
    return 0
