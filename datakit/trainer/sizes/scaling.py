"""Computes a run's model config, batch size, steps and optimizer settings from a compute budget and a width, and
predicts its loss and bits per byte.

    size(1e19, 1024) -> Plan                 # a Grug model; kind="olmoe" sizes another one

All fitted constants are in one table (`Heuristic`), so a new fit needs only a new table. C is the budget in FLOPs, d
the width, and F the forward FLOPs per token, not counting those of the output matrix:

    tokens T = C / (3 F)             batch B = the power of two that gives about 2**14 steps, or 32 if that is more
    steps = T / (B x sequence)       Adam's rate = 1.63 T**-0.2813 d**-0.3678 sqrt(B), AdamH's 13/3 of it, both <= 0.05

Predictions are power laws in C, fitted on one data mixture with a vocabulary of 128,256 tokens. For budgets outside the
fitted range (marked `extrapolated`) or for other text, they are only a rough guide.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from datakit.errors import UsageError, counted
from datakit.trainer.models import KIND, load_model
from datakit.trainer.models.weights import parameter_count
from datakit.trainer.optimizers import adamh

MULTIPLE = 128  # default vocabulary sizes are rounded up to a multiple of this, as matrix units use blocks of 128


@dataclass(frozen=True)
class Heuristic:
    """A set of fitted constants. The defaults were published with the Grug recipe in April 2026."""

    name: str = "april-2026"
    sequence: int = 4096  # length of the sequences in which batch sizes are counted
    steps_exponent: int = 14
    smallest_batch: int = 32
    adam_scale: float = 1.63
    adam_tokens: float = -0.2813
    adam_hidden: float = -0.3678
    adamh_over_adam: float = 13 / 3
    largest_rate: float = 0.05
    beta1: float = 0.9062
    beta2_base: float = 0.999  # beta2 for a batch of `smallest_batch` sequences; a later sweep favors 0.998
    beta2_range: tuple[float, float] = (0.95, 0.9999)
    epsilon: float = 1e-15
    epsilon_batch: int = 32
    epsilon_tokens: float = 1.4e9
    loss: tuple[float, float, float] = (1.6, 95.18, -0.0941)  # macro loss in nats: floor + scale * C**exponent
    bits_per_byte: tuple[float, float, float] = (0.4814, 25.97, -0.0915)  # the same formula, on English web text
    critical_batch: tuple[float, float] = (1.87e-5, 0.388)  # scale * C**exponent, in sequences
    fitted: tuple[float, float] = (1e18, 1e23)  # range of budgets to which the laws were fitted, in FLOPs
    # Vocabulary size of the fit. Losses per token can be compared only between runs with the same tokenizer.
    vocabulary: int = 128_256


APRIL = Heuristic()


@dataclass(frozen=True)
class Prediction:
    """The macro loss (in nats per token) and the bits per byte that are expected for a budget."""

    flops: float
    macro_loss: float
    bits_per_byte: float
    extrapolated: bool  # True if the budget is outside the fitted range
    heuristic: str


@dataclass(frozen=True)
class Plan:
    """The sizes and settings of a run with a given budget; batch sizes are in sequences of length `sequence`."""

    flops: float
    tokens: float
    sequence: int
    batch: int
    steps: int
    kind: str
    model: Any  # an instance of the Config class of the model that `kind` names
    optimizer: adamh.Config
    prediction: Prediction
    critical_batch: float

    @property
    def warnings(self) -> list[str]:
        """Warnings about the plan: reasons to reconsider it before starting the run."""
        found = []
        if self.batch > self.critical_batch:
            found.append(
                f"batch {self.batch:,} is above the critical batch size of {self.critical_batch:,.0f} sequences: "
                "the larger the batch, the more tokens are needed for the same loss (the limit is not sharp)"
            )
        if self.prediction.extrapolated:
            found.append("the budget is outside the fitted range, so the predictions are only a rough guide")
        if self.kind != "grug":
            found.append(
                f"batch sizes, rates and predictions were fitted on Grug models; for {self.kind}, they are only a "
                "rough guide"
            )
        return found

    def document(self) -> dict[str, Any]:
        """Return the plan, its parameter counts and its warnings as plain values for JSON."""
        plain = dataclasses.asdict(self)
        model = load_model(self.kind)
        table, chosen = model.weights(self.model), getattr(self.model, "experts_per_token", None)
        counts = {
            "parameters": parameter_count(table),
            "active_parameters": parameter_count(table, chosen),
            "flops_per_token": model.flops_per_token(self.model, self.sequence, with_head=False),
        }
        return plain | counts | {"warnings": self.warnings}

    def _sizes(self) -> str:
        """Return the sizes of the model, of which not every kind has all."""
        m, has = self.model, partial(hasattr, self.model)
        parts = ["" if self.kind == "grug" else f"{self.kind}, ", f"hidden {m.hidden}, {counted(m.layers, 'layer')}"]
        if has("heads"):
            parts.append(f", {counted(m.heads, 'head')} ({m.kv_heads} for keys and values)")
        if has("experts"):
            parts.append(f", {m.experts} experts of {m.expert_width}, {m.experts_per_token} per token")
        if has("shared_width"):
            parts.append(f", shared {m.shared_width}")
        return "".join(parts)

    def lines(self) -> list[str]:
        """Return the plan as lines of text."""
        o, counts = self.optimizer, self.document()
        return [
            f"budget      {self.flops:.3g} FLOPs ({counts['flops_per_token']:.4g} per token, forward, no head)",
            f"model       {self._sizes()}",
            f"parameters  {counts['parameters'] / 1e9:.3f} B, {counts['active_parameters'] / 1e9:.3f} B active",
            f"batch       {self.batch:,} sequences of {self.sequence:,}; critical {self.critical_batch:,.0f}",
            f"steps       {self.steps:,} ({self.tokens:.4g} tokens)",
            f"rates       adam {o.adam_learning_rate:.5f}, adamh {o.learning_rate:.5f}, beta1 {o.beta1}, "
            f"beta2 {o.beta2:.5f}, epsilon {o.epsilon:.2e}",
            f"expected    macro loss {self.prediction.macro_loss:.4f}, "
            f"{self.prediction.bits_per_byte:.4f} bits per byte ({self.prediction.heuristic})",
            *(f"warning     {warning}" for warning in self.warnings),
        ]


def size(
    flops: float,
    hidden: int,
    *,
    kind: str = "grug",
    vocabulary: int = 128_256,
    sequence: int = 4096,
    beta2_base: float | None = None,
    heuristic: Heuristic = APRIL,
) -> Plan:
    """Plan the training of a model of width `hidden` with a budget of `flops` FLOPs. `kind` names the model, which must
    define `of_width`. Raises UsageError if it does not, or unless `flops` > 0 and `hidden` is a positive multiple of
    128.
    """
    if not flops > 0:
        raise UsageError(f"a budget of {flops} FLOPs is too small; it must be positive, e.g. 1e19")
    module = load_model(kind)
    if not hasattr(module, "of_width"):
        able = [name for name in KIND.built_in if hasattr(load_model(name), "of_width")]
        raise UsageError(
            f"the model {kind!r} cannot be sized, because it does not define of_width(hidden, vocabulary, sequence); "
            f"use {' or '.join(able)}, or define it as models/grug.py does"
        )
    model = module.of_width(hidden, vocabulary, sequence)
    tokens = flops / (3 * module.flops_per_token(model, sequence, with_head=False))
    batch = batch_size(tokens, heuristic)
    rows = max(1, batch * heuristic.sequence // sequence)
    return Plan(
        flops=flops,
        tokens=tokens,
        sequence=sequence,
        batch=rows,
        steps=max(1, round(tokens / (rows * sequence))),
        kind=kind,
        model=model,
        optimizer=tuned(tokens, batch, hidden, beta2_base or heuristic.beta2_base, heuristic),
        prediction=predict(flops, heuristic),
        critical_batch=critical_batch(flops, heuristic) * heuristic.sequence / sequence,
    )


def rounded_vocabulary(ids: int) -> int:
    """Return the default size of a model's vocabulary for a tokenizer with this many ids.
    >>> rounded_vocabulary(50_257)
    50304
    """
    return -(-ids // MULTIPLE) * MULTIPLE


def batch_size(tokens: float, heuristic: Heuristic = APRIL) -> int:
    """Return the number of sequences in a batch for training on `tokens` tokens: a power of two, at least
    `smallest_batch`. The sequences have the heuristic's length.
    """
    ideal = tokens / (2**heuristic.steps_exponent * heuristic.sequence)
    return max(heuristic.smallest_batch, 2 ** math.ceil(math.log2(ideal)))


def critical_batch(flops: float, heuristic: Heuristic = APRIL) -> float:
    """Return the batch size, in sequences, above which the steps saved no longer justify the additional tokens."""
    scale, exponent = heuristic.critical_batch
    return scale * flops**exponent


def tuned(tokens: float, batch: int, hidden: int, beta2_base: float, heuristic: Heuristic = APRIL) -> adamh.Config:
    """Return AdamH's settings for training on `tokens` tokens in batches of `batch` sequences."""
    h = heuristic
    adam = min(h.largest_rate, h.adam_scale * tokens**h.adam_tokens * hidden**h.adam_hidden * math.sqrt(batch))
    low, high = h.beta2_range
    return adamh.Config(
        learning_rate=min(h.largest_rate, h.adamh_over_adam * adam),
        adam_learning_rate=adam,
        beta1=h.beta1,
        beta2=min(max(beta2_base ** (batch / h.smallest_batch), low), high),
        epsilon=h.epsilon * math.sqrt(h.epsilon_batch * tokens / (batch * h.epsilon_tokens)),
    )


def predict(flops: float, heuristic: Heuristic = APRIL) -> Prediction:
    """Predict the macro loss (nats per token) and the bits per byte that a run with this budget will reach."""

    def law(constants: tuple[float, float, float]) -> float:
        floor, scale, exponent = constants
        return floor + scale * flops**exponent

    low, high = heuristic.fitted
    return Prediction(
        flops, law(heuristic.loss), law(heuristic.bits_per_byte), not low <= flops <= high, heuristic.name
    )
