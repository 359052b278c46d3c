"""Signatures: the same as a plain Python says, whatever stands beside a document, and as good as MinHash can be."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup import warm_kernels
from datakit.dedup.minhash import kernels, signatures
from datakit.dedup.minhash.kernels import ELIGIBLE, SATURATED, TINY, TOO_SHORT, is_saturated
from datakit.dedup.minhash.s_curve import candidate_probability
from datakit.dedup.minhash.signatures import permutations, sign
from datakit.text import shingle_kernels, shingles
from tests.support.data import need_data
from tests.support.dedup import dedup_oracle as oracle
from tests.support.dedup.dedup_inputs import read_texts

ALPHABET = "aAbZ9_ éÉßΣσςЖж" + " .,-\n\t" + "漢字かなカナーไทย" + "😀\u0301\u00a0한अ\u0130"
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=200)


def column(*texts: str) -> pa.Array:
    """Texts as a normalized file has them."""
    return pa.array(list(texts), pa.large_string())


def signed(texts: pa.Array | pa.ChunkedArray, seed: int = 42) -> signatures.Signatures:
    """With the defaults."""
    return sign(texts, bands=14, rows=8, ngram=5, seed=seed, min_shingles=5)


def sets_of(texts: pa.Array, ngram: int = 5) -> list[np.ndarray]:
    """Each document's shingle hashes."""
    offsets, values = shingles.shingle_sets(texts, ngram)
    return [values[offsets[i] : offsets[i + 1]] for i in range(len(texts))]


@given(st.lists(TEXTS, max_size=5), st.integers(1, 6))
@settings(deadline=None)
def test_shingle_sets_are_those_of_plain_python(texts: list[str], ngram: int) -> None:
    for text, values in zip(texts, sets_of(column(*texts), ngram), strict=True):
        expected = sorted(oracle.shingle_hash(shingle) for shingle in oracle.shingles(text, ngram))
        assert values.tolist() == expected


@given(st.lists(TEXTS, max_size=5))
@settings(deadline=None)
def test_signatures_are_those_of_plain_python(texts: list[str]) -> None:
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
@settings(deadline=None)
def test_a_signature_does_not_depend_on_what_stands_beside_it(texts: list[str], data: st.DataObject) -> None:
    whole = signed(column(*texts))
    cut = data.draw(st.integers(0, len(texts)))
    pieces = pa.chunked_array([column(*texts).slice(0, cut), pa.array(texts[cut:], pa.large_string())])
    for other in (pieces, column(*texts).cast(pa.string()), column("before", *texts, "after").slice(1, len(texts))):
        again = signed(other)
        assert np.array_equal(again.keys, whole.keys)
        assert np.array_equal(again.windows, whole.windows)
        assert np.array_equal(again.reason, whole.reason)


@pytest.mark.parametrize("words", [2043, 2044, 2047, 2048, 2049, 2052, 4096, 10_000])
def test_blocks_of_the_kernel_leave_no_seam(words: int) -> None:
    text = " ".join(f"w{i % 3000}" for i in range(words)) + "é"
    (values,) = sets_of(column(text))
    assert values.tolist() == sorted({oracle.shingle_hash(shingle) for shingle in oracle.shingles(text)})
    assert signed(column(text)).windows[0] == words - 4
    dense = "漢" * words  # the most words that bytes can hold
    assert signed(column(dense)).windows[0] == words - 4


def test_letters_case_and_punctuation_make_no_difference_but_words_do() -> None:
    first, second, third = sets_of(
        column("The cat -- sat, on THE mat!", "the cat sat on the mat", "the cats at on the mat")
    )
    assert np.array_equal(first, second)
    assert not np.intersect1d(second, third).size


def test_bytes_that_are_no_utf8_are_separators_and_never_read_beyond_the_text() -> None:
    for broken in (b"a b c d e \xe6\xbc", b"a b c d e\xff", b"a b c d e \xf0\x9f", b"\x80\x80\x80 a b c d e", b"\xc3"):
        offsets = np.array([0, len(broken)], np.int64)
        array = pa.LargeStringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(broken))
        (values,) = sets_of(array)
        assert len(values) <= 1 + 5 * broken.count(b"\x80")


def test_documents_under_five_distinct_shingles_take_no_part() -> None:
    texts = ["", "one two three four", "a b c d e f g h", "a b c d e f g h i", "spam " * 1000]
    ours = signed(column(*texts))
    assert ours.reason.tolist() == [TOO_SHORT, TOO_SHORT, TOO_SHORT, ELIGIBLE, TOO_SHORT]
    assert ours.windows.tolist() == [0, 0, 4, 5, 996]


def test_a_signature_from_a_tiny_range_is_saturated() -> None:
    minima = np.full(112, TINY - 1, np.uint32)
    minima[: 112 // 8] = 2**31
    assert is_saturated(minima)
    minima[112 // 8] = TINY
    assert not is_saturated(minima)
    assert SATURATED == 2


def test_permutations_are_those_of_splitmix64() -> None:
    for seed in (0, 42, 2**63 - 1):
        multipliers, addends = permutations(seed, 112)
        assert list(zip(multipliers.tolist(), addends.tolist(), strict=True)) == oracle.permutations(seed, 112)
        assert len(set(multipliers.tolist())) == 112
        assert (multipliers % 2 == 1).all()


def test_an_empty_column_has_no_signatures() -> None:
    ours = signed(pa.chunked_array([], pa.large_string()))
    assert ours.keys.shape == (14, 0)


def test_the_estimate_is_as_good_as_that_of_datasketch() -> None:
    """One row a band makes a band key a minimum: the share of equal ones estimates the Jaccard similarity."""
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


def test_the_s_curve_is_the_probability_of_any_band() -> None:
    assert candidate_probability(0.8, 14, 8) == pytest.approx(1 - (1 - 0.8**8) ** 14)
    assert candidate_probability(1.0, 14, 8) == 1.0
    assert candidate_probability(0.0, 14, 8) == 0.0


def test_after_warming_up_no_kernel_compiles() -> None:
    warm_kernels.warm()
    compiled = [shingle_kernels.shingle_sets, kernels.sign]
    before = [len(kernel.signatures) for kernel in compiled]
    signed(column("a b c d e f"))
    signed(pa.chunked_array([column("a b"), column("ü b c d e f")]))
    signed(column("x").cast(pa.string()))
    sets_of(column("a b c", "d").slice(1))
    assert [len(kernel.signatures) for kernel in compiled] == before


def test_speed_of_the_signature_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: the machine may be busy. The aim is 240 MB a CPU-second."""
    folder = need_data() / "text"
    warm_kernels.warm()
    columns = {
        "tldr": pq.read_table(folder / "tldr.parquet")["text"],
        "php-ja": pq.read_table(folder / "php-ja.parquet")["text"],
    }
    columns["rfc-revisions"] = pa.chunked_array(
        [column(*read_texts(need_data() / "neardup/rfc-revisions/docs.jsonl.zst").values())]
    )
    for name, texts in columns.items():
        ready = texts.combine_chunks().cast(pa.large_string())
        start = time.process_time()
        signed(ready)
        seconds = time.process_time() - start
        with capsys.disabled():
            print(f"\n  signatures of {name}: {ready.nbytes / seconds / 1e6:.0f} MB per CPU-second", end="")
