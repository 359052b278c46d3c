"""Compiles a training step (loss, gradients, optimizer, averaged weights, router biases, check for NaN) and the
evaluation, and defines and creates the training state.

    keys of the state: "step", "params", "model", "moments", and "ema" if optimizer.ema is set

The learning rates of a step are inputs of the compiled function. So runs that differ only in learning rates, schedule
or number of steps share one compiled function. The buffers of the state are donated, so a step needs no second copy of
it. Parameters, moments and averages are sharded as the table of weights specifies; the batch is split by rows. The
result `finite` is True if the loss and all norms are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.trainer import accumulation
from datakit.trainer.models.experts.capacity import with_capacity
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.shapes import Array
from datakit.trainer.models.weights import Group, Tree, batch_parts, initialize, placed, shardings
from datakit.trainer.norms import group_norms, histograms, watched
from datakit.trainer.optimizers.protocol import Optimizer
from datakit.trainer.optimizers.update import grouped, groups_of, initial_moments, moments_like, update


@dataclass(frozen=True)
class Trainer:
    """The model, optimizer and mesh of a run, and the functions compiled from them."""

    model: Any  # a module that implements `protocol.Model`
    config: Any
    optimizer: Optimizer  # from `Optimizer.constants`; the rates are inputs of each step
    mesh: Mesh
    watch: tuple[str, ...] = ()
    watch_histograms: bool = False
    microbatch: int | None = None  # maximum number of rows that a device processes at once; None: all

    @cached_property
    def table(self) -> Tree:
        """The model's table of weights, with the groups that the optimizer assigns."""
        return grouped(self.model.weights(self.config), self.optimizer)

    @cached_property
    def shardings(self) -> Tree:
        """The sharding of each array of the state. Raises UsageError if an axis cannot be split evenly."""
        split, whole = shardings(self.table, self.mesh), NamedSharding(self.mesh, P())
        model = jax.tree.map(lambda _: whole, jax.eval_shape(lambda: self.model.initial_state(self.config)))
        state = {"step": whole, "params": split, "model": model}
        state["moments"] = moments_like(split, self.table, self.optimizer)
        return state | ({"ema": {"params": split, "model": model}} if self.optimizer.ema else {})

    def passes(self, shape: tuple[int, ...]) -> int:
        """Return the number of microbatches in which a batch of this shape [B, S] is processed."""
        return accumulation.passes_of(shape[0], batch_parts(self.mesh), self.microbatch)

    def idle_lines(self, outline: Iterable[tuple[int, int, int]]) -> list[str]:
        """Return a line that says so if `microbatch` has no effect. outline: (number, rows, length) of batches."""
        rows = [rows for _, rows, _ in outline]
        return accumulation.lines_without_effect(self.microbatch, rows, batch_parts(self.mesh))

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
        """The jitted step: (state, batch, rates, watch=False) -> (next state, results). It reuses the buffers of
        `state`. `rates` is the learning rate of each group in this step (see `schedules.learning_rates`).
        """
        shardings = (self.shardings, NamedSharding(self.mesh, P()))
        return jax.jit(partial(_advance, self), static_argnames=("watch",), donate_argnums=0, out_shardings=shardings)

    @cached_property
    def programs(self) -> dict[tuple[tuple[int, ...], bool], Callable[..., tuple[Tree, dict[str, Any]]]]:
        """The steps compiled so far, by the shape of their batches and by `watch`."""
        return {}

    def compile(self, state: Tree, batch: Tokens, watch: bool) -> Callable[..., tuple[Tree, dict[str, Any]]]:
        """Compile `advance` for batches of the shape of `batch`; return the compiled function, which takes (state,
        batch, rates), without calling it.
        """
        key = (batch.tokens.shape, watch)
        self.programs[key] = self.advance.lower(state, batch, self.rates_like(), watch=watch).compile()
        return self.programs[key]

    def rates_like(self) -> dict[Group, jax.ShapeDtypeStruct]:
        """Return the shape and dtype of each group's learning rate, as `advance` takes them."""
        return dict.fromkeys(groups_of(self.table), jax.ShapeDtypeStruct((), jnp.float32))

    def measure_norms(self, params: Tree) -> dict[str, float]:
        """Return the norm of each optimizer group and of the embedding; alarms compare later norms with these."""
        return {name: float(norm) for name, norm in jax.jit(partial(group_norms, self.table))(params).items()}

    @cached_property
    def evaluate(self) -> Callable[..., tuple[Array, Array, Array]]:
        """The jitted evaluation: (params, model state, batch, capacity=None) -> (losses, weights, tokens). Each result
        is an array [B, S] with a full copy on every device. capacity: a capacity factor; None: nothing is dropped.
        """
        whole = NamedSharding(self.mesh, P())
        return jax.jit(partial(_losses, self), static_argnames=("capacity",), out_shardings=whole)


def _fresh(trainer: Trainer, key: Array) -> Tree:
    weights = {"params": initialize(trainer.table, key), "model": trainer.model.initial_state(trainer.config)}
    moments = initial_moments(weights["params"], trainer.table, trainer.optimizer)
    state = {"step": jnp.int32(0), **weights, "moments": moments}
    return state | ({"ema": weights} if trainer.optimizer.ema else {})


def _advance(
    trainer: Trainer, state: Tree, batch: Tokens, rates: dict[Group, Array], watch: bool = False
) -> tuple[Tree, dict[str, Any]]:
    specs = jax.tree.map(lambda weight: placed(weight.sharding), trainer.table)
    work = (trainer.model, trainer.config, state["params"], state["model"], batch, trainer.passes(batch.tokens.shape))
    total, mean, output, gradients = accumulation.gradients(*work, specs)
    inputs = (gradients, state["moments"], state["params"], state["step"], rates)
    params, moments, metrics = update(*inputs, trainer.table, trainer.optimizer)
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
        if trainer.watch_histograms:
            results["histograms"] = histograms(trainer.watch, gradients, state, after)
    return after, results


def _losses(
    trainer: Trainer, params: Tree, model_state: Tree, batch: Tokens, capacity: float | None = None
) -> tuple[Array, Array, Array]:
    config, passes = with_capacity(trainer.config, capacity), trainer.passes(batch.tokens.shape)
    return *accumulation.losses(trainer.model, config, params, model_state, batch, passes), batch.tokens
