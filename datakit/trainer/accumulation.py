"""Computes a batch's loss, gradients and next model state one microbatch at a time (gradient accumulation), so that the
activations of only one microbatch are in memory.

    loss, mean, output, gradients = gradients(model, config, params, state, batch, passes)

`passes` is the number of microbatches. The results are those of an undivided batch, up to the rounding of sums: every
mean is a mean over the whole batch, however its tokens, masks and padding are distributed over the microbatches. A mean
of the microbatches' means would be a different loss.

For this, a model returns sums for each microbatch (`protocol.Part`), and its function `conclude` computes the auxiliary
loss from the sums over all microbatches. The derivative of the total loss with respect to a sum is the factor by which
that sum's gradient is weighted in each microbatch. These factors must be known before the first backward pass. For the
cross entropy and the z-losses, they depend only on numbers of tokens, so XLA removes the rest of the forward pass that
would compute them. A balance loss also depends on the loads of the experts, which are known only after a forward pass
over the whole batch. So with a balance loss and several microbatches, a step costs one more forward pass up to the last
router, without the head.

Gradients are summed in fp32 and stay sharded as the weights are. What a model keeps for each row (`Part.kept`) stays in
memory for the whole batch: for a Grug model, 4 bytes per token, layer and expert. Each device splits its own rows into
microbatches, so no row moves to another device.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError, counted
from datakit.trainer.models.loss import largest_divisor
from datakit.trainer.models.protocol import Output, Part, Tokens
from datakit.trainer.models.shapes import Array
from datakit.trainer.models.weights import BATCH, Tree, batch_parts, constrain, current_mesh

NEEDED = ("apply_part", "conclude")  # see `protocol.Part`


def check_model(model: Any, kind: str) -> None:
    """Raise UsageError if a model cannot be trained in microbatches."""
    if not _has_parts(model):
        missing = [name for name in NEEDED if not hasattr(model, name)]
        raise UsageError(
            f"microbatch: the model {kind!r} does not define {' and '.join(missing)}, so its loss cannot be computed "
            "in microbatches; remove this setting, or define them as models/protocol.py describes"
        )


def _has_parts(model: Any) -> bool:
    return all(hasattr(model, name) for name in NEEDED)


def passes_of(rows: int, devices: int, microbatch: int | None) -> int:
    """Return the number of microbatches into which a batch of `rows` rows on `devices` devices is divided. In each, a
    device processes at most `microbatch` rows (None: all). All microbatches have the same number of rows.
    """
    own = rows // devices
    return 1 if microbatch is None else own // largest_divisor(own, microbatch)


def lines_without_effect(microbatch: int | None, batches: Iterable[int], devices: int) -> list[str]:
    """Return a line for the user if `microbatch` divides no batch of a run; otherwise nothing. batches: their numbers
    of rows.
    """
    own = max((rows // devices for rows in batches), default=1)
    if microbatch is None or microbatch < own:
        return []
    return [
        f"microbatch = {microbatch} has no effect: a device has only {counted(own, 'row')} of a batch; "
        + ("set a smaller number, or remove it" if own > 1 else "remove it")
    ]


def gradients(
    model: Any, config: Any, params: Tree, state: Tree, batch: Tokens, passes: int, specs: Tree
) -> tuple[Array, Array, Output, Tree]:
    """Return the training loss, the mean cross entropy, the model's output and the gradients of the parameters. With
    several microbatches, the output holds no losses and weights. `specs` holds the PartitionSpec of each parameter.
    """
    if passes == 1:
        found, (mean, output) = jax.grad(partial(training_loss, model, config, state, batch), has_aux=True)(params)
        return mean + output.auxiliary, mean, output, found
    parts, sum_up = split(batch, passes), partial(_sums, model, config, state)

    def count(so_far: Any, rows: Tokens) -> tuple[Any, None]:
        sums, (weight, _) = sum_up(rows, params)
        return _added(so_far, (sums, weight)), None

    shapes = jax.eval_shape(sum_up, jax.tree.map(lambda part: part[0], parts), params)
    zeros: Any = _zeros((shapes[0], shapes[1][0]))
    kept = jax.tree.map(lambda x: jnp.zeros((passes, *x.shape), x.dtype), shapes[1][1])
    sums: Any
    (sums, weight), _ = jax.lax.scan(count, zeros, parts)
    total = partial(_total, model, config, state, kept, weight)
    factors = jax.grad(total, allow_int=True)(sums)

    def accumulate(so_far: Any, rows: Tokens) -> tuple[Any, Any]:
        found, (sums, weight, kept) = jax.grad(partial(_weighted, sum_up, factors, rows), has_aux=True)(params)
        found = jax.tree.map(constrain, _added(so_far[0], found), specs)
        return (found, _added(so_far[1], sums), so_far[2] + weight), kept

    start: Any = (_zeros(params), *zeros)
    (found, sums, weight), kept = jax.lax.scan(accumulate, start, parts)
    mean = sums["loss"] / jnp.maximum(weight, 1)
    auxiliary, state, metrics = model.conclude(sums["model"], kept, state, config, False)
    nothing = jnp.zeros((0, 0), jnp.float32)
    return mean + auxiliary, mean, Output(nothing, nothing, auxiliary, state, metrics), found


def losses(model: Any, config: Any, params: Tree, state: Tree, batch: Tokens, passes: int) -> tuple[Array, Array]:
    """Return the losses and weights [B, S] of a batch, computed in `passes` microbatches."""

    def one(rows: Tokens) -> tuple[Array, Array]:
        output = model.apply(params, state, rows, config)
        return output.losses, output.weights

    if passes == 1:
        return one(batch)
    found = jax.lax.map(one, split(batch, passes))
    return jax.tree.map(joined, found)


def split(batch: Tokens, passes: int) -> Tokens:
    """Return the batch with a leading axis for the microbatches. Each device's rows stay on the device."""
    devices = batch_parts(current_mesh())

    def one(array: Array) -> Array:
        rows, length = array.shape
        own = array.reshape(devices, passes, rows // (devices * passes), length)
        return constrain(own.swapaxes(0, 1).reshape(passes, rows // passes, length), P(None, BATCH))

    return Tokens(*map(one, batch))


def joined(array: Array) -> Array:
    """Undo `split`."""
    devices, (passes, rows, length) = batch_parts(current_mesh()), array.shape
    own = array.reshape(passes, devices, rows // devices, length)
    return constrain(own.swapaxes(0, 1).reshape(passes * rows, length), P(BATCH))


def training_loss(
    model: Any, config: Any, state: Tree, batch: Tokens, params: Tree
) -> tuple[Array, tuple[Array, Output]]:
    """Return the training loss of an undivided batch, and as further results the mean cross entropy and the model's
    output. The losses of the positions have no gradient of their own if the model returns an objective.
    """
    if not _has_parts(model):
        output = model.apply(params, state, batch, config)
        mean = jnp.sum(output.losses * output.weights) / jnp.maximum(jnp.sum(output.weights), 1)
        return mean + output.auxiliary, (mean, output)
    part = model.apply_part(params, state, batch, config, True)
    output = Output(part.losses, part.weights, *model.conclude(part.sums, part.kept, state, config, True))
    weight = jnp.maximum(jnp.sum(part.weights), 1)
    mean = jnp.sum(part.losses * part.weights) / weight
    total = mean + output.auxiliary
    if part.objective is not None:  # adds a gradient, and nothing to the value
        total += (part.objective - jax.lax.stop_gradient(part.objective)) / weight
    return total, (mean, output)


def _objective(part: Part) -> Array:
    return jnp.sum(part.losses * part.weights) if part.objective is None else part.objective


def _sums(model: Any, config: Any, state: Tree, rows: Tokens, params: Tree) -> tuple[Tree, tuple[Array, Any]]:
    """Return one microbatch's sums, and its number of predictions and `Part.kept`; the latter two get no gradient."""
    part = model.apply_part(params, state, rows, config, False)
    loss = jnp.sum(part.losses * part.weights)
    sums = {"loss": jax.lax.stop_gradient(loss), "objective": _objective(part), "model": part.sums}
    return sums, (jnp.sum(part.weights), jax.lax.stop_gradient(part.kept))


def _total(model: Any, config: Any, state: Tree, kept: Any, weight: Array, sums: Tree) -> Array:
    """Return a total whose derivatives are those of the training loss. Its value may include some terms twice."""
    return sums["objective"] / jnp.maximum(weight, 1) + model.conclude(sums["model"], kept, state, config, False)[0]


def _weighted(sum_up: Any, factors: Tree, rows: Tokens, params: Tree) -> tuple[Array, Any]:
    """Return the weighted sum of one microbatch's sums; its gradient is the microbatch's share of the gradient."""
    sums, (weight, kept) = sum_up(rows, params)
    terms = jax.tree.map(_product, factors, sums)
    return jax.tree.reduce(jnp.add, terms), (sums, weight, kept)


def _product(factor: Any, value: Array) -> Array:
    return jnp.sum(factor * value) if jnp.issubdtype(value.dtype, jnp.floating) else jnp.float32(0)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _added(first: Any, second: Any) -> Any:
    return jax.tree.map(jnp.add, first, second)
