"""Computes the norms of optimizer groups and of individual weights, checks the names in `log.watch`, and decides which
norms are outside their band (alarms).

In one run, the norm of the embedding grew twentyfold, which was noticed only by chance. So each group's norm is
compared with its value at the start of the run, and a norm outside the allowed band raises an alarm. AdamH and MuonH
keep the norms of matrices constant, so the band of these groups is ±1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from datakit.errors import UsageError, suggestion
from datakit.trainer.models.shapes import Array
from datakit.trainer.models.weights import Tree, Weight, leaves

WATCHABLE = ("grad", "params", "updates", "opt_state")
HISTOGRAM_BINS, LEAST_EXPONENT = 64, -47  # powers of two from 2**-47 to 2**16
# The allowed ratios of a norm to its value at the start of the run, for the groups whose norms the optimizer keeps
# constant. Rounding changes a norm by far less than 1 %.
FIXED_BAND = (0.99, 1.01)


def group_norms(table: Tree, params: Tree) -> dict[str, Array]:
    """Return the L2 norm of each optimizer group and, in addition, that of the embedding."""
    embed = {"embed": _norm(params["embed"], stacked=False)} if "embed" in params else {}
    return embed | norms_by(lambda weight: weight.group, table, params)


def norms_by(name_of: Callable[[Weight], str], table: Tree, values: Tree) -> dict[str, Array]:
    """Group `values` by the names that `name_of` gives to their weights, and return each group's L2 norm, by name."""
    sums: dict[str, Any] = {}
    for weight, value in zip(jax.tree.leaves(table), jax.tree.leaves(values), strict=True):
        sums[name_of(weight)] = sums.get(name_of(weight), 0.0) + jnp.sum(value.astype(jnp.float32) ** 2)
    return {name: jnp.sqrt(total) for name, total in sums.items()}


def check_watch(names: tuple[str, ...]) -> None:
    """Raise UsageError for an unknown name in `log.watch`."""
    for name in names:
        if name not in WATCHABLE:
            raise UsageError(f"log.watch: {name!r} is not a kind of norm; {suggestion(name, WATCHABLE)}")


def watched(names: tuple[str, ...], table: Tree, gradients: Tree, before: Tree, after: Tree) -> dict[str, Any]:
    """Return each weight's norm for each watched kind, e.g. {"grad/norm/blocks/query": [L]}.

    A weight in the blocks has one norm per layer; any other weight has a single norm.
    """
    trees = _watched_trees(gradients, before, after)
    return {
        f"{name}/norm/{path}": _norm(value, stacked="blocks/" in path)
        for name in names
        for path, value in trees[name].items()
    }


def _watched_trees(gradients: Tree, before: Tree, after: Tree) -> dict[str, dict[str, Any]]:
    updates = {path: value - leaves(before["params"])[path] for path, value in leaves(after["params"]).items()}
    return {
        "grad": leaves(gradients),
        "params": leaves(after["params"]),
        "updates": updates,
        "opt_state": leaves(after["moments"]),
    }


def histograms(names: tuple[str, ...], gradients: Tree, before: Tree, after: Tree) -> dict[str, Any]:
    """Return a histogram of the absolute values of each weight for each watched kind, e.g. {"grad/histogram/embed":
    [64]}. Entry i counts the values from 2**(i - 47) to below 2**(i - 46). The first entry also counts smaller values
    and zeros, and the last one larger values, infinities and NaN.
    """
    trees = _watched_trees(gradients, before, after)
    return {f"{name}/histogram/{path}": _histogram(value) for name in names for path, value in trees[name].items()}


def _histogram(value: Array) -> Array:
    bits = jax.lax.bitcast_convert_type(value.astype(jnp.float32), jnp.int32).reshape(-1)
    exponent = ((bits >> 23) & 0xFF) - 127  # IEEE 754: the exponent of an fp32 number, -127 for zeros and subnormals
    entry = jnp.clip(exponent - LEAST_EXPONENT, 0, HISTOGRAM_BINS - 1)
    return jnp.zeros(HISTOGRAM_BINS, jnp.int32).at[entry].add(1)  # sums of integers, in whatever order


def _norm(value: Array, stacked: bool) -> Array:
    axes = tuple(range(1 if stacked else 0, value.ndim))
    return jnp.sqrt(jnp.sum(value.astype(jnp.float32) ** 2, axis=axes))


def alarms(
    norms: Mapping[str, float], first: Mapping[str, float], band: tuple[float, float], fixed: Collection[str]
) -> dict[str, float]:
    """Return each group whose norm is outside its band, with the ratio of the norm to its value in `first`.

    `first` holds the norms at the start of the run. `fixed` names the groups whose norms the optimizer keeps constant.
    """
    found = {}
    for name, norm in norms.items():
        at_first = first.get(name, 0.0)
        if at_first <= 0:
            continue
        low, high = FIXED_BAND if name in fixed else band
        if not low <= norm / at_first <= high:
            found[name] = norm / at_first
    return found
