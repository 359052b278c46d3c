"""Describes a model's weights as a table: shape, sharding, initialisation and optimizer group in one row.

A model file builds one nested dict of `Weight`s, from which arrays, shardings, optimizer groups and parameter counts
follow. Each weight has its own random key, derived from its path, so adding a weight changes no other, and the values
do not depend on the mesh.

The mesh has two axes: "replica" holds full copies (data parallel), "data" shards the weights (FSDP). The batch is split
over both. `gathered` collects a sharded weight at the point of use, after the cast, which halves the traffic.
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
Tree = dict[str, Any]  # nested dicts whose leaves have one type


@dataclass(frozen=True)
class Weight:
    """One row of the table. `std` 0 means zeros, None ones; otherwise a normal truncated at 3 standard deviations.

    The first `stack` axes number independent matrices (layers, experts), each of which keeps its norm under AdamH.
    """

    shape: tuple[int, ...]
    sharding: P
    std: float | None
    group: Group = "adam"
    stack: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def make_mesh(replicas: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh for full copies of the weights, each sharded over its devices. Raises UsageError if uneven."""
    devices = jax.devices() if devices is None else devices
    if len(devices) % replicas:
        raise UsageError(f"{len(devices)} devices cannot hold {replicas} replicas; choose a divisor of {len(devices)}")
    shape = (replicas, len(devices) // replicas)
    return jax.make_mesh(shape, BATCH, (AxisType.Auto, AxisType.Auto), devices=devices)


def leaves(table: Tree, prefix: str = "") -> dict[str, Any]:
    """Flatten a nested dict to {"blocks/query": leaf}, sorted by path."""
    flat: dict[str, Any] = {}
    for name in sorted(table):
        path = f"{prefix}{name}"
        value = table[name]
        flat |= leaves(value, f"{path}/") if isinstance(value, dict) else {path: value}
    return flat


def map_weights(function: Callable[..., Any], table: Tree, *trees: Tree) -> Tree:
    """Map `function(weight, *leaves of the other trees)` over the table."""
    return {
        name: map_weights(function, value, *(tree[name] for tree in trees))
        if isinstance(value, dict)
        else function(value, *(tree[name] for tree in trees))
        for name, value in table.items()
    }


def parameter_count(table: Tree) -> int:
    """Number of parameters of a model."""
    return sum(weight.size for weight in leaves(table).values())


def initialize(table: Tree, key: Array, prefix: str = "") -> Tree:
    """Draw fp32 parameters. Use `jit` with `out_shardings=shardings(...)` if they do not fit on one device."""
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
    """Sharding of each weight on the mesh. Raises UsageError if an axis cannot be split evenly."""
    for path, weight in leaves(table).items():
        for axis, name in enumerate(weight.sharding):
            if name is not None and weight.shape[axis] % mesh.shape[name]:
                raise UsageError(
                    f"weight {path} {weight.shape}: axis {axis} does not split over {mesh.shape[name]} devices; "
                    "raise `replicas`, or choose another size"
                )
    return map_weights(lambda weight: NamedSharding(mesh, weight.sharding), table)


def gathered(weight: Shaped[Array, "*shape"], dtype: Any) -> Shaped[Array, "*shape"]:
    """Cast a weight to the compute type and gather it on every device."""
    return constrain(weight.astype(dtype), P())


def constrain(x: Shaped[Array, "*shape"], spec: P) -> Shaped[Array, "*shape"]:
    """Constrain an array's sharding; does nothing on one device or without a mesh."""
    return jax.lax.with_sharding_constraint(x, spec) if current_mesh().size > 1 else x


def current_mesh() -> AbstractMesh:
    """Mesh of the surrounding `jax.set_mesh`; its size is at most 1 outside of one."""
    return jax.sharding.get_abstract_mesh()
