"""Compares lists of leaving documents with the documents of their partitions and with the reasons to leave.

    rules     each listed row holds the listed document, and a rule of the recipe removes it
    select    lists exactly the documents that rules or dedup marked for a reason in the recipe, with all these reasons

Cost: parsing ids at a few ns per byte; no text is read. Memory: for each thread, 32 bytes per document of a partition,
and the reasons of those that leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import numpy as np

from datakit.conditions.config import DROP
from datakit.select.edit_documents import EMPTY, UNANNOTATED
from datakit.select.final.equal_texts import EQUAL
from datakit.storage.manifest import Manifest, Partition
from datakit.storage.parquet import read_shard
from datakit.storage.selection.leaving_rows import FINAL, RULE
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, first_difference, ids_of, positions, read_ids
from datakit.validate.subject import Subject, in_parallel

OF_EDITS = ([EMPTY], [UNANNOTATED])  # reasons that come from edits; the check of the edits compares these documents
STAGES = ("rules", "select")
Aligned = tuple[Partition, str, tuple[str, ...]]  # the list, the URL of its partition, those of the marks for it


def check(step: Subject, result: Result) -> None:
    """Compare each list of a step with its partition and with the marks of the step's inputs."""
    if missing := next(filter(None, map(step.missing, ("normalize", "rules", "dedup"))), ""):
        return result.skip(missing)
    drop = rules_of(step.manifest) if step.manifest.stage == "rules" else step.manifest.details["drop"]
    for rows in in_parallel(partial(_compare, step, result, frozenset(drop)), list(_aligned(step, result))):
        result.count("document", rows)
    return None


def is_final(reasons: list[str]) -> bool:
    """Return True if a document leaves only after texts are edited; `final/check.py` checks these documents."""
    return reasons == [EQUAL] or all(reason.startswith(FINAL) for reason in reasons)


def follows_edits(reasons: list[str]) -> bool:
    """Return True if a document leaves because of edits or after them."""
    return reasons in OF_EDITS or is_final(reasons)


def rules_of(manifest: Manifest) -> list[str]:
    """Return the reasons for which the rules of a `rules` step remove documents."""
    return [RULE + rule["name"] for rule in manifest.parameters["rules"] if rule["action"] == DROP]


def _aligned(step: Subject, result: Result) -> Iterator[Aligned]:
    """Yield the lists with what belongs to them; report sources whose numbers of partitions differ."""
    deciding = [] if step.manifest.stage == "rules" else [*step.inputs_of("rules"), *step.inputs_of("dedup")]
    for entry, above in step.inputs_of("normalize"):
        for source, theirs in above.by_source.items():
            ours = step.manifest.partitions_of(source)
            marks = [[one.url(part) for part in manifest.partitions_of(source)] for one, manifest in deciding]
            if any(len(found) != len(theirs) for found in (ours, *marks)):
                counts = ", ".join(str(len(found)) for found in (ours, theirs, *marks))
                result.find(
                    step.manifest_url, f"has another number of partitions of {source!r} than its inputs ({counts})"
                )
                continue
            for number, part in enumerate(ours):
                yield part, entry.url(theirs[number]), tuple(found[number] for found in marks)


def _compare(step: Subject, result: Result, drop: frozenset[str], aligned: Aligned) -> int:
    """Compare one list; return the number of documents in it."""
    part, dataset, marks = aligned
    place = step.place(part)
    if not step.sound(place, dataset, *marks):
        result.skip("the documents of damaged files are not compared")
        return 0
    with result.reading(place):
        found = read_ids(place)
        with result.reading(dataset):
            expected = read_ids(dataset)
            table = read_shard(place, ["row", "reasons"])
            rows, reasons = table["row"].to_numpy().astype(np.int64), table["reasons"].to_pylist()
            if len(rows) and not (rows.max() < len(expected) and expected[rows].equals(found)):
                result.find(place, "lists rows that hold documents with different ids")
            elif step.manifest.stage == "rules":
                _check_rules(place, reasons, drop, result)
            else:
                others = np.array([not follows_edits(reason) for reason in reasons], bool)
                reasons = [reason for reason in reasons if not follows_edits(reason)]
                _check_marks(place, (found[others], expected), reasons, _marked(expected, marks, drop, result), result)
        return len(found)
    return 0


def _check_rules(place: str, reasons: list[list[str]], drop: frozenset[str], result: Result) -> None:
    decided = read_shard(place, ["reason"])["reason"].to_pylist()
    for reason, every in zip(decided, reasons, strict=True):
        if reason not in every or not drop.issuperset(every) or every != sorted(set(every)):
            result.find(
                place, f"gives the reasons {every}, of which {reason!r} decides; they are not rules of the recipe"
            )
            return


def _marked(expected: Ids, marks: tuple[str, ...], drop: frozenset[str], result: Result) -> dict[int, list[str]]:
    """Return the reasons in `drop` for which files mark the documents of a partition, by row."""
    found = defaultdict[int, list[str]](list)
    for url in marks:
        with result.reading(url):
            table = read_shard(url, ["id", "reason"])
            if not table.num_rows:
                continue
            at = positions(ids_of(table["id"]), expected) if len(expected) else np.full(table.num_rows, -1)
            if (at < 0).any():
                result.find(url, "removes a document that its input does not have")
            for row, reason in zip(at.tolist(), table["reason"].to_pylist(), strict=True):
                if row >= 0 and reason in drop:
                    found[row].append(reason)
    return found


def _check_marks(
    place: str, ids: tuple[Ids, Ids], reasons: list[list[str]], marked: dict[int, list[str]], result: Result
) -> None:
    """Compare a selection with the marks. ids: the listed ids, and the ids of all documents of the partition."""
    found, expected = ids
    rows = sorted(marked)
    difference = first_difference(expected[np.array(rows, np.int64)], found)
    if difference:
        result.find(place, f"does not match what its inputs mark: it {difference}")
    elif reasons != [sorted(marked[row]) for row in rows]:
        result.find(place, "gives different reasons than its inputs")
