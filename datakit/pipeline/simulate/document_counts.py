"""Computes how many documents of a simulated dedup step are copies, and how many are clustered."""

from __future__ import annotations

from datakit.dedup.partitions import Part
from datakit.pipeline.simulate.corpus import Corpus
from datakit.pipeline.simulate.effects import PhaseOf
from datakit.storage.ids import partition_name


def copies_in(corpus: Corpus, part: Part) -> int:
    """Return how many documents of a part an earlier source contains."""
    known = corpus.removed_in.get(_name(part))
    if known is not None:
        return known[0]
    return _spread(corpus.exact, part) if part.source_number else 0


def near_copies_in(corpus: Corpus, part: Part) -> int:
    """Return how many documents of a part are removed as near duplicates."""
    known = corpus.removed_in.get(_name(part))
    return min(_spread(corpus.fuzzy, part) if known is None else known[1], part.rows - copies_in(corpus, part))


def _name(part: Part) -> str:
    return f"{part.source}/{partition_name(part.index, part.count)}"


def _spread(portion: float, part: Part) -> int:
    """Return `portion` of a part's rows, rounded so that rounding errors do not accumulate over the parts."""
    first = part.first_row
    return int(portion * (first + part.rows)) - int(portion * first)


def clustered(about: PhaseOf) -> int:
    """Return the number of clustered documents of a dedup step."""
    return int(about.corpus.clustered * sum(entry.manifest.totals.rows for entry in about.step.inputs_of("normalize")))


def giant_rows(about: PhaseOf, rows: int) -> int:
    """Return how many of these clustered rows belong to the giant component; 0 if the step's plan does not know it."""
    return int(rows * about.corpus.giant) if about.phase.shared["giants"] else 0
