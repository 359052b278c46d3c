"""A model's file gives the same model back; other files are refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.classifier.linear_model import FORMAT, Bin, LinearModel, Quality, decoded_model, load_linear_model
from datakit.errors import ChangedInputError, NewerFormatError, NotFoundError, UnreadableError

QUALITY = Quality(20, 0.75, 0.125, (Bin(20, 0.5, 0.5),))
MODEL = LinearModel(FORMAT, 1, 8, 0.5, 100, True, QUALITY, np.arange(256, dtype="<f4").tobytes())


def test_a_file_gives_the_same_model_back(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(MODEL.encoded())
    found = load_linear_model(str(path), hashlib.sha256(MODEL.encoded()).hexdigest())
    assert found == MODEL
    assert found.array().tolist() == list(range(256))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"version": 0},
        {"bits": 9},
        {"bits": 70},
        {"bias": float("nan")},
        {"weights": b""},
        {"weights": np.full(256, np.inf, "<f4").tobytes()},
    ],
    ids="-".join,
)
def test_a_model_that_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    data = msgspec.structs.replace(MODEL, **changes).encoded()
    with pytest.raises(UnreadableError, match="x is not a valid linear classifier"):
        decoded_model(data, "x")


def test_a_newer_format_is_named() -> None:
    with pytest.raises(NewerFormatError, match="format 2; update datakit"):
        decoded_model(msgspec.structs.replace(MODEL, version=2).encoded(), "x")


@given(
    data=st.one_of(st.binary(max_size=50), st.integers(0, len(MODEL.encoded()) - 1).map(lambda n: MODEL.encoded()[:n]))
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableError, match="x is not a"):
        decoded_model(data, "x")


def test_a_file_with_another_sha256_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(MODEL.encoded())
    with pytest.raises(ChangedInputError, match="is expected"):
        load_linear_model(str(path), "0" * 64)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(NotFoundError, match="/nowhere/model does not exist"):
        load_linear_model("/nowhere/model", "0" * 64)
