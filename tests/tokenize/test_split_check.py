"""Tests that some documents that are encoded in parts are compared with the reference in every run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from datakit.errors import TokenizerError
from datakit.tokenize import split_check
from datakit.tokenize.encoders.safe_cuts import Splitter
from datakit.tokenize.encoders.tokenizer import Tokenizer
from datakit.tokenize.split_check import WHOLE_BYTES, WHOLE_SHARE, WINDOW_BYTES, SplitVerification
from datakit.tokenize.text_batches import text_batches
from tests.support.caches import make_cache
from tests.support.partitions import identity, normalized
from tests.support.tokens.tokenizer_kinds import small_tokenizer

BOUND = "漢字"  # no place to cut


def checked(
    folder: Path, text: str, tokenizer: Tokenizer, *, by_merges: bool = False, partition_bytes: int = 0
) -> SplitVerification:
    """A text's check; with `by_merges`, words are wrongly encoded by merges alone."""
    source = normalized(folder, "web", [text])
    texts = tokenizer.long_texts(tokenizer.encoder("fastokens"))
    if by_merges:
        texts.words.whole = None
    check = SplitVerification(tokenizer.reference_encoder(), texts, "part-0", partition_bytes)
    for batch in text_batches(str(folder / "web" / source.manifest.partitions[0].path)):
        check.check(batch, *texts.encode_documents(batch))
    return check


@pytest.mark.parametrize(("size", "partition_bytes"), [(300_000, 1 << 30), (300_000, 0), (WHOLE_BYTES, 1 << 30)])
def test_document_in_parts_is_compared_with_the_reference(tmp_path: Path, size: int, partition_bytes: int) -> None:
    text = "、".join(["xyzzy", "字字", "漢字"] * (size // 20))
    made = small_tokenizer("ignore_merges")
    right = checked(tmp_path / "right", text, made, partition_bytes=partition_bytes)
    whole = len(text.encode()) <= min(WHOLE_BYTES, partition_bytes // WHOLE_SHARE)
    assert (right.documents, right.text_bytes) == (1, len(text.encode()) if whole else 3 * WINDOW_BYTES)
    with pytest.raises(TokenizerError, match=f"part-0, document {identity(text)}: when encoded in parts") as caught:
        checked(tmp_path / "wrong", text, made, by_merges=True, partition_bytes=partition_bytes)
    assert "xyzzy" not in str(caught.value)


def test_seams_are_compared_without_loading_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose documents have enough safe places does not load the encoder of words."""
    text = "xyzzy ab 12 " * 30_000 + " " * 200 + "."
    made = small_tokenizer("ignore_merges")

    def refused(*arguments: object) -> None:
        raise AssertionError("the check must not make an encoder that the documents do not need")

    monkeypatch.setattr(Tokenizer, "_words", refused)
    assert checked(tmp_path / "right", text, made).documents == 1
    monkeypatch.setattr(Splitter, "cuts", lambda self, data, size: wrong_cuts(len(data), size))
    with pytest.raises(TokenizerError, match="encoded in parts"):
        checked(tmp_path / "wrong", text, made)


def wrong_cuts(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield parts that end inside words."""
    size = size // 12 * 12 + 2
    for start in range(0, count, size):
        yield start, min(start + size, count)


def test_windows_of_a_long_document_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_check, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(split_check, "WINDOW_BYTES", 300)
    text = "、".join(["xyzzy", "字字", "漢字"] * 15_000)
    made = small_tokenizer("ignore_merges")
    assert checked(tmp_path / "right", text, made).documents == 1
    with pytest.raises(TokenizerError, match="encoded in parts"):
        checked(tmp_path / "wrong", text, made, by_merges=True)


def test_short_documents_are_not_checked_again(tmp_path: Path) -> None:
    assert checked(tmp_path, BOUND * 1000, small_tokenizer("ignore_merges")).documents == 0


@pytest.mark.parametrize("encoder", ["fastokens", "tokenizers"])
def test_every_run_compares_long_documents(tmp_path: Path, encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    check = SplitVerification.check

    def noted(self: SplitVerification, *arguments: object) -> None:
        check(self, *arguments)  # pyright: ignore[reportArgumentType]
        seen.append(np.array(self.documents))

    monkeypatch.setattr(SplitVerification, "check", noted)
    data = json.dumps(small_tokenizer("ignore_merges").definition).encode()
    make_cache(tmp_path, {"web": ["字字、" * 50_000]}, data, encoder=encoder)
    assert max(seen) == 1
