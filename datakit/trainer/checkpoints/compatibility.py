"""Checks, before a checkpoint is read, that its arrays have the names and shapes that this run expects. If they do not,
the error names the first array that differs, and the table to change in the run file. Orbax's own error names neither.

The names in orbax's own list are checked first, because orbax uses them as paths: a name such as `../x` would lead out
of the checkpoint.
"""

from __future__ import annotations

from typing import Any

import msgspec
from etils import epath

from datakit.errors import CheckpointError
from datakit.storage import urls
from datakit.trainer.models.weights import Tree, leaves

METADATA = "_METADATA"  # the file in which orbax lists the arrays of a checkpoint
# The parts of the state that depend on the model alone. The moments and averages depend on the model and the optimizer.
MODEL_PARTS = ("params/", "model/")


def check_fit(saved: Any, wanted: Tree, whole: bool, place: str) -> None:
    """Raise CheckpointError if the arrays in `saved` and `wanted` differ in name or shape. Unless `whole` is true,
    `saved` may have further parts.
    """
    found, expected = _shapes(saved), _shapes(wanted)
    names = expected.keys() | {name for name in found if whole or name.split("/")[0] in wanted}
    wrong = sorted(name for name in names if expected.get(name) != found.get(name))
    if wrong:
        name = next((name for name in wrong if name.startswith(MODEL_PARTS)), wrong[0])
        table = "[model]" if name.startswith(MODEL_PARTS) else "[optimizer]"
        raise CheckpointError(
            f"{place} does not fit this run: {name} is {_shown(found.get(name))} in the checkpoint and "
            f"{_shown(expected.get(name))} in this run ({len(wrong)} of {len(names)} arrays differ); "
            f"use the table {table} of the run that wrote the checkpoint"
        )


class _Key(msgspec.Struct):
    key: str | int


class _Array(msgspec.Struct):
    key_metadata: list[_Key]


class _Metadata(msgspec.Struct):
    tree_metadata: dict[str, _Array]


def check_names(metadata: epath.Path, place: str) -> None:
    """Raise CheckpointError if any part of an array's name in orbax's list could not be the name of a file."""
    for array in msgspec.json.decode(metadata.read_bytes(), type=_Metadata).tree_metadata.values():
        for part in array.key_metadata:
            if not urls.is_below(str(part.key)) or "/" in str(part.key):
                raise CheckpointError(
                    f"{place} has an array whose name contains {str(part.key)!r}, which leads out of the checkpoint; "
                    "datakit did not write this checkpoint, so do not use it"
                )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {path: tuple(leaf.shape) for path, leaf in leaves(tree).items()}


def _shown(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
