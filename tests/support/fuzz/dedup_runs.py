"""Compares whole dedup runs with brute force in plain Python: who is removed, for whom, why, and all counts.

The band keys come from `dedup_oracle`, so candidates are those of MinHash with the same seed; the rest is one loop over
all documents in survivor order, for any cut of the work into tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from datakit.dedup import stage
from datakit.dedup.verification.rules import LISTED_PER_COMPARISON
from tests.support.dedup import dedup_oracle as oracle
from tests.support.dedup.dedup_inputs import Deduplicated, deduplicate, id_of, write_source
from tests.support.dedup.edge_files import ROUNDS
from tests.support.dedup.made_up_texts import check_conservation

SIZES = {
    "datakit.dedup.stage.TASK_BYTES": 2000, "datakit.engine.partition_grouping.LARGEST": 2000,
    "datakit.engine.partition_grouping.SMALLEST": 2000,
    "datakit.dedup.clusters.bands.FOLD_ROWS": 5, "datakit.dedup.exact_duplicates.TARGET_BYTES": 500, **ROUNDS,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Texts by source, with a score each. bits: partitions of each source, as a power of two."""

    texts: tuple[tuple[str, ...], ...]
    bits: tuple[int, ...]
    scores: tuple[tuple[float | None, ...], ...]
    config: stage.Config
    small_tasks: bool = False


@dataclass
class Document:
    """A document as brute force sees it. kept_by: the document that takes its place."""

    source: int
    text: str
    score: float
    shingles: set[tuple[str, ...]]
    keys: list[int] = field(default_factory=list)
    kept_by: Document | None = None
    jaccard: float = 0.0
    cluster: str = ""

    @property
    def id(self) -> str:
        return id_of(self.text)


def check(case: Case) -> None:
    """Run both stages, and compare every removal and counter with brute force."""
    with TemporaryDirectory() as folder, ExitStack() as patches:
        for name, size in SIZES.items() if case.small_tasks else ():
            patches.enter_context(patch(name, size))
        columns = zip(case.texts, case.bits, case.scores, strict=True)
        sources = [write_source(Path(folder), f"s{i}", *column) for i, column in enumerate(columns)]
        result = deduplicate(Path(folder), sources, case.config)
        check_conservation(result)
        _compare(result, *brute_force(case))


def _compare(result: Deduplicated, removed: dict[tuple[str, str], dict[str, Any]], counts: Counter[str]) -> None:
    found = {(row["source"], row["id"]): row for row in result.attributes()}
    assert found == removed
    ours = {name: result.manifest.counters[f"dedup/{name}"] for name in counts}
    assert ours == dict(counts)


def brute_force(case: Case) -> tuple[dict[tuple[str, str], dict[str, Any]], Counter[str]]:
    """Return the attributes of every removed document by (source, id), and the counters."""
    copies, documents = _exact(case)
    counts: Counter[str] = Counter(
        dict.fromkeys(("candidates", "ruled_out", "comparisons", "rejected", "capped", "crowded"), 0)
    )
    counts["exact_removed"], counts["clustered"] = len(copies), 0
    eligible = [one for one in documents.values() if len(one.shingles) >= case.config.min_shingles]
    for one in eligible:
        settings = case.config
        one.keys = oracle.band_keys(one.text, settings.bands, settings.rows, settings.ngram, settings.seed)
    _label(eligible, counts)
    _judge(sorted(eligible, key=lambda one: _order(one, case.config.prefer)), case.config, counts)
    fuzzy = [one for one in eligible if one.kept_by is not None]
    counts["fuzzy_removed"] = len(fuzzy)
    gone = [(one.source, one, "fuzzy") for one in fuzzy] + [(source, first, "exact") for source, first in copies]
    return {(f"s{source}", one.id): _row(source, one, reason) for source, one, reason in gone}, counts


def _row(source: int, one: Document, reason: str) -> dict[str, Any]:
    """The attributes of a removed document. Its first copy may have been removed, too, for a similar document."""
    kept, cluster, jaccard = (one.kept_by, one.cluster, one.jaccard) if one.kept_by else (one, one.id, 1.0)
    return {
        "source": f"s{source}", "id": one.id, "reason": reason, "cluster_id": cluster, "representative_id": kept.id,
        "representative_source": f"s{kept.source}", "jaccard": jaccard,
    }  # fmt: skip


def _exact(case: Case) -> tuple[list[tuple[int, Document]], dict[str, Document]]:
    """Return (source, first copy) of each later copy, and the first copies by text."""
    copies: list[tuple[int, Document]] = []
    first: dict[str, Document] = {}
    for source, (texts, scores) in enumerate(zip(case.texts, case.scores, strict=True)):
        for text, score in dict(zip(texts, scores, strict=True)).items():
            if text in first:
                copies.append((source, first[text]))
            else:
                value = float("-inf") if score is None else score
                first[text] = Document(source, text, value, oracle.shingles(text, case.config.ngram))
    return copies, first


