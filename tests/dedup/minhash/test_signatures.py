"""Signatures match plain Python, depend on the text alone, and estimate similarity as well as datasketch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup.minhash import signatures
from datakit.dedup.minhash.kernels import ELIGIBLE, TOO_SHORT
from datakit.dedup.minhash.signatures import permutations, sign
from tests.support.dedup import dedup_oracle as oracle

ALPHABET = "aAbZ9_ éÉßΣσςЖж" + " .,-\n\t" + "漢字かなカナーไทย" + "😀\u0301\u00a0한अ\u0130"
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=200)


def column(*texts: str) -> pa.Array:
    """Return texts as a normalized file stores them."""
    return pa.array(list(texts), pa.large_string())


def signed(texts: pa.Array | pa.ChunkedArray, seed: int = 42) -> signatures.Signatures:
    """Sign with the default parameters."""
    return sign(texts, bands=14, rows=8, ngram=5, seed=seed, min_shingles=5)


@given(st.lists(TEXTS, max_size=3))
@settings(max_examples=30)
def test_signatures_match_plain_python(texts: list[str]) -> None:
    ours = sign(column(*texts), bands=3, rows=2, ngram=4, seed=7, min_shingles=2)
    for i, text in enumerate(texts):
        assert ours.windows[i] == max(0, len(oracle.words(text)) - 3)
        if len(oracle.shingles(text, 4)) < 2:
            assert ours.reason[i] == TOO_SHORT
            assert not ours.keys[:, i].any()
        else:
            assert ours.reason[i] == ELIGIBLE
            assert ours.keys[:, i].tolist() == oracle.band_keys(text, 3, 2, 4, 7)


@given(st.lists(TEXTS, min_size=1, max_size=6), st.data())
@settings(max_examples=40)
def test_signatures_depend_on_the_text_alone(texts: list[str], data: st.DataObject) -> None:
    whole = signed(column(*texts))
    cut = data.draw(st.integers(0, len(texts)))
    pieces = pa.chunked_array([column(*texts).slice(0, cut), pa.array(texts[cut:], pa.large_string())])
    for other in (pieces, column(*texts).cast(pa.string()), column("before", *texts, "after").slice(1, len(texts))):
        again = signed(other)
        assert np.array_equal(again.keys, whole.keys)
        assert np.array_equal(again.windows, whole.windows)
        assert np.array_equal(again.reason, whole.reason)


@pytest.mark.parametrize("words", [2043, 2044, 2047, 2048, 2049, 2052, 4096, 10_000])
def test_block_boundaries_lose_no_window(words: int) -> None:
    sparse = " ".join(f"w{i % 3000}" for i in range(words)) + "é"
    dense = "漢" * words  # as many words as bytes can hold
    assert signed(column(sparse, dense)).windows.tolist() == [words - 4, words - 4]


def test_documents_under_five_shingles_are_skipped() -> None:
    texts = ["", "one two three four", "a b c d e f g h", "a b c d e f g h i", "spam " * 1000]
    ours = signed(column(*texts))
    assert ours.reason.tolist() == [TOO_SHORT, TOO_SHORT, TOO_SHORT, ELIGIBLE, TOO_SHORT]
    assert ours.windows.tolist() == [0, 0, 4, 5, 996]


def test_permutations_come_from_splitmix64() -> None:
    for seed in (0, 42, 2**63 - 1):
        multipliers, addends = permutations(seed, 112)
        assert list(zip(multipliers.tolist(), addends.tolist(), strict=True)) == oracle.permutations(seed, 112)
        assert len(set(multipliers.tolist())) == 112
        assert (multipliers % 2 == 1).all()


def test_an_empty_column_has_no_signatures() -> None:
    ours = signed(pa.chunked_array([], pa.large_string()))
    assert ours.keys.shape == (14, 0)


def test_estimates_are_as_good_as_datasketch() -> None:
    """With one row per band, the share of equal band keys estimates the Jaccard similarity."""
    generator, permutations_count = np.random.default_rng(5), 128
    ours, theirs, spread = [], [], []
    for pair in range(60):
        size, shared = int(generator.integers(30, 400)), generator.uniform(0.2, 0.95)
        common = [f"c{pair}x{i}" for i in range(int(size * shared))]
        documents = [common + [f"{side}{pair}x{i}" for i in range(size - len(common))] for side in "ab"]
        texts = [" ".join(words) for words in documents]
        one, other = (oracle.shingles(text, 1) for text in texts)
        truth = oracle.jaccard(one, other)
        keys = sign(column(*texts), bands=permutations_count, rows=1, ngram=1, seed=pair, min_shingles=1).keys
        ours.append(float(np.mean(keys[:, 0] == keys[:, 1])) - truth)
        sketches = [MinHash(permutations_count, seed=pair) for _ in texts]
        for sketch, words in zip(sketches, documents, strict=True):
            sketch.update_batch([word.encode() for word in words])
        theirs.append(sketches[0].jaccard(sketches[1]) - truth)
        spread.append(np.sqrt(truth * (1 - truth) / permutations_count))
    expected = float(np.sqrt(np.mean(np.square(spread))))
    assert abs(np.mean(ours)) < 3 * expected / np.sqrt(len(ours))
    assert np.sqrt(np.mean(np.square(ours))) < 1.25 * max(expected, float(np.sqrt(np.mean(np.square(theirs)))))
