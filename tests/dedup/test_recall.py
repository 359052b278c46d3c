"""What the bands find on real near duplicates, against the S-curve; and every removal, against brute force.

The texts are those before exact deduplication; `truth.tsv` lists every pair with a Jaccard similarity of 0.3 or more.

Sigma. In a tenth of Jaccard, theory expects the mean of S(J) over its pairs. Pairs are not independent: revisions of
one document share shingles, and a permutation that separates one pair tends to separate its neighbours, so the binomial
error is too small. Permutations of different seeds are independent, though: the standard deviation over 20 seeds
contains all covariances, whatever they are, and over sqrt(20) it is the error of their mean. Where hardly any seed sees
a miss (S near 0 or 1) that estimate may be 0, and the binomial error, its lower bound, stands in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datakit.dedup import stage
from datakit.dedup.minhash.kernels import ELIGIBLE
from datakit.dedup.minhash.s_curve import candidate_probability
from datakit.dedup.minhash.signatures import sign
from datakit.text.shingles import shingle_sets
from tests.support.data import need_data
from tests.support.dedup import dedup_oracle as oracle
from tests.support.dedup.dedup_inputs import Deduplicated, deduplicate, id_of, read_texts, write_source

SETS = ("rfc-revisions", "curator-docs-releases")
BANDS, ROWS, NGRAM = 14, 8, 5
SEEDS = range(42, 62)


@dataclass(frozen=True)
class NearDuplicates:
    """Texts by name, and all pairs with Jaccard >= 0.3: positions of both, the similarity that truth.tsv says."""

    texts: dict[str, str]
    left: np.ndarray
    right: np.ndarray
    truth: np.ndarray

    @property
    def column(self) -> pa.Array:
        """The texts, as a normalized file has them."""
        return pa.array(self.texts.values(), pa.large_string())


@cache
def load(name: str) -> NearDuplicates:
    """One of the two sets."""
    folder = need_data() / "neardup" / name
    texts = read_texts(folder / "docs.jsonl.zst")
    place = {document: i for i, document in enumerate(texts)}
    rows = [line.split("\t") for line in (folder / "truth.tsv").read_text().splitlines()[1:]]
    left, right = (np.array([place[row[i]] for row in rows]) for i in range(2))
    return NearDuplicates(texts, left, right, np.array([float(row[2]) for row in rows]))


@cache
def similarities(name: str) -> np.ndarray:
    """The pairs' exact similarity by our own shingles."""
    pairs = load(name)
    offsets, values = shingle_sets(pairs.column, NGRAM)
    sets = [values[offsets[i] : offsets[i + 1]] for i in range(len(pairs.texts))]
    found = []
    for one, other in zip(pairs.left, pairs.right, strict=True):
        both = len(np.intersect1d(sets[one], sets[other], assume_unique=True))
        found.append(both / (len(sets[one]) + len(sets[other]) - both))
    return np.array(found)


@cache
def candidates(name: str) -> np.ndarray:
    """bool [seeds, pairs]: whether the pair shares a band key."""
    pairs = load(name)
    found = []
    for seed in SEEDS:
        signed = sign(pairs.column, bands=BANDS, rows=ROWS, ngram=NGRAM, seed=seed, min_shingles=5)
        takes_part = signed.reason == ELIGIBLE
        agree = (signed.keys[:, pairs.left] == signed.keys[:, pairs.right]).any(axis=0)
        found.append(agree & takes_part[pairs.left] & takes_part[pairs.right])
    return np.array(found)


@pytest.mark.parametrize("name", SETS)
def test_our_jaccard_is_that_of_plain_python_and_of_the_truth(name: str) -> None:
    """The truth's words are `re`'s; they differ from ours in texts with characters of scripts without spaces."""
    pairs, ours = load(name), similarities(name)
    texts = list(pairs.texts.values())
    spaceless = np.array([oracle.ALONE.search(text) is not None for text in texts])
    differs = spaceless[pairs.left] | spaceless[pairs.right]
    assert np.abs(ours - pairs.truth)[~differs].max() < 1e-6
    assert 0 < differs.sum() < 0.02 * len(ours)
    for pair in [*np.flatnonzero(differs), *range(0, len(ours), 50)]:
        one, other = (oracle.shingles(texts[side[pair]]) for side in (pairs.left, pairs.right))
        assert ours[pair] == oracle.jaccard(one, other)


