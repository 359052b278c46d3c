"""Describes a model's weights in a table; initializes, shards, gathers and counts them; and creates the devices
of a CPU and the device mesh.

A row gives a weight's shape, sharding, initialization and optimizer group. A model file builds the table as nested
dicts of `Weight`, from which arrays, shardings, optimizer groups and parameter counts follow. Each weight has its own
random key, derived from its path. So adding a weight does not change the other weights, and no initial value depends on
the mesh. docs/devices.md explains the axes of the mesh: "replica" (data parallelism), "data" (FSDP), "expert" (expert
parallelism) and "tensor" (tensor parallelism).

In a row's sharding, the name "data" stands for FSDP: the axis is split over all devices of a replica that do not
already split another axis of the weight. So expert parallelism changes only the sharding of the experts' weights, and
tensor parallelism only that of the weights that name "tensor".
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError, counted
from datakit.trainer.models.shapes import Array, Shaped

BATCH = ("replica", "data", "expert")  # the mesh axes that a batch is split over
TENSOR = "tensor"  # the mesh axis over which heads and the vocabulary are split
TOKENS = (*BATCH, TENSOR)  # the mesh axes that tokens are split over where each token is computed by itself
FSDP = ("data", "expert", TENSOR)  # the mesh axes that "data" in a row's sharding may stand for
ADVICE = {"expert": "lower `expert_parallel`", TENSOR: "lower `tensor_parallel`"}
Group = Literal["adam", "router", "adamh", "adamh_expert"]
Tree = dict[str, Any]  # nested dicts whose leaves all have the same type


@dataclass(frozen=True)
class Weight:
    """One row of the table. AdamH preserves the norm of each matrix in a stack separately."""

    shape: tuple[int, ...]
    sharding: P
    std: float | None  # of a normal distribution that is truncated at 3 standard deviations; 0: zeros; None: ones
    group: Group = "adam"
    stack: int = 0  # number of leading axes that index independent matrices (layers, experts)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def make_mesh(replicas: int = 1, devices: Sequence[Any] | None = None, experts: int = 1, tensor: int = 1) -> Mesh:
    """Return a mesh of `replicas` equal groups of devices. In each, `experts` devices share the routed experts, and
    `tensor` devices share heads and vocabulary. Raises UsageError if the devices cannot be split evenly.
    """
    devices = jax.devices() if devices is None else devices
    if len(devices) % replicas:
        raise UsageError(f"replicas ({replicas}) must be a divisor of the number of devices ({len(devices)})")
    copy = len(devices) // replicas
    if copy % (experts * tensor):
        raise UsageError(
            f"expert_parallel ({experts}) x tensor_parallel ({tensor}) must be a divisor of the number of devices that "
            f"share one copy of the weights ({copy} = {len(devices)} devices / {replicas} replicas)"
        )
    shape = (replicas, copy // (experts * tensor), experts, tensor)
    return jax.make_mesh(shape, TOKENS, (AxisType.Auto,) * len(shape), devices=devices)


def use_cpu_devices(count: int | None) -> None:
    """Let the cores of the CPU form `count` devices, in this process; None leaves the devices as they are. Raises
    UsageError if JAX has already started with another number of devices, or if it uses no CPU.
    """
    if count is None:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        if jax.local_device_count("cpu") != count:
            raise UsageError(
                f"cpu_devices is {count}, but JAX has already started with "
                f"{counted(jax.local_device_count('cpu'), 'device')} on the CPU; start a new process"
            ) from error
    if jax.default_backend() != "cpu":
        raise UsageError(
            f"cpu_devices has no effect on {jax.default_backend()}; remove this setting, or set JAX_PLATFORMS=cpu"
        )


def leaves(tree: Tree) -> dict[str, Any]:
    """Flatten a nested dict to a dict such as {"blocks/query": leaf}, sorted by path."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


_name = partial(jax.tree_util.keystr, simple=True, separator="/")


def parameter_count(table: Tree, chosen: int | None = None) -> int:
    """Return a model's number of parameters. If `chosen` is given, count only that many routed experts per layer."""
    return sum(
        weight.size // weight.shape[1] * chosen if chosen is not None and "/expert_" in path else weight.size
        for path, weight in leaves(table).items()
    )


def initialize(table: Tree, key: Array) -> Tree:
    """Draw fp32 parameters. If one device cannot hold them, call this in `jit` with `out_shardings=shardings(...)`."""

    def draw(path: Any, weight: Weight) -> Array:
        if not weight.std:
            return jnp.full(weight.shape, 1.0 if weight.std is None else 0.0, jnp.float32)
        own_key = jax.random.fold_in(key, zlib.crc32(_name(path).encode()))
        return weight.std * jax.random.truncated_normal(own_key, -3.0, 3.0, weight.shape, jnp.float32)

    return jax.tree.map_with_path(draw, table)


def shardings(table: Tree, mesh: Mesh) -> Tree:
    """Return the sharding of each weight on the mesh. Raises UsageError if an axis cannot be split evenly."""
    for path, weight in leaves(table).items():
        for axis, names in enumerate(placed(weight.sharding)):
            parts = math.prod(mesh.shape[name] for name in ((names,) if isinstance(names, str) else names or ()))
            if weight.shape[axis] % parts:
                advice = ADVICE.get(str(names), "raise `replicas`")
                raise UsageError(
                    f"weight {path} {weight.shape}: axis {axis} cannot be split evenly over {parts} "
                    f"devices; {advice}, or make the size of this axis a multiple of {parts}"
                )
    return jax.tree.map(lambda weight: NamedSharding(mesh, placed(weight.sharding)), table)


def placed(sharding: P) -> P:
    """Return the mesh axes over which a weight is split, given its row's sharding.
    >>> placed(P(None, "expert", "data"))
    PartitionSpec(None, 'expert', ('data', 'tensor'))
    >>> placed(P(None, "data"))
    PartitionSpec(None, ('data', 'expert', 'tensor'))
    """
    fully = tuple(axis for axis in FSDP if axis == "data" or axis not in sharding)
    return P(*(fully if name == "data" else name for name in sharding))


def gathered(weight: Shaped[Array, "*shape"], dtype: Any, spec: P | None = None) -> Shaped[Array, "*shape"]:
    """Gather a weight on every device. It is cast to `dtype` first, so that bf16 halves the traffic. If `spec` is
    given, the weight stays split as it says; P("expert") gathers the experts of each device.
    """
    return constrain(weight.astype(dtype), P() if spec is None else spec)


def constrain(x: Shaped[Array, "*shape"], spec: P) -> Shaped[Array, "*shape"]:
    """Constrain an array's sharding. This does nothing on one device or without a mesh."""
    return jax.lax.with_sharding_constraint(x, spec) if current_mesh().size > 1 else x


def batch_parts(mesh: Mesh | AbstractMesh) -> int:
    """Return the number of parts in which the rows of a batch are split; 1 without a mesh."""
    return math.prod(mesh.shape[axis] for axis in BATCH) if mesh.size > 1 else 1


def current_mesh() -> AbstractMesh:
    """Return the mesh of the surrounding `jax.set_mesh`. If there is none, return a mesh whose `size` is at most 1."""
    return jax.sharding.get_abstract_mesh()
