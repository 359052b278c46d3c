"""Keeps the lists of a select step between its phases: those of the documents that leave, and those of the edits.

If documents leave after texts have been edited, the lists are written again without them. Lists that a later phase
replaces are drafts: they lie in the step's exchange folder, which is removed when the step ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from datakit.engine.task import EXCHANGE_FOLDER
from datakit.select.edit_documents import EditedPair, WrittenEdits
from datakit.select.write_selections import Pair, Written
from datakit.storage import urls
from datakit.storage.selection.edits import edits_path


@dataclass(frozen=True)
class Drafts:
    """The lists of all partitions, after a phase. written: the selections, in the order of the partitions. lists: the
    lists of edits, of the partitions whose texts are edited.
    """

    written: list[Written]
    lists: list[WrittenEdits]

    def edits(self) -> dict[tuple[str, str], WrittenEdits]:
        """Return the lists of edits, by source and file name of the partition."""
        return {(one.source, urls.name(one.file.path)): one for one in self.lists}


def folder_of(rewritings: int) -> str:
    """Return the folder for lists that will be written again this many times, with a slash; "" for the final ones."""
    return f"{EXCHANGE_FOLDER}/drafts-{rewritings}/" if rewritings else ""


def drafted(pair: Pair, rewritings: int) -> Pair:
    """Return a partition whose selection will be written again this many times."""
    return replace(pair, output=folder_of(rewritings) + pair.output)


def drafted_edits(pair: EditedPair, rewritings: int) -> EditedPair:
    """Return a partition whose edits will be written again this many times. Its selection is a draft already."""
    return replace(pair, output=folder_of(rewritings) + edits_path(pair.pair.source, urls.name(pair.output)))


def in_order(written: Sequence[Written], pairs: Sequence[Pair]) -> list[Written]:
    """Return the selections in the order of the partitions."""
    place = {(pair.source, urls.name(pair.output)): number for number, pair in enumerate(pairs)}
    return sorted(written, key=lambda one: place[one.partition.source, urls.name(one.partition.path)])
