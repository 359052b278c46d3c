"""Writes the tensors of an exported model, in one safetensors file or in several with an index, one tensor at a time.

The tensors are produced twice: first to learn their shapes, from which the files follow, and then to write them. So no
file is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np

from datakit.trainer.huggingface.export_checkpoint import tensors_to_hub
from datakit.trainer.huggingface.folder import INDEX, WHOLE
from datakit.trainer.huggingface.tensor_files import Shape, write_tensors
from datakit.trainer.models.weights import Tree

Plan = dict[str, tuple[Shape, np.dtype]]
Progress = Callable[[int, int, str], None]  # called with what is done, the total and a noun


def silent(done: int, total: int, what: str) -> None:
    """Show no progress."""


def write_shards(
    folder: Path, params: Tree, config: Any, dtype: str, shard_bytes: int, progress: Progress = silent
) -> None:
    """Write all tensors of a model, cast to `dtype`. shard_bytes: the maximum size of a file's tensors, unless it has
    only one.
    """
    shards = list(_shards(params, config, np.dtype(jnp.dtype(dtype)), shard_bytes))
    total = sum(len(plan) for plan in shards)
    tensors = _counted(tensors_to_hub(params, config), total, progress)
    whole, files, written = len(shards) == 1, dict[str, str](), 0
    for number, plan in enumerate(shards, 1):
        name = WHOLE if whole else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        written += write_tensors(folder / name, plan, (next(tensors) for _ in plan))
        files |= dict.fromkeys(plan, name)
    if not whole:
        write_json(folder / INDEX, {"metadata": {"total_size": written}, "weight_map": dict(sorted(files.items()))})


def _shards(params: Tree, config: Any, dtype: np.dtype, shard_bytes: int) -> Iterator[Plan]:
    """Yield the tensors of each file, with their shapes and types."""
    plan, size = Plan(), 0
    for name, tensor in tensors_to_hub(params, config):
        needed = tensor.size * dtype.itemsize
        if plan and size + needed > shard_bytes:
            yield plan
            plan, size = {}, 0
        plan[name], size = (tensor.shape, dtype), size + needed
    yield plan


def _counted(
    tensors: Iterator[tuple[str, np.ndarray]], total: int, progress: Progress
) -> Iterator[tuple[str, np.ndarray]]:
    for number, tensor in enumerate(tensors):
        progress(number, total, "tensors")
        yield tensor


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file for people to read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
