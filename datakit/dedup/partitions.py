"""Assigns row numbers to all documents that dedup reads, and checks that normalized and signature files have equal row
counts.

Row numbers follow the order of the sources in the recipe, of the partitions in each source, and of the documents in
each partition. Thus 8 bytes identify a document throughout the stage, and sorting by row number sorts in recipe order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from datakit.dedup.score_tables import tables_of
from datakit.engine.task import Step, StepInput
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.selection.leaving_rows import LeavingRows, aligned


@dataclass(frozen=True)
class Part:
    """Partition `index` of the `count` partitions of a source. documents, signatures: paths of the normalized file and
    the signature file, relative to the step's directory. source_number: the source's index in the recipe. left_out: the
    path of the list of the documents that the rules remove, of which dedup takes no notice; "" if there are none.
    scores: the path of the table that holds each score of `prefer` that an annotator writes.
    """

    source: str
    source_number: int
    index: int
    count: int
    first_row: int
    rows: int
    documents: str
    signatures: str
    text_bytes: int
    signature_bytes: int
    left_out: str = ""
    scores: dict[str, str] = field(default_factory=dict)

    @property
    def last_row(self) -> int:
        """The end of this partition's row numbers (exclusive)."""
        return self.first_row + self.rows


def all_parts(step: Step, scores: Sequence[str] = ()) -> list[Part]:
    """Return the partitions in recipe order. scores: the columns of annotators that `prefer` needs. Raises CorruptError
    if the files of a partition differ in row count.
    """
    signatures = {entry.source: entry for entry in step.inputs_of("signatures")}
    parts: list[Part] = []
    row = 0
    rules = next(iter(step.inputs_of("rules")), None)
    annotated = {entry.source: entry for entry in step.inputs_of("annotate")}
    for number, entry in enumerate(step.inputs_of("normalize")):
        lists = _left_out(rules, entry, step.directory)
        mine = entry.manifest.partitions
        tables = tables_of(annotated[entry.source], mine, scores, step.directory) if scores else []
        for part in _parts_of(number, entry, signatures[entry.source], row, step.directory):
            part = replace(part, left_out=lists[part.index]) if lists else part
            part = replace(part, scores=tables[part.index]) if tables else part
            parts.append(part)
            row += part.rows
    return parts


def _left_out(rules: StepInput | None, documents: StepInput, directory: str) -> list[str]:
    """Return, for each partition of a source, the path of the list of the documents that the rules remove."""
    if rules is None:
        return []
    assert documents.source is not None
    here = urls.relative(rules.directory, directory)
    lists = aligned(rules.directory, rules.manifest, documents.source, documents.manifest.partitions)
    return [f"{here}/{one.path}" if one.rows else "" for one in lists]


def _parts_of(number: int, documents: StepInput, signatures: StepInput, row: int, directory: str) -> Iterator[Part]:
    ours, theirs = documents.manifest.partitions, signatures.manifest.partitions
    if [part.rows for part in ours] != [part.rows for part in theirs]:
        raise CorruptError(
            f"{signatures.directory} and {documents.directory} have different row counts; remove the former and run "
            "again"
        )
    here, there = (urls.relative(entry.directory, directory) for entry in (documents, signatures))
    for index, (text, signature) in enumerate(zip(ours, theirs, strict=True)):
        yield Part(
            source=documents.source or documents.manifest.dataset,
            source_number=number,
            index=index,
            count=len(ours),
            first_row=row,
            rows=text.rows,
            documents=f"{here}/{text.path}",
            signatures=f"{there}/{signature.path}",
            text_bytes=text.text_bytes or text.bytes,
            signature_bytes=signature.bytes,
        )
        row += text.rows


def left_out(part: Part, directory: str) -> LeavingRows:
    """Return the documents of a partition that the rules remove. directory: that of the dedup step."""
    url = urls.join(directory, part.left_out) if part.left_out else None
    return LeavingRows(url, urls.join(directory, part.signatures))
