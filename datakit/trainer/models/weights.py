"""A model's weights as a table: shape, sharding, initialisation and optimizer group stand in one row.

A model file builds one nested dict of `Weight`s; everything else about parameters follows from it: the arrays, their
shardings, their optimizer groups, their number. Each weight has its own random key, derived from its path, so adding a
weight changes no other one, and the values do not depend on the mesh.

The mesh has two axes. "replica" holds whole copies (data parallel); "data" shards the weights (FSDP). The batch is
split over both. A weight names the axis that it is split along beside its shape; `gathered` undoes the split at the
point of use, after the cast, so that what travels is half as wide.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models.shapes import Array, Shaped

BATCH = ("replica", "data")  # the mesh axes that a batch is split over
Group = Literal["adam", "router", "adamh", "adamh_expert"]
Tree = dict[str, Any]  # nested dicts with one kind of leaf


@dataclass(frozen=True)
class Weight:
    """One row of the table. `std` 0 means zeros and None ones; else a normal truncated at 3 standard deviations.

    `stack` leading axes number independent matrices (layers, experts): AdamH holds the norm of each.
    """

    shape: tuple[int, ...]
    sharding: P
    std: float | None
    group: Group = "adam"
    stack: int = 0

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def make_mesh(replicas: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """`replicas` copies of the weights, each split over the remaining devices. Raises UsageError."""
    devices = jax.devices() if devices is None else devices
    if len(devices) % replicas:
        raise UsageError(f"{len(devices)} devices cannot hold {replicas} replicas; choose a divisor of {len(devices)}")
    shape = (replicas, len(devices) // replicas)
    return jax.make_mesh(shape, BATCH, (AxisType.Auto, AxisType.Auto), devices=devices)


def leaves(table: Tree, prefix: str = "") -> dict[str, Any]:
    """A nested dict as {"blocks/query": leaf}, sorted by path."""
    flat: dict[str, Any] = {}
    for name in sorted(table):
        path = f"{prefix}{name}"
        value = table[name]
        flat |= leaves(value, f"{path}/") if isinstance(value, dict) else {path: value}
    return flat


def map_weights(function: Callable[..., Any], table: Tree, *trees: Tree) -> Tree:
    """A tree like the table, its leaves `function(weight, *leaves of the other trees)`."""
    return {
        name: map_weights(function, value, *(tree[name] for tree in trees))
        if isinstance(value, dict)
        else function(value, *(tree[name] for tree in trees))
        for name, value in table.items()
    }


def parameter_count(table: Tree) -> int:
    """All parameters of a model."""
    return sum(weight.size for weight in leaves(table).values())


def initialize(table: Tree, key: Array, prefix: str = "") -> Tree:
    """Fresh fp32 parameters. Run it under `jit` with `out_shardings=shardings(...)` where they fit no single device."""
    return {
        name: initialize(value, key, f"{prefix}{name}/")
        if isinstance(value, dict)
        else _draw(value, jax.random.fold_in(key, zlib.crc32(f"{prefix}{name}".encode())))
        for name, value in table.items()
    }


def _draw(weight: Weight, key: Array) -> Array:
    if weight.std is None:
        return jnp.ones(weight.shape, jnp.float32)
    if weight.std == 0:
        return jnp.zeros(weight.shape, jnp.float32)
    return weight.std * jax.random.truncated_normal(key, -3.0, 3.0, weight.shape, jnp.float32)


def shardings(table: Tree, mesh: Mesh) -> Tree:
    """Where each weight lies on the mesh. Raises UsageError for a split that does not come out even."""
    for path, weight in leaves(table).items():
        for axis, name in enumerate(weight.sharding):
            if name is not None and weight.shape[axis] % mesh.shape[name]:
                raise UsageError(
                    f"weight {path} {weight.shape}: axis {axis} does not split over {mesh.shape[name]} devices; "
                    "raise `replicas`, or choose sizes that do"
                )
    return map_weights(lambda weight: NamedSharding(mesh, weight.sharding), table)


def gathered(weight: Shaped[Array, "*shape"], dtype: Any) -> Shaped[Array, "*shape"]:
    """A weight as it is used: cast to the compute type, whole on every device."""
    return constrain(weight.astype(dtype), P())


def constrain(x: Shaped[Array, "*shape"], spec: P) -> Shaped[Array, "*shape"]:
    """Pin where an array lies; nothing to do on a single device or without a mesh."""
    return jax.lax.with_sharding_constraint(x, spec) if current_mesh().size > 1 else x


def current_mesh() -> AbstractMesh:
    """The mesh of the surrounding `jax.set_mesh`; of size 1 or less outside."""
    return jax.sharding.get_abstract_mesh()
