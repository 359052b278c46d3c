"""Sums losses and bytes over the predicted tokens of validation sets, and names the metrics of sets and their parents.

    totals = {"web": count(losses, weights, tokens, token_bytes), "code/python": ...}
    metrics = summary(totals)

A tag is the name of a validation set. The bits per byte of a set are the sum of -log2 p over all predicted tokens,
divided by the sum of their lengths in bytes. Losses are means over predicted tokens. docs/metrics.md lists the metrics.
A tag whose metrics would have the names of others is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from datakit.errors import UsageError

AVERAGED = "ema"  # eval/ema/ is the prefix of the metrics of the averaged weights
LENGTH = "length_"  # eval/length_512/ is the prefix of the metrics for sequences of 512 tokens
CAPACITY = "capacity_"  # eval/capacity_1.25/ is the prefix of the metrics with this capacity factor
# The first part of a tag must not be such a name: the prefix of metrics of something else
_RESERVED = {
    re.compile(AVERAGED): "averaged weights",
    re.compile(LENGTH + "[0-9]+"): "sequences of another length",
    re.compile(CAPACITY + "[0-9.e+-]+"): "a limited capacity",
}
Lengths = np.ndarray | None  # the length of each token in bytes [V]; None: unknown


@dataclass(frozen=True)
class Totals:
    """Sums over a tag's predicted tokens: their losses in nats, their number, and their lengths in bytes."""

    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.nats + other.nats, self.tokens + other.tokens, self.bytes + other.bytes)

    @property
    def loss(self) -> float:
        """The mean loss, in nats per token."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float | None:
        """The total bits divided by the total bytes, or None if the number of bytes is unknown."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None


def check_tags(tags: Iterable[str]) -> None:
    """Raise UsageError for a tag whose metrics would have the same names as other metrics."""
    names = sorted(tags)
    for tag in names:
        first = tag.split("/")[0]
        for pattern, kind in _RESERVED.items():
            if pattern.fullmatch(first):
                place = f"eval/{first}/ holds the metrics of {kind}"
                raise UsageError(f"evaluation {tag!r}: {place}; rename this evaluation")
        above = [parent for parent in _parents(tag) if parent in names]
        if above:
            raise UsageError(
                f"evaluation {above[0]!r} is the parent of {tag!r}, so the metrics of both "
                f"would have the same names; rename the parent, e.g. to {above[0] + '/all'!r}"
            )


def count(losses: np.ndarray, weights: np.ndarray, tokens: np.ndarray, token_bytes: Lengths) -> Totals:
    """Return the sums over one batch, given arrays of shape [B, S]; position i predicts token i + 1."""
    counted = weights[:, :-1] > 0
    predicted = tokens[:, 1:][counted]
    return Totals(
        nats=float(losses[:, :-1][counted].astype(np.float64).sum()),
        tokens=int(counted.sum()),
        bytes=0 if token_bytes is None else int(token_bytes[predicted].sum(dtype=np.int64)),
    )


def summary(totals: Mapping[str, Totals]) -> dict[str, float]:
    """Return the metrics of each tag, of each parent tag, and of all tags together, by name."""
    metrics: dict[str, float] = {}
    for tag, total in totals.items():
        metrics |= _named(f"eval/{tag}", {"loss": total.loss, "bpb": total.bits_per_byte})
    parents = {parent for tag in totals for parent in _parents(tag)}
    for parent in sorted(parents):
        leaves = [total for tag, total in totals.items() if tag.startswith(f"{parent}/")]
        metrics |= _named(f"eval/{parent}", {"micro_loss": sum(leaves, Totals()).loss, **_pooled(leaves)})
    whole = list(totals.values())
    return metrics | _named("eval", {"loss": sum(whole, Totals()).loss, **_pooled(whole)})


def _pooled(leaves: list[Totals]) -> dict[str, float | None]:
    bits = [leaf.bits_per_byte for leaf in leaves]
    known = [value for value in bits if value is not None]
    return {
        "macro_loss": float(np.mean([leaf.loss for leaf in leaves])),
        "bpb": sum(leaves, Totals()).bits_per_byte,
        "macro_bpb": float(np.mean(known)) if known else None,
    }


def _parents(tag: str) -> list[str]:
    parts = tag.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _named(prefix: str, values: Mapping[str, float | None]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in values.items() if value is not None}
