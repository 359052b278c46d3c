"""Made-up texts with known similarities, and the checks that every result of dedup must pass."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.dedup.dedup_inputs import Deduplicated, write_source

VOCABULARY = [f"word{i}" for i in range(5000)]


def text_of(seed: int, words: int = 120) -> str:
    """Return a text that resembles no other."""
    return " ".join(random.Random(seed).choices(VOCABULARY, k=words))


def edited(text: str, seed: int, changes: int = 1) -> str:
    """Replace some words by new ones; each change affects five shingles."""
    generator, words = random.Random(seed), text.split()
    for place in generator.sample(range(len(words)), changes):
        words[place] = f"edit{generator.random()}"
    return " ".join(words)


def mixed_sources(root: Path) -> list:
    """Write sources with exact and fuzzy duplicates within and across them, a chain, and a large family."""
    originals = [text_of(i, 60 + i) for i in range(50)]
    family = [edited(text_of(1000), i, 1) for i in range(30)]
    chain = [text_of(2000)]
    for i in range(12):
        chain.append(edited(chain[-1], i, 2))
    near = [edited(text, i, 1 + i % 6) for i, text in enumerate(originals)]
    return [
        write_source(root, "a", originals + family[:15] + chain[::2], bits=3),
        write_source(root, "b", near + family[8:22] + chain[1::2], bits=0),
        write_source(root, "c", originals[:30] + near[15:35] + family[18:], bits=2),
    ]


def removals(result: Deduplicated) -> dict[tuple[str, str], dict]:
    """Return the attributes of every removed document by (source, id)."""
    return {(row["source"], row["id"]): row for row in result.attributes()}


def check_conservation(result: Deduplicated) -> None:
    """Check that every document is retained or removed, and that totals, sources and files agree."""
    counters, sources = result.manifest.counters, result.manifest.details["sources"]
    gone = counters["dedup/exact_removed"] + counters["dedup/fuzzy_removed"]
    documents = sum(entry.manifest.totals.rows for entry in result.inputs if entry.role == "normalize")
    assert counters["dedup/documents_in"] == documents == counters["dedup/retained"] + gone
    assert result.manifest.totals.rows == gone == len(result.attributes())
    for total, name in (("documents_in", "documents"), ("exact_removed", "exact"), ("fuzzy_removed", "fuzzy")):
        assert sum(entry[name] for entry in sources.values()) == counters[f"dedup/{total}"]
    assert counters["dedup/comparisons"] == counters["dedup/rejected"] + counters["dedup/fuzzy_removed"]
