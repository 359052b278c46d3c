"""Opens a folder with a model of the hub: reads its `config.json` and the headers of its safetensors files, checks that
the files and the index agree, and reads tensors one at a time.

    config.json                        the model's settings
    model.safetensors                  all tensors; alternatively, an index and the files that it names:
    model.safetensors.index.json       {"metadata": {"total_size": ...}, "weight_map": {<tensor>: <file>}}
    model-00001-of-00002.safetensors

Nothing from a folder is ever run. Files that Python would unpickle (`pytorch_model.bin`) are not read, and a config
that names code of its own (`auto_map`) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from datakit.errors import CheckpointError, UsageError
from datakit.regular_files import open_regular
from datakit.storage.json_data import decode
from datakit.trainer.huggingface.tensor_files import TensorFile, read_header

CONFIG, WHOLE, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
MOST_JSON_BYTES = 256 << 20  # the index of a model with a million tensors has about 100 MB
SHOWN = 3  # number of tensors that an error names


class _Metadata(msgspec.Struct):
    total_size: int | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class Tensors(Mapping[str, np.ndarray]):
    """All tensors of a folder, by name. Each access reads one tensor from its file and keeps nothing."""

    def __init__(self, files: Mapping[str, TensorFile]) -> None:
        self._file_of = {name: file for file in files.values() for name in file.entries}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file_of[name].read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


@dataclass(frozen=True)
class HubFolder:
    """A checked folder. description: the parsed config.json. files: the safetensors files by name."""

    path: Path
    description: dict[str, Any]
    config_bytes: bytes
    files: Mapping[str, TensorFile]

    @property
    def tensors(self) -> Tensors:
        """All tensors; each is read when it is accessed."""
        return Tensors(self.files)

    @property
    def tokenizer(self) -> bytes | None:
        """The content of tokenizer.json; None if the folder has none."""
        return _read(self.path / TOKENIZER) if (self.path / TOKENIZER).exists() else None

    @cached_property
    def record(self) -> dict[str, Any]:
        """The folder's path, and the size and xxh3-128 of each file that was read. Reads all files once."""
        config = (len(self.config_bytes), xxhash.xxh3_128_hexdigest(self.config_bytes))
        hashes = {CONFIG: config} | {name: file.hashed for name, file in sorted(self.files.items())}
        return {"folder": str(self.path), "files": {name: list(found) for name, found in hashes.items()}}

    @cached_property
    def digest(self) -> str:
        """A hash of the contents of `config.json` and of all tensor files, as 32 hexadecimal digits."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(self.record["files"], order="sorted"))


def open_folder(path: Path) -> HubFolder:
    """Read the config and the headers of all tensor files in a folder. Raises UsageError for a folder that cannot be
    used, and CheckpointError if files are missing or damaged, or if the index and the files contradict each other.
    """
    if not path.is_dir():
        raise UsageError(
            f"{path} is not a folder; download the model first, for example with "
            "`hf download <name> --local-dir <folder>`, and name that folder"
        )
    content, description = read_description(path)
    index = path / INDEX
    if index.exists() and (path / WHOLE).exists():
        raise CheckpointError(f"{path} has both {WHOLE} and {INDEX}; remove the one that does not belong to the model")
    if index.exists():
        return HubFolder(path, description, content, _indexed(path))
    if not (path / WHOLE).exists():
        raise _without_tensors(path)
    return HubFolder(path, description, content, {WHOLE: read_header(path / WHOLE)})


def read_description(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a folder's config.json, and the parsed config. Raises UsageError."""
    if not (path / CONFIG).exists():
        raise UsageError(f"{path} has no {CONFIG}; give the folder that holds a model's {CONFIG} and safetensors files")
    content = _read(path / CONFIG)
    try:
        description = decode(content, dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{path / CONFIG} cannot be read: {error}") from error
    if "auto_map" in description:
        raise UsageError(
            f"{path / CONFIG}: `auto_map` names Python code in the folder, which datakit never runs; only models that "
            "need no code of their own can be used"
        )
    return content, description


def _read(path: Path) -> bytes:
    with open_regular(str(path)) as file:
        content = file.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise UsageError(f"{path} has more than {MOST_JSON_BYTES:,} bytes, so it is not read")
    return content


def _without_tensors(path: Path) -> UsageError:
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLES)
    if pickles:
        return UsageError(
            f"{path} has its tensors only in pickle files (such as {pickles[0]}), which can run code when they are "
            "read; use a safetensors version of the model"
        )
    return UsageError(f"{path} has neither {WHOLE} nor {INDEX}; download all files of the model")


def _indexed(path: Path) -> dict[str, TensorFile]:
    """Return the files that an index names, after checking that they and the index have the same tensors."""
    place = path / INDEX
    try:
        index = decode(_read(place), _Index)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{place} cannot be read: {error}; download the file again") from error
    names = sorted(set(index.weight_map.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{place} names {name!r}, which is not a safetensors file in the same folder")
        if not (path / name).exists():
            raise CheckpointError(f"{path / name} is missing, although {INDEX} names it; download the file again")
    stray = sorted(file.name for file in path.iterdir() if SHARD.fullmatch(file.name) and file.name not in names)
    if stray:
        raise CheckpointError(f"{path / stray[0]} is not named in {INDEX}; remove it, or download the index again")
    files = {name: read_header(path / name) for name in names}
    _check_index(place, index, files)
    return files


def _check_index(place: Path, index: _Index, files: Mapping[str, TensorFile]) -> None:
    """Raise CheckpointError unless each tensor is in exactly the file that the index names, and the sizes agree."""
    held: dict[str, str] = {}
    for file, opened in files.items():
        for tensor in opened.entries:
            if tensor in held:
                raise CheckpointError(f"{place.parent}: tensor {tensor!r} is in both {held[tensor]} and {file}")
            held[tensor] = file
    faults = {
        "lacks tensors that are in the files": [name for name in held if name not in index.weight_map],
        "names tensors that are in no file": [name for name in index.weight_map if name not in held],
        "names the wrong file for tensors": [
            name for name, file in index.weight_map.items() if held.get(name, file) != file
        ],
    }
    for fault, names in faults.items():
        if names:
            shown = ", ".join(repr(name) for name in sorted(names)[:SHOWN])
            raise CheckpointError(f"{place} {fault}: {len(names)}, such as {shown}; download all files again")
    total, stated = sum(file.tensor_bytes for file in files.values()), index.metadata.total_size
    if stated is not None and stated != total:
        raise CheckpointError(
            f"{place} states a total_size of {stated:,} bytes, but the tensors have {total:,}; download all files "
            "again, or remove `total_size` from the index if the model was changed on purpose"
        )
