"""Norms: of groups of parameters at every step, and of every single weight where somebody watches.

An embedding whose norm grows twenty-fold in a run was found by looking at it by chance; so each group's norm is
compared with what it was when the run began, and leaving its band is an alarm. AdamH's matrices have no excuse to move
at all: their band is a percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from datakit.errors import UsageError, suggestion
from datakit.trainer.models.shapes import Array
from datakit.trainer.models.weights import Tree, leaves

WATCHABLE = ("grad", "params", "updates", "opt_state")
FIXED_BAND = (0.99, 1.01)  # of the groups that AdamH holds


def group_norms(table: Tree, params: Tree) -> dict[str, Array]:
    """The norm of each optimizer group, and of the embedding alone."""
    squares = {path: jnp.sum(value.astype(jnp.float32) ** 2) for path, value in leaves(params).items()}
    sums: dict[str, Any] = {"embed": squares["embed"]} if "embed" in squares else {}
    for path, weight in leaves(table).items():
        sums[weight.group] = squares[path] + sums.get(weight.group, 0.0)
    return {name: jnp.sqrt(total) for name, total in sorted(sums.items())}


def check_watch(names: tuple[str, ...]) -> None:
    """Raises UsageError for what cannot be watched."""
    for name in names:
        if name not in WATCHABLE:
            raise UsageError(f"log.watch: nothing is called {name!r}; {suggestion(name, WATCHABLE)}")


def watched(names: tuple[str, ...], table: Tree, gradients: Tree, before: Tree, after: Tree) -> dict[str, Any]:
    """{"grad/norm/blocks/query": [L], ...} for what is watched; stacked weights have a norm per layer."""
    updates = {path: value - leaves(before["params"])[path] for path, value in leaves(after["params"]).items()}
    trees = {
        "grad": leaves(gradients),
        "params": leaves(after["params"]),
        "updates": updates,
        "opt_state": leaves(after["moments"]),
    }
    return {
        f"{name}/norm/{path}": _norm(value, stacked="blocks/" in path)
        for name in names
        for path, value in trees[name].items()
    }


def _norm(value: Array, stacked: bool) -> Array:
    axes = tuple(range(1 if stacked else 0, value.ndim))
    return jnp.sqrt(jnp.sum(value.astype(jnp.float32) ** 2, axis=axes))


def alarms(
    norms: Mapping[str, float], begun: Mapping[str, float], band: tuple[float, float], fixed: bool
) -> dict[str, float]:
    """The groups whose norm left its band, with the norm as a multiple of what it was when the run began.

    `fixed` says that AdamH holds its groups.
    """
    found = {}
    for name, norm in norms.items():
        at_first = begun.get(name, 0.0)
        if at_first <= 0:
            continue
        low, high = FIXED_BAND if fixed and name.startswith("adamh") else band
        if not low <= norm / at_first <= high:
            found[name] = norm / at_first
    return found
