"""Whether a checkpoint's arrays are those that a run expects, by name and shape, before anything is read.

What orbax says of an array that does not fit names neither the array nor the setting that is at fault.
"""

from __future__ import annotations

from typing import Any

import jax

from datakit.errors import CheckpointError
from datakit.trainer.models.weights import Tree

OF_THE_MODEL = ("params/", "model/")  # other parts of a state follow from these and the optimizer


def check_fit(there: Any, here: Tree, whole: bool, place: str) -> None:
    """Raises CheckpointError for the first difference. `whole` False: `there` may have more than `here`'s parts."""
    saved, wanted = _shapes(there), _shapes(here)
    names = wanted.keys() | {name for name in saved if whole or name.split("/")[0] in here}
    wrong = sorted(name for name in names if wanted.get(name) != saved.get(name))
    if wrong:
        name = next((name for name in wrong if name.startswith(OF_THE_MODEL)), wrong[0])
        table = "[model]" if name.startswith(OF_THE_MODEL) else "[optimizer]"
        raise CheckpointError(
            f"{place} holds another state than this run's: {name} is {_shown(saved.get(name))} there and "
            f"{_shown(wanted.get(name))} here ({len(wrong)} of {len(names)} arrays differ); "
            f"give {table} as in the run that wrote it"
        )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}


def _shown(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
