"""Tests that a sample of every partition is compared with the reference tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import TokenizerError
from datakit.tokenize import reference_check
from datakit.tokenize import text_batches as text_batches_module
from datakit.tokenize.encoders.base import FastEncoder
from datakit.tokenize.reference_check import Verification
from datakit.tokenize.text_batches import text_batches
from tests.support.caches import load_tokenizer
from tests.support.partitions import identity, normalized, words

NOT_CUT = np.empty(0, np.int64)


@dataclass(frozen=True)
class Faulty(FastEncoder):
    """The real encoder, with one token of one text changed."""

    text: str = ""
    at: int = 0

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, lengths = super().encode_batch(texts)
        ids = ids.copy()
        for index, text in enumerate(texts):
            if text == self.text:
                ids[int(lengths[:index].sum()) + self.at] ^= 1
        return ids, lengths


def verify_all(dataset_url: str, encoder: FastEncoder, rows: int) -> Verification:
    total = sum(batch.text_bytes for batch in text_batches(dataset_url))
    check = Verification(load_tokenizer().reference_encoder(), encoder, rows, total, "part-0")
    for batch in text_batches(dataset_url):
        check.check(batch, *encoder.encode_batch(batch.strings()), NOT_CUT)
    return check


def test_difference_is_reported_by_document_and_position(tmp_path: Path) -> None:
    texts = words(7, 16)  # few enough to be all in the sample
    source = normalized(tmp_path, "web", texts)
    path = str(tmp_path / "web" / source.manifest.partitions[0].path)
    fast = load_tokenizer().fast
    assert fast is not None
    assert verify_all(path, FastEncoder(fast), 16).documents == 16
    with pytest.raises(TokenizerError, match=f"part-0.*document {identity(texts[11])}, first at token 5, ") as caught:
        verify_all(path, Faulty(fast, text=texts[11], at=5), 16)
    assert texts[11][:20] not in str(caught.value)


@settings(max_examples=8, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300) | st.integers(8_000, 30_000), min_size=1, max_size=60),
    batch_bytes=st.integers(1, 200_000),
)
def test_sample_is_large_enough_and_independent_of_batches(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], batch_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("sample")
    alphabet = "é x→y\n"
    source = normalized(folder, "web", [f"{number}:" + alphabet * (size // 9) for number, size in enumerate(sizes)])
    fast = load_tokenizer().fast
    assert fast is not None
    path, total = str(folder / "web" / source.manifest.partitions[0].path), source.manifest.totals.text_bytes or 0
    whole = verify_all(path, FastEncoder(fast), len(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_batches_module, "BATCH_BYTES", batch_bytes)
        cut = verify_all(path, FastEncoder(fast), len(sizes))
    assert (whole.documents, whole.text_bytes) == (cut.documents, cut.text_bytes)
    assert whole.documents >= min(reference_check.DOCUMENTS, len(sizes))
    assert whole.text_bytes >= min(total, reference_check.WINDOW_BYTES)


def test_long_texts_are_compared_in_windows_throughout(tmp_path: Path) -> None:
    """4 KiB in every 4.1 MB, whichever document contains it: at least 0.1 % of the bytes."""
    texts = [f"{number} " + "wörter und mehr " * 200_000 for number in range(3)]
    source = normalized(tmp_path, "web", texts)
    fast = load_tokenizer().fast
    assert fast is not None
    check = verify_all(str(tmp_path / "web" / source.manifest.partitions[0].path), FastEncoder(fast), 3)
    total = source.manifest.totals.text_bytes or 0
    assert check.text_bytes >= reference_check.SHARE * total
    assert check.text_bytes <= reference_check.SHARE * total + 5 * reference_check.WINDOW_BYTES
