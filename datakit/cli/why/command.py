"""Implements `datakit why`, which prints a document's fate at every stage, and near duplicates side by side."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

from datakit.cli.console import note, progress_note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.cli.why.side_by_side import side_by_side
from datakit.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from datakit.pipeline.fate import Answer, DocumentFate
    from datakit.pipeline.fate.removals import Comparison

WIDEST = 160
RECORDS_SHOWN, CLUSTER_SHOWN = 10, 100


def why(
    dataset: str,
    /,
    *,
    id: str | None = None,
    source_id: str | None = None,
    cluster: Flag = False,
    most: int = 20,
    json: Flag = False,
) -> int:
    """Explain why a document is, or is not, in a dataset: what each stage did with it.

    For a near duplicate, shows its text beside the text of the document that was kept instead, and the similarity of
    the two. No other text is shown.

    Examples:
      datakit why data/demo --id 5f0cd7a1b2c3d4e5f60718293a4b5c6d
      datakit why data/demo --source-id novels/0042 --json
      datakit why data/demo --id 5f0cd7a1b2c3d4e5f60718293a4b5c6d --cluster

    Parameters
    ----------
    dataset
        A dataset's directory, which stands for its current run, or a step's directory or manifest.
    id
        The document's id: 32 hex digits, from the column `id` of any output.
    source_id
        The id that the document's record has in your files. The search reads all source ids. If none matches, the
        files of all sources are read again, where possible, to find out why the record was left out.
    cluster
        Also list the document's cluster, with the texts of its near duplicates. A cluster consists of removed
        documents and of the documents that were retained in their place.
    most
        Show at most this many documents and at most this many pairs of texts.
    json
        Print one JSON object, with the whole texts of near duplicates.
    """
    from datakit.api import why as explain

    answer = explain(dataset, id=id, source_id=source_id, cluster=cluster, most=most, report=progress_note("searched"))
    if json:
        say_json(answer)
        return 0
    width = min(WIDEST, max(80, shutil.get_terminal_size().columns))
    for document in answer.documents:
        _show_document(document, width)
    if cluster:
        _show_cluster(answer)
    for pair in answer.comparisons:
        _show_pair(pair, width)
    for line in _endings(answer):
        note(line)
    return 0


def _show_document(document: DocumentFate, width: int) -> None:
    from datakit.pipeline.fate import place_of

    say(f"document {document.id} of {document.source}")
    head = max(len(stage.stage) for stage in document.stages) + 2
    second = head + max(len(stage.outcome) for stage in document.stages) + 2
    for stage in document.stages:
        text = f"{stage.stage:{head}}{stage.outcome:{second - head}}{stage.explanation}"
        say(
            textwrap.fill(
                text, width - 2, initial_indent="  ", subsequent_indent=" " * (second + 2), break_long_words=False
            )
        )
    copies = document.records[1:]
    for record in copies[:RECORDS_SHOWN]:
        say(f"  equal text: {place_of(record)}")
    if len(copies) > RECORDS_SHOWN:
        say(f"  ... and {len(copies) - RECORDS_SHOWN:,} more (--json lists all)")
    say()


def _show_cluster(answer: Answer) -> None:
    if not answer.cluster:
        say("dedup removed neither this document nor another one in favor of it")
        return
    rows = [
        [one["id"], one["source"], one["reason"], f"{one['jaccard']:.3f}" if "jaccard" in one else None]
        for one in answer.cluster[:CLUSTER_SHOWN]
    ]
    say(f"cluster of {counted(len(answer.cluster), 'document')}:")
    say(table(("document", "source", "", "Jaccard"), rows))
    if len(answer.cluster) > CLUSTER_SHOWN:
        say(f"... and {len(answer.cluster) - CLUSTER_SHOWN:,} more (--json lists all)")
    say()


def _show_pair(pair: Comparison, width: int) -> None:
    removal = pair.removal
    say(f"{pair.measure} {pair.similarity:.3f} (duplicates have at least {pair.threshold}):")
    titles = (
        f"removed from {removal.source}:\n{removal.id}",
        f"retained in {removal.representative_source}:\n{removal.representative_id}",
    )
    say(side_by_side(titles, (pair.text, pair.representative_text), width))
    say()


def _endings(answer: Answer) -> Iterator[str]:
    """Yield the last lines of the output: what the answer is about, what it leaves out, and what to do next."""
    yield f"according to {answer.last}"
    if answer.others:
        yield f"other finished steps (to ask about one, give its directory): {', '.join(answer.others)}"
    if answer.more:
        yield f"{answer.more:,} more are not shown (--most shows more)"
    first, stages = answer.documents[0], [stage for document in answer.documents for stage in document.stages]
    for stage in [stage for stage in stages if (stage.stage, stage.outcome) == ("tokenize", "kept")][:1]:
        yield f"its tokens: datakit cache show {stage.directory} --document {first.id}"
    if not answer.cluster and any(stage.stage == "dedup" for stage in stages):
        yield f"its cluster: datakit why {answer.last} --id {first.id} --cluster"
