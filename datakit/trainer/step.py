"""Compiles a training step (loss, gradients, optimizer, averaged weights, router biases, check for NaN) and the
evaluation, and defines and creates the training state.

    keys of the state: "step", "params", "model", "moments", and "ema" if optimizer.ema is set

The buffers of the state are donated, so a step needs no second copy of it. Parameters, moments and averages are sharded
as the table of weights specifies; the batch is split by rows. The result `finite` is True if the loss and all norms are
finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.trainer import optimizer as optimizers
from datakit.trainer.models.protocol import Output, Tokens
from datakit.trainer.models.shapes import Array
from datakit.trainer.models.weights import Tree, initialize, shardings
from datakit.trainer.norms import group_norms, watched
from datakit.trainer.optimizer import Optimizer


@dataclass(frozen=True)
class Trainer:
    """The model, optimizer and mesh of a run, and the functions compiled from them."""

    model: Any  # a module that implements `protocol.Model`
    config: Any
    optimizer: Optimizer
    steps: int
    mesh: Mesh
    watch: tuple[str, ...] = ()

    @cached_property
    def table(self) -> Tree:
        """The model's table of weights."""
        return self.model.weights(self.config)

    @cached_property
    def shardings(self) -> Tree:
        """The sharding of each array of the state. Raises UsageError if an axis cannot be split evenly."""
        split, whole = shardings(self.table, self.mesh), NamedSharding(self.mesh, P())
        model = jax.tree.map(lambda _: whole, jax.eval_shape(lambda: self.model.initial_state(self.config)))
        state = {"step": whole, "params": split, "model": model, "moments": {"mu": split, "nu": split}}
        return state | ({"ema": {"params": split, "model": model}} if self.optimizer.ema else {})

    def fresh(self, seed: int) -> Tree:
        """Return a state at step 0. Its arrays are created on the devices, already sharded."""
        return self._initialize(jax.random.key(seed))

    @cached_property
    def _initialize(self) -> Callable[[Array], Tree]:
        return jax.jit(partial(_fresh, self), out_shardings=self.shardings)

    def like(self) -> Tree:
        """Return the shape, dtype and sharding of each array of the state, without values."""
        shapes = jax.eval_shape(partial(_fresh, self), jax.random.key(0))
        return jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, self.shardings)

    @cached_property
    def advance(self) -> Any:
        """The jitted step: (state, batch, watch=False) -> (next state, results). It reuses the buffers of `state`."""
        shardings = (self.shardings, NamedSharding(self.mesh, P()))
        return jax.jit(partial(_advance, self), static_argnames=("watch",), donate_argnums=0, out_shardings=shardings)

    @cached_property
    def programs(self) -> dict[tuple[tuple[int, ...], bool], Callable[..., tuple[Tree, dict[str, Any]]]]:
        """The steps compiled so far, by the shape of their batches and by `watch`."""
        return {}

    def compile(self, state: Tree, batch: Tokens, watch: bool) -> Callable[..., tuple[Tree, dict[str, Any]]]:
        """Compile `advance` for batches of the shape of `batch`; return the compiled function without calling it."""
        key = (batch.tokens.shape, watch)
        self.programs[key] = self.advance.lower(state, batch, watch=watch).compile()
        return self.programs[key]

    def measure_norms(self, params: Tree) -> dict[str, float]:
        """Return the norm of each optimizer group and of the embedding; alarms compare later norms with these."""
        return {name: float(norm) for name, norm in jax.jit(partial(group_norms, self.table))(params).items()}

    @cached_property
    def evaluate(self) -> Callable[[Tree, Tree, Tokens], tuple[Array, Array, Array]]:
        """The jitted evaluation: (params, model state, batch) -> (losses, weights, tokens). Each result is an array
        [B, S] with a full copy on every device.
        """
        return jax.jit(partial(_losses, self), out_shardings=NamedSharding(self.mesh, P()))


def _fresh(trainer: Trainer, key: Array) -> Tree:
    weights = {"params": initialize(trainer.table, key), "model": trainer.model.initial_state(trainer.config)}
    state = {"step": jnp.int32(0), **weights, "moments": optimizers.initial_moments(weights["params"])}
    return state | ({"ema": weights} if trainer.optimizer.ema else {})


def _advance(trainer: Trainer, state: Tree, batch: Tokens, watch: bool = False) -> tuple[Tree, dict[str, Any]]:
    loss = partial(_loss, trainer, state["model"], batch)
    (total, (mean, output)), gradients = jax.value_and_grad(loss, has_aux=True)(state["params"])
    inputs = (gradients, state["moments"], state["params"], state["step"])
    schedule = optimizers.multiplier(trainer.optimizer, trainer.steps)
    params, moments, metrics = optimizers.update(*inputs, trainer.table, trainer.optimizer, schedule)
    metrics |= {f"params_norm/{name}": norm for name, norm in group_norms(trainer.table, params).items()}
    sound = jnp.stack([total, *(value for name, value in metrics.items() if "norm" in name)])
    after = {"step": state["step"] + 1, "params": params, "model": output.state, "moments": moments}
    if trainer.optimizer.ema:
        decay, weights = trainer.optimizer.ema, {"params": params, "model": output.state}
        after["ema"] = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, state["ema"], weights)
    results = {"loss": total, "cross_entropy_loss": mean, "aux_loss_weighted": output.auxiliary}
    results |= {"model": output.metrics, "optim": metrics, "finite": jnp.all(jnp.isfinite(sound))}
    if watch:
        results["watch"] = watched(trainer.watch, trainer.table, gradients, state, after)
    return after, results


def _loss(trainer: Trainer, model_state: Tree, batch: Tokens, params: Tree) -> tuple[Array, tuple[Array, Output]]:
    output = trainer.model.apply(params, model_state, batch, trainer.config)
    mean = jnp.sum(output.losses * output.weights) / jnp.maximum(jnp.sum(output.weights), 1)
    return mean + output.auxiliary, (mean, output)


def _losses(trainer: Trainer, params: Tree, model_state: Tree, batch: Tokens) -> tuple[Array, Array, Array]:
    output = trainer.model.apply(params, model_state, batch, trainer.config)
    return output.losses, output.weights, batch.tokens
