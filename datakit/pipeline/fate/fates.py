"""Explains why a document is, or is not, in a dataset: what each stage did with it, and which documents it resembles.

Everything is read from finished steps, so the answer is about the run that made the dataset, not about the recipe. A
document is found by its id, or by the source id (the id in your files) of a record that has its text. A record that
never became a document, because normalize left it out, has no id; it can be found by its source id (`absent.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from datakit.cache.layout import DOCUMENTS_SUFFIX
from datakit.engine.scheduler.finish import read_quarantine
from datakit.errors import InputError, UsageError
from datakit.passages.stage import DROP
from datakit.pipeline.fate.absent import absence, left_out
from datakit.pipeline.fate.behind import Behind, Finished, steps_behind
from datakit.pipeline.fate.edits import bucket_of_document, copies_in_document, edits_of_document, explained
from datakit.pipeline.fate.protection import final_protection, protection
from datakit.pipeline.fate.records import Record, Report, documents_with, records_of
from datakit.pipeline.fate.removals import Comparison, Removal, cluster_of, compared, members_of, removal_of
from datakit.storage import urls
from datakit.storage.selection.leaving_rows import RULE

MOST = 20


@dataclass(frozen=True)
class StageFate:
    """The fate of a document in one stage. outcome: a word such as "kept" or "removed"."""

    stage: str
    outcome: str
    explanation: str
    directory: str


@dataclass(frozen=True)
class DocumentFate:
    """A document of one source: the records with its text, beginning with the one that was kept, and what each stage
    did with the document.
    """

    source: str
    id: str
    records: tuple[Record, ...]
    stages: tuple[StageFate, ...]
    removal: Removal | None


@dataclass(frozen=True)
class Answer:
    """The fates of the requested documents in the run that ended with the step `last`.

    others: the dataset's other finished steps, on which `last` does not depend. cluster: the documents of the cluster,
    if requested. comparisons: at most `most` (see `why`) near duplicates, with the texts that dedup compared. more: the
    number of documents and near duplicates that were omitted because of `most`.
    """

    dataset: str
    last: str
    others: tuple[str, ...]
    documents: tuple[DocumentFate, ...]
    cluster: tuple[dict[str, Any], ...]
    comparisons: tuple[Comparison, ...]
    more: int


def why(
    dataset: str,
    *,
    id: str | None = None,
    source_id: str | None = None,
    cluster: bool = False,
    most: int = MOST,
    report: Report = lambda done, total, what: None,
) -> Answer:
    """Return what each stage did with the documents that have this id or source id (at most `most` of them).

    Raises InputError for an invalid argument or if there is no such document, and NotFoundError for an unfinished step.
    """
    if (id is None) == (source_id is None):
        raise UsageError("give either --id (32 hex digits) or --source-id (the id that the record has in your files)")
    if id is not None and not re.fullmatch("[0-9a-f]{32}", id):
        raise UsageError(f"--id {id!r} is not a document's id (32 lowercase hex digits); is it a --source-id?")
    if most < 1:
        raise UsageError(f"--most is {most}; it must be at least 1")
    behind = steps_behind(dataset)
    found = list(islice(_find(behind, id, source_id, report), most + 1))
    if not found:
        raise InputError(_not_found(behind, dataset, id, source_id, report))
    documents = tuple(_fate(behind, source, identity, source_id) for source, identity in found[:most])
    dedup = behind.of("dedup")
    removals = [document.removal for document in documents if document.removal is not None]
    if cluster:
        if dedup is None or len({document.id for document in documents}) > 1:
            several = "several documents have this source id; give the --id of one of them"
            raise UsageError(f"--cluster: {several if dedup else f'{dataset} has no dedup step'}")
        removals = list(cluster_of(dedup, documents[0].id, report))
    near = [one for one in removals if one.id != one.representative_id]
    pairs = tuple(compared(behind, dedup, removal) for removal in near[:most]) if dedup is not None else ()
    members = tuple(members_of(removals)) if cluster else ()
    last, more = behind.last, max(0, len(near) - most) + max(0, len(found) - most)
    return Answer(last.manifest.dataset, last.directory, behind.others, documents, members, pairs, more)


def _find(behind: Behind, id: str | None, source_id: str | None, report: Report) -> Iterator[tuple[str, str]]:
    """Yield (source, id) of each document with this id or source id, without repeats."""
    for source, step in behind.normalized.items():
        if id is not None:
            if step.row(source, id, ["id"]):
                yield source, id
        else:
            yield from ((source, one) for one in dict.fromkeys(documents_with(step, source_id or "", report)))


def _not_found(behind: Behind, dataset: str, id: str | None, source_id: str | None, report: Report) -> str:
    sources = ", ".join(behind.normalized)
    if source_id is not None:
        about = absence(behind, source_id, report)
        return f"no document of {dataset} or its sources {sources} has the source id {source_id!r}\n{about}"
    counts = [f"{source}: {left_out(step)}" for source, step in behind.normalized.items() if left_out(step)]
    ending = f"; records that never became documents have no id: {'; '.join(counts)}" if counts else ""
    advice = "; ask with --source-id about the record in your files" if counts else ""
    return f"no document of {dataset} or its sources {sources} has the id {id}{ending}{advice}"


def _fate(behind: Behind, source: str, identity: str, source_id: str | None) -> DocumentFate:
    records, dedup = records_of(behind.normalized[source], identity), behind.of("dedup")
    removal = removal_of(dedup, source, identity) if dedup is not None else None
    first = _normalize_fate(behind.normalized[source], records, source_id)
    stages = first, *_stages(behind, source, identity, removal)
    return DocumentFate(source, identity, tuple(records), stages, removal)


def _stages(behind: Behind, source: str, identity: str, removal: Removal | None) -> Iterator[StageFate]:
    """Yield the fate of the document in each stage after normalize, up to the stage that left it out."""
    signed = behind.of("signatures", source)
    row = signed.row(source, identity, ["shingles", "skipped"]) if signed is not None else None
    if signed is not None and row is not None:
        shingles, skipped = row[2]["shingles"], row[2]["skipped"]
        ending = f"; {skipped.replace('_', ' ')}, so it is never compared with others" if skipped else ""
        yield _fate_of(signed, "skipped" if skipped else "signed", f"{shingles:,} shingles{ending}")
    dedup, rules = behind.of("dedup"), behind.of("rules")
    removed = rules.row(source, identity, ["reason", "reasons"]) if rules is not None else None
    if rules is not None:
        yield (
            _rules_fate(rules, removed)
            if removed is not None
            else _fate_of(rules, "kept", protection(behind, rules, source, identity))
        )
    if dedup is not None and removed is None:
        yield _dedup_fate(dedup, removal, compared=row is None or not row[2]["skipped"])
    found = behind.of("passages") or behind.searched
    if found is not None and removed is None and not (removal and removal.reason in found.manifest.parameters[DROP]):
        copies = copies_in_document(found, source, identity)
        yield _fate_of(found, "marked" if copies else "unmarked", copies or "it has no copies of passages to mark")
    select = behind.of("select")
    if select is not None:
        listed = select.row(source, identity, ["reasons"])
        if listed is not None:
            yield _fate_of(select, "removed", explained(listed[2]["reasons"]))
            return
        changes = edits_of_document(select, source, behind.normalized[source], identity)
        bucket = bucket_of_document(select, source, behind.normalized[source], identity)
        protected = final_protection(behind, select, source, identity)
        about = [changes or "it stays in the dataset", *([protected] if protected else [])]
        about += [f"in bucket {bucket}"] if bucket else []
        yield _fate_of(select, "edited" if changes else "kept", "; ".join(about))
    above = behind.normalized[source]
    before = above.row(source, identity, ["id"])
    consolidate = behind.of("consolidate") or behind.published
    for step, suffix in ((consolidate, ""), (behind.of("tokenize"), DOCUMENTS_SUFFIX)):
        if step is None or before is None:
            continue
        columns = ["tokens"] if suffix else ["id"]
        now = step.row(source, identity, columns, suffix)
        if now is not None:
            tokens = f", {now[2]['tokens']:,} tokens" if suffix else ""
            yield _fate_of(step, "kept", f"row {now[1]:,} of {now[0]}{tokens}")
        elif removal is not None and removal.reason in step.manifest.details.get("drop", ()):
            yield _fate_of(step, "removed", f"as dedup decided ({removal.reason} duplicate)")
        else:
            yield _fate_of(step, *why_missing(step, source, before, above))
        if select is None:  # in earlier versions, tokenize read the output of consolidate
            above, before = step, now


def _rules_fate(rules: Finished, removed: tuple[str, int, Any]) -> StageFate:
    first, every = removed[2]["reason"], removed[2]["reasons"]
    others = [reason.removeprefix(RULE) for reason in every if reason != first]
    ending = f"; {', '.join(others)} would have removed it as well" if others else ""
    return _fate_of(rules, "removed", f"by rule {first.removeprefix(RULE)}{ending}")


def _fate_of(step: Finished, outcome: str, explanation: str) -> StageFate:
    return StageFate(step.manifest.stage, outcome, explanation, step.directory)


def _normalize_fate(step: Finished, records: Sequence[Record], source_id: str | None) -> StageFate:
    kept, copies = records[0], len(records) - 1
    if source_id is not None and kept.source_id != source_id:
        asked = next(record for record in records if record.source_id == source_id)
        explanation = f"{place_of(asked)}, has the same text as {place_of(kept)}; what follows is about the latter"
        return _fate_of(step, "duplicate", explanation)
    ending = f"; {copies:,} more record{'s have' if copies > 1 else ' has'} exactly this text" if copies else ""
    return _fate_of(step, "kept", f"from {place_of(kept)}{ending}")


def place_of(record: Record) -> str:
    """Return a description of a record's place: its file, its position in the file, and its source id."""
    if record.file is None:
        place = "a file that was not recorded"
    elif record.position is None:
        place = f"{record.file} (position unknown because of a transform)"
    else:
        place = f"{record.file}, {record.unit} {record.position}"
    return place if record.source_id is None else f"{place}, source id {record.source_id!r}"