@pytest.mark.parametrize("name", SETS)
def test_candidate_recall_is_that_of_the_s_curve(name: str) -> None:
    jaccard, found = similarities(name), candidates(name)
    expected = np.array([candidate_probability(value, BANDS, ROWS) for value in jaccard])
    tenths = np.minimum(np.floor(jaccard * 10 + 1e-9), 9).astype(int)
    assert set(tenths) == set(range(3, 10))
    for tenth in range(3, 10):
        inside = tenths == tenth
        mean = expected[inside].mean()
        recall = found[:, inside].mean(axis=1)
        binomial = np.sqrt((expected[inside] * (1 - expected[inside])).sum()) / inside.sum()
        sigma = max(recall.std(ddof=1), binomial)
        where = f"{name}, Jaccard {tenth / 10}: expected {mean:.4f}, sigma {sigma:.4f}"
        assert abs(recall[0] - mean) <= 3 * sigma, f"{where}, seed {SEEDS[0]} finds {recall[0]:.4f}"
        error = 3 * sigma / np.sqrt(len(SEEDS))
        assert abs(recall.mean() - mean) <= max(error, 0.01), f"{where}, {len(SEEDS)} seeds find {recall.mean():.4f}"
    assert abs(found.mean() - expected.mean()) <= 0.01 * expected.mean()


def by_brute_force(texts: list[str]) -> dict[str, set]:
    """Every document's shingles by id, as plain Python sets."""
    return {id_of(text): oracle.shingles(text) for text in texts}


def check_every_removal(result: Deduplicated, texts: list[str], sources: dict[str, list[str]]) -> None:
    """Each removed document has Jaccard >= 0.8 with the one it names, which stays, in the source that is named."""
    sets, ids_of = by_brute_force(texts), {name: {id_of(text) for text in mine} for name, mine in sources.items()}
    rows = result.attributes()
    gone = {(row["source"], row["id"]) for row in rows}
    assert len(gone) == len(rows)
    for row in rows:
        similarity = oracle.jaccard(sets[row["id"]], sets[row["representative_id"]])
        assert row["jaccard"] == similarity >= 0.8
        assert row["representative_id"] in ids_of[row["representative_source"]]
        assert (row["representative_source"], row["representative_id"]) not in gone
        assert row["reason"] == (
            "exact" if any(row["id"] in ids_of[name] for name in before(row, sources)) else "fuzzy"
        )


def before(row: dict, sources: dict[str, list[str]]) -> list[str]:
    """The sources that come before the row's own."""
    names = list(sources)
    return names[: names.index(row["source"])]


def check_what_stays(result: Deduplicated, name: str) -> None:
    """Retained pairs that are near duplicates all the same are those that the bands missed, or lost to a third."""
    pairs, found = load(name), candidates(name)[0]
    texts = list(pairs.texts.values())
    gone = {row["id"] for row in result.attributes()}
    stays = np.array([id_of(text) not in gone for text in texts])
    same = np.array([texts[i] == texts[j] for i, j in zip(pairs.left, pairs.right, strict=True)])
    left_over = stays[pairs.left] & stays[pairs.right] & ~same & (similarities(name) >= 0.8)
    assert not (left_over & found).any(), "a candidate pair at or above the threshold never stays whole"


@pytest.mark.parametrize("name", SETS)
def test_every_removal_is_right_by_brute_force(name: str, tmp_path: Path) -> None:
    texts = list(load(name).texts.values())
    result = deduplicate(tmp_path, [write_source(tmp_path, name, texts, bits=2)])
    check_every_removal(result, texts, {name: texts})
    check_what_stays(result, name)
    counters = result.manifest.counters
    assert counters["dedup/fuzzy_removed"] > len(texts) // 6
    assert counters["dedup/capped"] == counters["dedup/crowded"] == 0


@pytest.mark.parametrize("name", SETS)
def test_every_removal_across_sources_is_right_by_brute_force(name: str, tmp_path: Path) -> None:
    """The same texts as four sources, a release or a revision each: exact copies between them, too."""
    texts = load(name).texts
    groups: dict[str, list[str]] = {}
    for document, text in texts.items():
        groups.setdefault(group_of(document), []).append(text)
    inputs = [write_source(tmp_path, group, mine, bits=i % 3) for i, (group, mine) in enumerate(groups.items())]
    result = deduplicate(tmp_path, inputs, stage.Config(max_removal=1.0))
    check_every_removal(result, list(texts.values()), groups)
    assert Counter(row["reason"] for row in result.attributes())["exact"] > 20


def group_of(document: str) -> str:
    """The release (`fern/versions/<release>/...`), or a quarter of the revisions (`0001@<n>`), that a name tells."""
    if "@" in document:
        return f"revision-{int(document.partition('@')[2]) % 4}"
    return document.split("/")[2] if document.startswith("fern/versions/") else "elsewhere"
