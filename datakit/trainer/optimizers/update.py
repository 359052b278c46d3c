"""Applies an optimizer to all weights of a model: clips the gradients, and updates each weight and its moments.

    params, moments, metrics = update(gradients, moments, params, step, rates, table, optimizer)

The moments are nested dicts, by name and then as the table: {"mu": {"blocks": {...}, ...}, "nu": {...}}. A tree holds
only the weights for which `Optimizer.moments` names it. Moments are fp32 and sharded like the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import Group, Tree, leaves
from datakit.trainer.optimizers.clipping import clipped
from datakit.trainer.optimizers.protocol import Optimizer, WeightStep


def grouped(table: Tree, optimizer: Optimizer) -> Tree:
    """Return the table of weights with the groups that the optimizer assigns."""
    return nested(
        {path: dataclasses.replace(at, group=optimizer.group(path, at)) for path, at in leaves(table).items()}
    )


def groups_of(table: Tree) -> list[Group]:
    """Return the groups that occur in a table, in alphabetical order."""
    return sorted({weight.group for weight in leaves(table).values()})


def moments_like(values: Tree, table: Tree, optimizer: Optimizer) -> dict[str, Tree]:
    """Return a tree with the structure of the moments. Its leaves are those of `values`, which has the structure of the
    table, e.g. the shardings of the weights.
    """
    trees: dict[str, dict[str, Any]] = {}
    weights = leaves(table)
    for path, value in leaves(values).items():
        for name in optimizer.moments(path, weights[path]):
            trees.setdefault(name, {})[path] = value
    return {name: nested(tree) for name, tree in sorted(trees.items())}


def initial_moments(params: Tree, table: Tree, optimizer: Optimizer) -> dict[str, Tree]:
    """Return all moments, as zeros with the shapes of the parameters."""
    return jax.tree.map(jnp.zeros_like, moments_like(params, table, optimizer))


def update(
    gradients: Tree,
    moments: dict[str, Tree],
    params: Tree,
    step: Int[Array, ""],
    rates: Mapping[Group, Float[Array, ""] | np.float32],
    table: Tree,
    optimizer: Optimizer,
) -> tuple[Tree, dict[str, Tree], dict[str, Array]]:
    """Return (new parameters, new moments, metrics "grad_norm/<family>" and "learning_rate/<group>").

    step: counted from 0. rates: the learning rate of each group in this step (see `schedules.learning_rates`).
    table: the model's table of weights; `gradients` and `params` have its structure.
    """
    gradients, norms = clipped(gradients, table, optimizer)
    flat, slopes, count = leaves(params), leaves(gradients), (step + 1).astype(jnp.float32)
    old = {name: leaves(tree) for name, tree in moments.items()}
    values: dict[str, Array] = {}
    after: dict[str, dict[str, Array]] = {name: {} for name in moments}
    for path, weight in leaves(table).items():
        own = {name: tree[path] for name, tree in old.items() if path in tree}
        rate = jnp.asarray(rates[weight.group])
        of_weight = WeightStep(path, weight, flat[path], slopes[path], own, rate, count)
        values[path], new = optimizer.update(of_weight)
        for name in own:
            after[name][path] = new[name]
    metrics = {f"grad_norm/{name}": norm for name, norm in norms.items()}
    metrics |= {f"learning_rate/{group}": jnp.asarray(rates[group]) for group in groups_of(table)}
    return nested(values), {name: nested(tree) for name, tree in after.items()}, metrics


def nested(flat: Mapping[str, Any]) -> Tree:
    """Return the nested dicts that `weights.leaves` flattened to `flat`."""
    tree: Tree = {}
    for path, leaf in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree
