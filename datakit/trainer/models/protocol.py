"""Defines the functions that a model file must have, with their inputs and results, and checks the sizes of a model.
`docs/models.md` explains how to write a model file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from datakit.errors import UsageError
from datakit.trainer.models.shapes import Array, Bool, Float, Int
from datakit.trainer.models.weights import TENSOR, Tree, leaves

PADDING_SEGMENT = 0
# Metadata for the fields of a Config that affect only how results are computed (memory use and speed). These settings
# stay out of the run's fingerprint, so a run can resume with other values.
OPERATION = {"operation": True}


def operation_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a model that are declared with the metadata `OPERATION`."""
    fields = (field.name for field in dataclasses.fields(config) if "operation" in field.metadata)
    return {name: getattr(config, name) for name in fields}


class Tokens(NamedTuple):
    """A batch as a model receives it. `segments` numbers the documents of a row from 1, and 0 marks padding."""

    tokens: Int[Array, "B S"]
    segments: Int[Array, "B S"]
    loss_mask: Bool[Array, "B S"]  # true for tokens whose prediction counts toward the loss


class Output(NamedTuple):
    """Results of one forward pass. The training loss is `auxiliary` plus the mean of `losses` weighted by `weights`."""

    losses: Float[Array, "B S"]  # cross entropy in nats; position i predicts token i + 1
    weights: Float[Array, "B S"]  # 1 where the prediction counts toward the loss, otherwise 0
    auxiliary: Float[Array, ""]  # z-losses and balance losses, times their coefficients
    state: Tree  # the model state for the next step (such as router biases)
    metrics: dict[str, Any]  # scalars, or arrays indexed by layer [L] or by layer and expert [L, E]


class Part(NamedTuple):
    """Results of a forward pass over some of a batch's rows. Sums over all parts of a batch give what `Output` holds.
    A model that defines `apply_part` and `conclude` can be trained in microbatches (see `trainer/accumulation.py`).
    """

    losses: Float[Array, "B S"]  # as in `Output`
    weights: Float[Array, "B S"]  # as in `Output`
    # Sums over the rows. Floating-point sums get a gradient; integers (numbers of tokens) do not.
    sums: Tree
    kept: Any  # a tree of arrays that `conclude` needs for every row; they get no gradient
    # If given, `losses` get no gradient, and this sum over the rows is differentiated in place of the sum of `losses`
    # times `weights`. It may include terms of `auxiliary`, whose own sums then get no gradient (see `loss.py`).
    objective: Float[Array, ""] | None = None


class Model(Protocol):
    """The contents of a model file. The model's state is carried from step to step and gets no gradient.

    A model may lack `logits`, which only `datakit generate` calls. Five more functions are optional. To generate
    without computing earlier positions again: `no_past(config, positions) -> past`, for one row of this many
    positions, and `extend(params, state, batch, config, positions, past) -> (logits, past)`, where `batch` holds the
    positions that come after the past; the next past includes those that are not padding. For training in
    microbatches: `apply_part(params, state, batch, config, whole) -> Part`, and `conclude(sums, kept, state, config,
    whole) -> (auxiliary, state, metrics)`, whose results are fields of `Output`. If `whole`, the part is the whole
    batch. Otherwise, `sums` are summed over the parts, and each array of `kept` has a leading axis for the parts. A
    model that has these two functions is always trained with them, and `apply` only evaluates it. For `datakit size`:
    `of_width(hidden, vocabulary, sequence) -> Config`.
    """

    Config: type  # has a field `vocabulary`, the number of token ids

    def weights(self, config: Any) -> Tree:
        """Return the table of weights as nested dicts of `weights.Weight`."""
        ...

    def initial_state(self, config: Any) -> Tree:
        """Return the state before the first step. A model without state returns an empty dict."""
        ...

    def apply(self, params: Tree, state: Tree, batch: Tokens, config: Any) -> Output:
        """Run one forward pass over a batch."""
        ...

    def logits(
        self, params: Tree, state: Tree, batch: Tokens, config: Any, positions: Int[Array, "B P"]
    ) -> Float[Array, "B P V"]:
        """Return the fp32 logits of the tokens that follow the given positions of each row."""
        ...

    def flops_per_token(self, config: Any, sequence: int, with_head: bool = True) -> float:
        """Return the forward-pass FLOPs per token for sequences of length `sequence`, with or without the head."""
        ...


def check_sizes(config: Any, names: Iterable[str]) -> None:
    """Raise UsageError if a field in `names` is below 1, `kv_heads` does not divide `heads`, or `head_width` is odd."""
    for name in names:
        if getattr(config, name) < 1:
            raise UsageError(f"model.{name} is {getattr(config, name)}; every size of a model must be at least 1")
    if config.heads % config.kv_heads:
        raise UsageError(f"heads ({config.heads}) must be a multiple of kv_heads ({config.kv_heads})")
    if config.head_width % 2:
        raise UsageError(f"head_width ({config.head_width}) must be even: rotary embedding rotates pairs of entries")


def check_tensor(config: Any, table: Tree, parts: int) -> None:
    """Raise UsageError if `parts` devices cannot share a model's heads and vocabulary."""
    if parts < 1:
        raise UsageError(f"tensor_parallel is {parts}; use at least 1")
    if parts > 1 and not any(TENSOR in weight.sharding for weight in leaves(table).values()):
        raise UsageError(
            f"tensor_parallel = {parts} has no effect: no weight of the model is split over the mesh axis 'tensor'; "
            "remove this setting"
        )
    for name in ("heads", "kv_heads", "vocabulary"):
        size = getattr(config, name, parts)
        if size % parts:
            raise UsageError(f"tensor_parallel ({parts}) must be a divisor of model.{name} ({size})")


def check_window(window: int | None) -> None:
    """Raise UsageError if a window, the number of positions that a position attends to, is below 1."""
    if window is not None and window < 1:
        raise UsageError(
            f"model.window is {window}; use at least 1, or remove this setting to attend to all previous positions"
        )
