"""Safetensors files are read and written as the package does it, and damaged files are refused by name."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import CheckpointError, UsageError
from datakit.trainer.huggingface import tensor_files
from datakit.trainer.huggingface.tensor_files import TYPES, read_header, write_tensors

pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save_file

ARRAYS = {
    "b": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a": np.arange(5, dtype=np.float64),
    "scalar": np.array(0.5, np.float16),
    "empty": np.zeros((0, 3), np.float32),
    "half": (np.arange(7) / 3).astype(jnp.bfloat16),
}


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


def test_files_of_the_package_are_read(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = read_header(tmp_path / "x.safetensors")
    assert {*file.entries} == {*ARRAYS}
    assert all(same_bits(file.read(name), array) for name, array in ARRAYS.items())
    assert file.tensor_bytes == sum(array.nbytes for array in ARRAYS.values())


@given(st.lists(st.tuples(st.sampled_from(sorted(TYPES)), st.lists(st.integers(0, 4), max_size=3)), max_size=6))
def test_the_package_reads_what_is_written(parts: list[tuple[str, list[int]]]) -> None:
    generator = np.random.default_rng(len(parts))
    arrays = {f"t{i}": generator.normal(size=shape).astype(np.float32) for i, (_, shape) in enumerate(parts)}
    plan = {f"t{i}": (tuple(shape), TYPES[name]) for i, (name, shape) in enumerate(parts)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.safetensors")
        written = write_tensors(path, plan, arrays.items())
        found = load_file(path)
        assert written == sum(array.nbytes for array in found.values()) == read_header(path).tensor_bytes
    assert found.keys() == arrays.keys()
    assert all(same_bits(found[name], arrays[name].astype(plan[name][1])) for name in arrays)


def header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    change(entries)
    changed = json.dumps(entries).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + length :])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"it has \d+ bytes, but its header describes \d+"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "but its header describes"),
        (lambda path: path.write_bytes(b"\xff" * 8), "its header would have"),
        (lambda path: path.write_bytes(b"\x10" + b"\0" * 7), "ends before its header"),
        (lambda path: path.write_bytes(b"\x02" + b"\0" * 7 + b"[]"), "its header cannot be read"),
        (lambda path: path.write_bytes(b""), "its header cannot be read"),
        (lambda path: header(path, lambda e: e["b"].update(shape=[3, 5])), "tensor 'b' has the bytes"),
        (lambda path: header(path, lambda e: e["b"].update(shape=[-3, 4])), "its header cannot be read"),
        (lambda path: header(path, lambda e: e.pop("b")), "has the bytes|its header describes"),
        (lambda path: header(path, lambda e: e.update(c=e["b"])), "has the bytes"),
    ],
)
def test_damage_is_named(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": ARRAYS["a"], "b": ARRAYS["b"]}, path)
    damage(path)
    with pytest.raises(CheckpointError, match=f"x.safetensors is not a valid safetensors file: .*({message})"):
        read_header(path)


def test_quantized_tensors_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"qweight": np.zeros(4, np.int32)}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="tensor 'qweight' has type I32, which is not supported"):
        read_header(tmp_path / "x.safetensors")


def test_a_large_header_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(ARRAYS, tmp_path / "x.safetensors")
    monkeypatch.setattr(tensor_files, "MOST_HEADER_BYTES", 64)
    with pytest.raises(CheckpointError, match="and at most 64 are read"):
        read_header(tmp_path / "x.safetensors")


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": ARRAYS["a"]}, path)
    file = read_header(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="became shorter"):
        file.read("a")
