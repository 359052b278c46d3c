"""Exports a trained model as a folder that `transformers` and inference engines open.

    config.json, generation_config.json        with the ids of the special tokens that the caches' contract names
    model.safetensors                          or, if there is more than one file of tensors, the numbered files
    model-00001-of-00002.safetensors, ...      and model.safetensors.index.json
    tokenizer.json, tokenizer_config.json, special_tokens_map.json
    README.md                                  the model card
    datakit.json                               what was exported, and the size and hash of every file

The folder is written under another name beside its place, synced, read again and then renamed, so it is there as a
whole or not at all. A folder that already holds this export is left as it is; any other is never overwritten.

Only models that compute exactly what a class of `transformers` computes can be exported. Memory: one fp32 copy of the
weights and one tensor.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import msgspec
import numpy as np

from datakit.errors import UsageError
from datakit.storage import atomic, urls
from datakit.storage.json_data import decode
from datakit.trainer.checkpoints.candidates import MARKER, Candidate, file_hash
from datakit.trainer.huggingface import tokenizer_files
from datakit.trainer.huggingface.export_checkpoint import config_to_hub
from datakit.trainer.huggingface.export_shards import Progress, silent, write_json, write_shards
from datakit.trainer.huggingface.folder import CONFIG, TOKENIZER, open_folder
from datakit.trainer.metrics.json_lines import has_rows, last_row
from datakit.trainer.models.weights import make_mesh
from datakit.trainer.run_directory.run_lock import LOCK, exclusive
from datakit.trainer.trained.find import TrainedRun
from datakit.trainer.trained.model_card import Facts, Source, model_card

RECORD, FORMAT = "datakit.json", "datakit.hub-export/1"
GENERATION, TOKENIZER_CONFIG, TOKENS_MAP = "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"
FOLDER, UNFINISHED = "huggingface", ".tmp-"
Dtype = Literal["bfloat16", "float32"]


class Record(msgspec.Struct, frozen=True):
    """The content of `datakit.json`. run: the run's fingerprint. marker: the hash of the checkpoint's marker. files:
    (size in bytes, xxh3-128) by name.
    """

    run: str
    step: int
    marker: str
    averaged: bool
    dtype: str
    shard_bytes: int
    files: dict[str, tuple[int, str]] = {}
    format: str = FORMAT

    def is_of(self, other: Record) -> bool:
        """Return True if both describe an export of the same weights in the same form."""
        return msgspec.structs.replace(self, files={}) == msgspec.structs.replace(other, files={})


@dataclass(frozen=True)
class Options:
    """Settings of an export. shard_bytes: the maximum size of a file of tensors, unless it holds only one tensor."""

    dtype: Dtype = "bfloat16"
    averaged: bool = False
    shard_bytes: int = 5_000_000_000

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise UsageError(f"the maximum size of a file is {self.shard_bytes} bytes; use at least 1")


@dataclass(frozen=True)
class Origins:
    """The model card's facts about the data, from the lineage."""

    sources: Sequence[Source] = ()
    license_lines: Sequence[str] = ()


@dataclass(frozen=True)
class Exported:
    """An exported folder. created: False if it was there already."""

    folder: str
    step: int
    checkpoint: str
    files: int
    bytes: int
    created: bool


def export_folder(
    run: TrainedRun,
    target: str | None = None,
    options: Options | None = None,
    origins: Origins | None = None,
    progress: Progress = silent,
) -> Exported:
    """Export a run's newest valid checkpoint. target: the new folder; by default one in the run's directory.

    Raises UsageError for a model that `transformers` cannot run and for a folder that holds something else, and
    CheckpointError and TokenizerError.
    """
    options = options or Options()
    description = config_to_hub(run.config)
    params, _, checkpoint = run.restore(make_mesh(1, jax.local_devices(backend="cpu")[:1]), options.averaged)
    record = Record(
        checkpoint.marker.run,
        checkpoint.marker.step,
        file_hash(checkpoint.path / MARKER),
        options.averaged,
        options.dtype,
        options.shard_bytes,
    )
    place = Path(urls.local_path(urls.absolute(target))) if target else _default(run, record)
    found = _existing(place, record)
    if found is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.parent / f"{UNFINISHED}{place.name}"
        with exclusive(str(unfinished)):
            _empty(unfinished)
            weights = jax.tree.map(np.asarray, params)
            write_shards(unfinished, weights, run.config, options.dtype, options.shard_bytes, progress)
            _write_texts(unfinished, run, description, checkpoint, options, origins or Origins())
            found = _finish(unfinished, place, record)
            created = True
    else:
        created = False
    size = sum(length for length, _ in found.files.values())
    return Exported(str(place), record.step, str(checkpoint.path), len(found.files), size, created)


