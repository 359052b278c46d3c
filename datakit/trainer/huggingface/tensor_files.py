"""Reads and writes safetensors files, one tensor at a time, and refuses files that contradict themselves.

    file = read_header(path)             # names, types, shapes and places of all tensors; reads no tensor
    array = file.read("lm_head.weight")  # a numpy array
    write_tensors(path, {"lm_head.weight": (shape, dtype)}, arrays)

A safetensors file is a length (8 bytes, little-endian), a JSON object of that length, and the tensors' bytes. The
format is described at https://huggingface.co/docs/safetensors. It is read here rather than by the package
`safetensors`, because a training machine then needs no further package, numpy arrays may be bf16, and a file from a
stranger gets an error that names the file and the tensor. Tests compare both directions with the package.

Memory: one tensor. A file is refused unless its tensors cover it exactly, without gaps and overlaps. Like the package,
this module refuses headers over 100 MB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import msgspec
import numpy as np

from datakit.errors import CheckpointError, UsageError
from datakit.regular_files import open_regular
from datakit.storage import atomic
from datakit.storage.json_data import decode

MOST_HEADER_BYTES = 100_000_000  # the limit of the package `safetensors`
LENGTH_BYTES, ALIGNMENT = 8, 8
TYPES = {"F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16)}
TYPES |= {"BF16": np.dtype(jnp.bfloat16)}
NAMES = {dtype: name for name, dtype in TYPES.items()}
Shape = tuple[int, ...]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    """A tensor's entry in the header of a file. data_offsets: [start, stop), counted from the end of the header."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file whose header has been read. `start` is the number of bytes before the first tensor."""

    path: Path
    entries: Mapping[str, _Entry]
    start: int

    @property
    def tensor_bytes(self) -> int:
        """The number of bytes of all tensors."""
        return max((entry.data_offsets[1] for entry in self.entries.values()), default=0)

    @cached_property
    def hashed(self) -> tuple[int, str]:
        """The file's size in bytes and its xxh3-128 digest. Reads the whole file once."""
        digest, length = atomic.hash_file(self.path)
        return length, digest

    def read(self, name: str) -> np.ndarray:
        """Read one tensor. Raises UsageError if its type is not supported, and CheckpointError if the file shrank."""
        entry = self.entries[name]
        count, place = math.prod(entry.shape), self.start + entry.data_offsets[0]
        found = np.fromfile(self.path, TYPES[entry.dtype], count, offset=place)
        if len(found) != count:
            raise CheckpointError(f"{self.path} became shorter while it was read; copy the file again")
        return found.reshape(entry.shape)


def read_header(path: Path) -> TensorFile:
    """Read and check the header of a file. Raises CheckpointError for a damaged file, and UsageError for a tensor whose
    type is not in `TYPES`.
    """
    with open_regular(str(path)) as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > MOST_HEADER_BYTES:
            raise _damaged(path, f"its header would have {length:,} bytes, and at most {MOST_HEADER_BYTES:,} are read")
        header, size = file.read(length), file.seek(0, 2)
    if len(header) != length:
        raise _damaged(path, f"it ends before its header, which would have {length:,} bytes")
    try:
        entries = decode(header, dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        found = {name: decode(bytes(entry), _Entry) for name, entry in entries.items()}
    except msgspec.DecodeError as error:
        raise _damaged(path, f"its header cannot be read: {error}") from error
    file_ = TensorFile(path, found, LENGTH_BYTES + length)
    _check(file_, size)
    return file_


def _check(file: TensorFile, size: int) -> None:
    """Check that the tensors have supported types and the sizes of their shapes, and cover the file exactly."""
    position = 0
    for name, entry in sorted(file.entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in TYPES:
            raise UsageError(
                f"{file.path}: tensor {name!r} has type {entry.dtype}, which is not supported; use a checkpoint that "
                f"is not quantized, with tensors of type {', '.join(TYPES)}"
            )
        start, stop = entry.data_offsets
        needed = math.prod(entry.shape) * TYPES[entry.dtype].itemsize
        if start != position or stop - start != needed:
            raise _damaged(
                file.path,
                f"tensor {name!r} has the bytes {start:,} to {stop:,}, but with type {entry.dtype} and shape "
                f"{list(entry.shape)} it should have the bytes {position:,} to {position + needed:,}",
            )
        position = stop
    if file.start + position != size:
        raise _damaged(file.path, f"it has {size:,} bytes, but its header describes {file.start + position:,}")


def _damaged(path: Path, fault: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a valid safetensors file: {fault}; copy or download the file again")


def write_tensors(
    path: Path, plan: Mapping[str, tuple[Shape, np.dtype]], tensors: Iterable[tuple[str, np.ndarray]]
) -> int:
    """Write a new file with the tensors in `plan`, which gives their shapes and types. `tensors` must yield them in the
    same order; each is cast to its type. Return the number of bytes of all tensors. The file is synced.
    """
    entries, position = dict[str, object](), 0
    for name, (shape, dtype) in plan.items():
        stop = position + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": (position, stop)}
        position = stop
    header = msgspec.json.encode({"__metadata__": {"format": "pt"}, **entries})
    header += b" " * (-len(header) % ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        for (name, array), (planned, (shape, dtype)) in zip(tensors, plan.items(), strict=True):
            if name != planned or array.shape != shape:
                raise AssertionError(f"{name} {array.shape} came where {planned} {shape} was planned")
            file.write(np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(-1).view(np.uint8).data)
    atomic.sync_file(path)
    return position