def _dedup_fate(step: Finished, removal: Removal | None, compared: bool) -> StageFate:
    if removal is None and not compared:
        return _fate_of(step, "retained", "it has no signature, so dedup did not compare it with others")
    if removal is None:
        return _fate_of(
            step, "retained", "no other retained document is similar enough; --cluster lists those removed in its favor"
        )
    kept = f"{removal.representative_id} of {removal.representative_source}"
    if removal.id == removal.representative_id:
        return _fate_of(step, "removed", f"source {removal.representative_source} has exactly the same text")
    copy = "an exact copy of a near" if removal.reason == "exact" else "a near"
    return _fate_of(step, "removed", f"{copy} duplicate of {kept}, which is retained; Jaccard {removal.jaccard:.3f}")


def why_missing(step: Finished, source: str, before: tuple[str, int, Any], above: Finished) -> tuple[str, str]:
    """Return the outcome and explanation for a document that is missing from `step`. before: the document's place in
    the upstream step `above`.
    """
    path, row, _ = before
    if step.manifest.quarantine.records:
        for record in read_quarantine(step.directory):
            if record.position == row and f"/{record.file}".endswith(f"/{source}/{urls.name(path)}"):
                return "quarantined", record.reason
    return "missing", f"{above.url(path)} has it, and nothing says why this step does not; was a directory changed?"