def _default(run: TrainedRun, record: Record) -> Path:
    form = ("-ema" if record.averaged else "") + ("" if record.dtype == "bfloat16" else f"-{record.dtype}")
    return Path(urls.local_path(run.directory), FOLDER, f"step-{record.step:09d}{form}")


def _existing(place: Path, wanted: Record) -> Record | None:
    """Return the record of an equal export in `place`; None if the place is free. Raises UsageError otherwise."""
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return None
    try:
        found = decode((place / RECORD).read_bytes(), Record)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{place} exists and is not an export of datakit; give another --output") from error
    if not found.is_of(wanted):
        raise UsageError(
            f"{place} holds another export (step {found.step:,} of run {found.run}, {found.dtype}"
            f"{', averaged' if found.averaged else ''}); give another --output, or remove this folder"
        )
    for name, (length, xxh3) in found.files.items():
        file = place / name
        if not file.exists() or atomic.hash_file(file) != (xxh3, length):
            raise UsageError(f"{file} has changed since it was exported; remove {place} to export again")
    return found


def _empty(folder: Path) -> None:
    """Remove what an interrupted export left, except the lock."""
    for path in folder.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write_texts(
    folder: Path,
    run: TrainedRun,
    description: Mapping[str, Any],
    checkpoint: Candidate,
    options: Options,
    origins: Origins,
) -> None:
    """Write all files but the tensors."""
    contract, marker = run.contract, checkpoint.marker
    lengths = [length for _, length in marker.mixture.get("sequence_length", ())]
    longest, ids = max(lengths, default=None), tokenizer_files.special_ids(contract)
    dtype = {"dtype": options.dtype, "torch_dtype": options.dtype}  # the latter for transformers before 5
    positions = {} if longest is None else {"max_position_embeddings": longest}
    write_json(folder / CONFIG, {**description, **ids, **positions, **dtype})
    write_json(folder / GENERATION, ids)
    tokenizer = tokenizer_files.exported_tokenizer(run.tokenizer, contract, run.caches[0].tokenizer_url)
    (folder / TOKENIZER).write_bytes(tokenizer)
    write_json(folder / TOKENIZER_CONFIG, tokenizer_files.tokenizer_config(contract, longest))
    write_json(folder / TOKENS_MAP, tokenizer_files.special_tokens_map(contract))
    facts = Facts(
        family=description["model_type"],
        step=marker.step,
        tokens=marker.counts["tokens"],
        averaged=options.averaged,
        dtype=options.dtype,
        sources=origins.sources,
        license_lines=origins.license_lines,
        figures=_figures(run.directory, marker.step, options.averaged),
    )
    (folder / "README.md").write_text(model_card(run, facts), encoding="utf-8")


def _figures(directory: str, step: int, averaged: bool) -> dict[str, float]:
    """Return the evaluation metrics that the run logged at a step, for the exported weights."""
    row, prefix = last_row(directory, step) if has_rows(directory) else {}, "eval/ema/"
    found = {name: value for name, value in row.items() if name.startswith("eval/") and not name.endswith("_time")}
    return {name: value for name, value in found.items() if name.startswith(prefix) == averaged}


def _finish(unfinished: Path, place: Path, record: Record) -> Record:
    """Read the folder again, write its record, sync it, and give it its name."""
    open_folder(unfinished)
    names = sorted(path.name for path in unfinished.iterdir() if path.name != LOCK)
    hashes = {name: atomic.hash_file(unfinished / name) for name in names}
    record = msgspec.structs.replace(record, files={name: (length, xxh3) for name, (xxh3, length) in hashes.items()})
    write_json(unfinished / RECORD, msgspec.to_builtins(record))
    for name in (*names, RECORD):
        atomic.sync_file(unfinished / name)
    atomic.sync_directories([str(unfinished)])
    (unfinished / LOCK).unlink()
    unfinished.rename(place)
    atomic.sync_directories([str(place.parent)])
    return record
