"""Defines what a model file provides, and the values it exchanges with the training loop.

A model is a module with a config dataclass `Config` and the four functions of `Model`. `load_model("grug")` finds one
in `trainer/models/`; `load_model("my_package.my_variant")` finds your own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from datakit.errors import UsageError
from datakit.trainer.models.shapes import Array, Bool, Float, Int
from datakit.trainer.models.weights import Tree

PADDING_SEGMENT = 0


class Tokens(NamedTuple):
    """A batch as a model receives it. `segments` numbers the documents of a row from 1; 0 is padding."""

    tokens: Int[Array, "B S"]
    segments: Int[Array, "B S"]
    loss_mask: Bool[Array, "B S"]  # tokens whose prediction counts


class Output(NamedTuple):
    """Results of one pass. The training loss is the weighted mean of `losses` plus `auxiliary`."""

    losses: Float[Array, "B S"]  # cross entropy in nats; position i predicts token i + 1
    weights: Float[Array, "B S"]  # 1 where that prediction counts
    auxiliary: Float[Array, ""]  # z-losses and balance losses, times their coefficients
    state: Tree  # the model state for the next step (router biases)
    metrics: dict[str, Any]  # scalars, [L] per layer, or [L, E] per layer and expert


class Model(Protocol):
    """A model file. Its state is carried from step to step but gets no gradients."""

    Config: type  # has a field `vocabulary`, the number of token ids

    def weights(self, config: Any) -> Tree:
        """Return the table of `weights.Weight`s."""
        ...

    def initial_state(self, config: Any) -> Tree:
        """Return the state before the first step; an empty dict for a model without state."""
        ...

    def apply(self, params: Tree, state: Tree, batch: Tokens, config: Any) -> Output:
        """Run one forward pass over a batch."""
        ...

    def flops_per_token(self, config: Any, sequence: int, with_head: bool = True) -> float:
        """Return the forward FLOPs per token at this sequence length."""
        ...


def check_sizes(config: Any, names: Iterable[str]) -> None:
    """Raise UsageError if a field in `names` is below 1, or if the head counts or the head width do not fit."""
    for name in names:
        if getattr(config, name) < 1:
            raise UsageError(f"model.{name} is {getattr(config, name)}; every size of a model is at least 1")
    if config.heads % config.kv_heads:
        raise UsageError(f"heads ({config.heads}) must be a multiple of kv_heads ({config.kv_heads})")
    if config.head_width % 2:
        raise UsageError(f"head_width ({config.head_width}) must be even: rotary positions rotate pairs")