def _label(documents: list[Document], counts: Counter[str]) -> None:
    """Give every document the smallest id of the documents that it is connected with by shared keys."""
    by_key: dict[int, list[Document]] = defaultdict(list)
    for one in documents:
        one.cluster = one.id
        for key in one.keys:
            by_key[key].append(one)
    changed = True
    while changed:
        changed = False
        for group in by_key.values():
            smallest = min(one.cluster for one in group)
            for one in group:
                changed |= one.cluster != smallest
                one.cluster = smallest
    counts["clustered"] = sum(any(len(by_key[key]) > 1 for key in one.keys) for one in documents)


def _order(one: Document, prefer: tuple[str, ...]) -> tuple[Any, ...]:
    keys = {"longest": -len(one.text.encode()), "source": one.source, "score:score": -one.score}
    return (*(keys[name] for name in prefer), one.id)


def _judge(documents: list[Document], config: stage.Config, counts: Counter[str]) -> None:
    listed: dict[int, list[Document]] = defaultdict(list)  # the retained documents that have a key
    most = LISTED_PER_COMPARISON * config.max_comparisons
    for one in documents:
        shared = Counter(id(other) for key in one.keys for other in listed[key][:most])
        others = {id(other): other for key in one.keys for other in listed[key][:most]}
        counts["candidates"] += len(others)
        _compare_with(one, sorted(others.values(), key=lambda other: (-shared[id(other)], other.id)), config, counts)
        if one.kept_by is None:
            counts["crowded"] += any(len(listed[key]) > most for key in one.keys)
            for key in one.keys:
                listed[key].append(one)


def _compare_with(one: Document, candidates: list[Document], config: stage.Config, counts: Counter[str]) -> None:
    compared, size = 0, len(one.shingles)
    by_jaccard = config.measure == "jaccard"
    for other in candidates:
        smaller, larger = sorted((size, len(other.shingles)))
        if smaller / (larger if by_jaccard else size) < config.threshold:
            counts["ruled_out"] += 1
            continue
        if compared == config.max_comparisons:
            counts["capped"] += 1
            break
        compared += 1
        counts["comparisons"] += 1
        jaccard = oracle.jaccard(one.shingles, other.shingles)
        if (jaccard if by_jaccard else len(one.shingles & other.shingles) / size) >= config.threshold:
            one.kept_by, one.jaccard = other, jaccard
            return
        counts["rejected"] += 1


WORDS = ["a", "B", "b", "word", "42", "É", "don't", "漢", "字", "ไทย", "σς", "İ", "-", "x_y", "한글", "カ", "e\u0301"]
SPACES = st.sampled_from([" ", " ", "\n", ", ", "。"])


@st.composite
def _texts(draw: st.DrawFn) -> list[str]:
    """Texts, many of them edits of a few: words replaced, dropped or added at the ends."""
    originals = draw(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40), min_size=1, max_size=3))
    texts = []
    for words in draw(st.lists(st.sampled_from(originals), min_size=1, max_size=20)):
        words = list(words)
        for _ in range(draw(st.integers(0, 3))):
            place = draw(st.integers(0, len(words)))
            words[place : place + draw(st.integers(0, 2))] = draw(st.lists(st.sampled_from(WORDS), max_size=2))
        texts.append(draw(SPACES).join(words))
    return [text for text in texts if text]


CONFIGS = st.builds(
    stage.Config,
    bands=st.integers(1, 8),
    rows=st.integers(1, 4),
    ngram=st.integers(1, 5),
    seed=st.integers(0, 2**63 - 1),
    min_shingles=st.integers(1, 6),
    threshold=st.sampled_from([0.05, 0.3, 0.5, 2 / 3, 0.8, 0.95, 1.0]),
    measure=st.sampled_from(["jaccard", "containment"]),
    prefer=st.lists(st.sampled_from(["longest", "source", "score:score"]), unique=True).map(tuple),
    max_comparisons=st.sampled_from([1, 2, 3, 64]),
    max_removal=st.just(1.0),
)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    some = st.lists(st.sampled_from(draw(_texts()) or ["a"]), min_size=1, max_size=20, unique=True)
    sources = [draw(some) for _ in range(draw(st.integers(1, 3)))]
    bits = [draw(st.integers(0, 2)) for _ in sources]
    values = st.none() | st.sampled_from([0.0, 0.5, 1.0, -1.0, float("inf")])
    scores = [tuple(draw(st.lists(values, min_size=len(texts), max_size=len(texts)))) for texts in sources]
    return Case(tuple(map(tuple, sources)), tuple(bits), tuple(scores), draw(CONFIGS), draw(st.booleans()))


CASES = _cases()
