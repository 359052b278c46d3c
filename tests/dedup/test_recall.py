"""Checks what the bands find on real near duplicates against the S-curve, and every removal by brute force.

The texts are those before exact deduplication; `truth.tsv` lists every pair with a Jaccard similarity of at least 0.3.

Sigma: in a tenth of Jaccard, theory expects the mean of S(J) over its pairs. Pairs are not independent. Revisions of a
document share shingles, and a permutation that separates one pair tends to separate its neighbors, so the binomial
error is too small. Permutations of different seeds are independent, though: the standard deviation over 20 seeds
contains all covariances, and divided by sqrt(20) it is the error of their mean. If hardly any seed has a miss (S near
0 or 1), that estimate may be 0, and the binomial error, its lower bound, is used instead.
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
    """Texts by name, and all pairs with Jaccard >= 0.3: the positions of both, and their similarity by truth.tsv."""

    texts: dict[str, str]
    left: np.ndarray
    right: np.ndarray
    truth: np.ndarray

    @property
    def column(self) -> pa.Array:
        """The texts as a normalized file stores them."""
        return pa.array(self.texts.values(), pa.large_string())


@cache
def load(name: str) -> NearDuplicates:
    """Load one of the two sets."""
    folder = need_data() / "neardup" / name
    texts = read_texts(folder / "docs.jsonl.zst")
    place = {document: i for i, document in enumerate(texts)}
    rows = [line.split("\t") for line in (folder / "truth.tsv").read_text().splitlines()[1:]]
    left, right = (np.array([place[row[i]] for row in rows]) for i in range(2))
    return NearDuplicates(texts, left, right, np.array([float(row[2]) for row in rows]))


@cache
def similarities(name: str) -> np.ndarray:
    """Return the pairs' exact similarity by datakit's shingles."""
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
    """Return bool [seeds, pairs]: True if the pair shares a band key."""
    pairs = load(name)
    found = []
    for seed in SEEDS:
        signed = sign(pairs.column, bands=BANDS, rows=ROWS, ngram=NGRAM, seed=seed, min_shingles=5)
        takes_part = signed.reason == ELIGIBLE
        agree = (signed.keys[:, pairs.left] == signed.keys[:, pairs.right]).any(axis=0)
        found.append(agree & takes_part[pairs.left] & takes_part[pairs.right])
    return np.array(found)


@cache
def shingles_of(text: str) -> frozenset[int]:
    """Return the hashes of a text's shingles in plain Python, which take less memory than the shingles."""
    return frozenset(map(hash, oracle.shingles(text)))


@pytest.mark.parametrize("name", SETS)
def test_jaccard_matches_plain_python_and_truth(name: str) -> None:
    """The truth uses the words of `re`, which differ from ours in scripts without spaces."""
    pairs, ours = load(name), similarities(name)
    texts = list(pairs.texts.values())
    spaceless = np.array([oracle.ALONE.search(text) is not None for text in texts])
    differs = spaceless[pairs.left] | spaceless[pairs.right]
    assert np.abs(ours - pairs.truth)[~differs].max() < 1e-6
    assert 0 < differs.sum() < 0.02 * len(ours)
    for pair in [*np.flatnonzero(differs), *range(0, len(ours), 100)]:
        one, other = (shingles_of(texts[side[pair]]) for side in (pairs.left, pairs.right))
        assert ours[pair] == oracle.jaccard(one, other)


@pytest.mark.parametrize("name", SETS)
def test_candidate_recall_follows_the_s_curve(name: str) -> None:
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


def check_removals(result: Deduplicated, texts: list[str], sources: dict[str, list[str]], every: int = 1) -> None:
    """Check that each removed document has Jaccard >= 0.8 with its representative, which stays in the named source.

    The similarity is computed for one removal of `every`.
    """
    text_of = {id_of(text): text for text in texts}
    ids_of = {name: {id_of(text) for text in mine} for name, mine in sources.items()}
    rows = result.attributes()
    gone = {(row["source"], row["id"]) for row in rows}
    assert len(gone) == len(rows)
    for number, row in enumerate(rows):
        assert row["jaccard"] >= 0.8
        if number % every == 0:
            one, other = (shingles_of(text_of[row[key]]) for key in ("id", "representative_id"))
            assert row["jaccard"] == oracle.jaccard(one, other)
        assert row["representative_id"] in ids_of[row["representative_source"]]
        assert (row["representative_source"], row["representative_id"]) not in gone
        assert row["reason"] == (
            "exact" if any(row["id"] in ids_of[name] for name in before(row, sources)) else "fuzzy"
        )


def before(row: dict, sources: dict[str, list[str]]) -> list[str]:
    """Return the sources before the row's own."""
    names = list(sources)
    return names[: names.index(row["source"])]


def check_what_stays(result: Deduplicated, name: str) -> None:
    """Check that no candidate pair above the threshold stays: the bands missed the near duplicates that are left."""
    pairs, found = load(name), candidates(name)[0]
    texts = list(pairs.texts.values())
    gone = {row["id"] for row in result.attributes()}
    stays = np.array([id_of(text) not in gone for text in texts])
    same = np.array([texts[i] == texts[j] for i, j in zip(pairs.left, pairs.right, strict=True)])
    left_over = stays[pairs.left] & stays[pairs.right] & ~same & (similarities(name) >= 0.8)
    assert not (left_over & found).any()


@pytest.mark.parametrize(
    ("name", "every"), [(SETS[0], 3), (SETS[1], 1), pytest.param(SETS[0], 1, marks=pytest.mark.soak)]
)
def test_removals_are_right_by_brute_force(name: str, every: int, tmp_path: Path) -> None:
    texts = list(load(name).texts.values())
    result = deduplicate(tmp_path, [write_source(tmp_path, name, texts, bits=2)])
    check_removals(result, texts, {name: texts}, every)
    check_what_stays(result, name)
    counters = result.manifest.counters
    assert counters["dedup/fuzzy_removed"] > len(texts) // 6
    assert counters["dedup/capped"] == counters["dedup/crowded"] == 0


@pytest.mark.parametrize("name", [pytest.param(SETS[0], marks=pytest.mark.soak), SETS[1]])
def test_removals_across_sources_are_right_by_brute_force(name: str, tmp_path: Path) -> None:
    """Split the same texts into sources by release or revision, with exact copies between them."""
    texts = load(name).texts
    groups: dict[str, list[str]] = {}
    for document, text in texts.items():
        groups.setdefault(group_of(document), []).append(text)
    inputs = [write_source(tmp_path, group, mine, bits=i % 3) for i, (group, mine) in enumerate(groups.items())]
    result = deduplicate(tmp_path, inputs, stage.Config(max_removal=1.0))
    check_removals(result, list(texts.values()), groups)
    assert Counter(row["reason"] for row in result.attributes())["exact"] > 20


def group_of(document: str) -> str:
    """Return the release (`fern/versions/<release>/...`) or a quarter of the revisions (`0001@<n>`) from a name."""
    if "@" in document:
        return f"revision-{int(document.partition('@')[2]) % 4}"
    return document.split("/")[2] if document.startswith("fern/versions/") else "elsewhere"
