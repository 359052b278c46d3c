"""Computes the loss and bits per byte of validation sets and their parent tags, rejects sets with clashing names or
nothing to predict, and derives token lengths in bytes from a tokenizer.json.

    metrics = evaluate(trainer, params, model_state, {"web": batches, "code/python": batches}, token_bytes)

A tag is the name of a validation set. The bits per byte of a set are the sum of -log2 p over all predicted tokens,
divided by the sum of their lengths in bytes. Losses are means over predicted tokens. Sums are computed in float64 on
the host, in the order of the batches, so the number of devices and the batch size affect the result only through the
rounding of the individual losses. The experts drop no tokens, even if training does. A batch from a single domain
overloads a few experts; with a limited capacity, the loss would be about 0.1 nat higher. `evaluation.capacity_factors`
measures this.

| name | value |
|---|---|
| eval/<tag>/loss, eval/<tag>/bpb | over all tokens of the tag |
| eval/<parent>/micro_loss, .../bpb | for a parent tag (e.g. `code` for `code/python`): over all tokens of its leaves |
| eval/<parent>/macro_loss, .../macro_bpb | for a parent tag: the unweighted mean over its leaves |
| eval/loss, eval/bpb, eval/macro_loss, eval/macro_bpb | over all tags |
| eval/total_time, eval/loading_time | seconds that the evaluation took, and that it waited for batches |
| eval/length_<L>/... | with `evaluation.every_length`: all metrics for sequences of L tokens, another stage's length |
| eval/capacity_<factor>/... | the same with each factor in `evaluation.capacity_factors`, which drops tokens |
| eval/ema/... | all metrics above for the averaged weights, if `optimizer.ema` is set |
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Any

import jax
import msgspec
import numpy as np

from datakit.errors import TokenizerError, UsageError
from datakit.trainer.device_feed import HostBatch, place
from datakit.trainer.models.experts.capacity import capacity_name, check_blocks
from datakit.trainer.models.weights import Tree
from datakit.trainer.multihost import any_says
from datakit.trainer.step import Trainer

AVERAGED = "ema"  # eval/ema/ is the prefix of the metrics of the averaged weights
LENGTH = "length_"  # eval/length_512/ is the prefix of the metrics for sequences of 512 tokens
CAPACITY = "capacity_"  # eval/capacity_1.25/ is the prefix of the metrics with this capacity factor
# The first part of a tag must not be such a name: the prefix of metrics of something else
_RESERVED = {
    re.compile(AVERAGED): "averaged weights",
    re.compile(LENGTH + "[0-9]+"): "sequences of another length",
    re.compile(CAPACITY + "[0-9.e+-]+"): "a limited capacity",
}
MOST_IDS = 1 << 24  # no tokenizer has more; with this limit, the array of token lengths takes at most 128 MiB
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MOST_IDS)]
BatchesOf = Callable[[], Iterable[HostBatch]]
Tags = Mapping[str, BatchesOf]
EvaluationsAt = Callable[[int], Tags]  # number of steps done -> the validation sets by tag
OtherLengthsAt = Callable[[int], Mapping[int, Tags]]  # the same by length, for the lengths of the other stages
NO_LENGTHS: Mapping[int, Tags] = MappingProxyType({})
Lengths = np.ndarray | None  # the length of each token in bytes [V]; None: unknown


class _AddedToken(msgspec.Struct):
    id: _TokenId
    content: str
    special: bool


class _Model(msgspec.Struct):
    vocab: dict[str, _TokenId]


class _TokenizerFile(msgspec.Struct):
    """The parts of a tokenizer.json that the lengths depend on. The file may come from a stranger."""

    model: _Model
    decoder: Any = None
    added_tokens: list[_AddedToken] = []


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


def evaluate(
    trainer: Trainer,
    params: Tree,
    model_state: Tree,
    tags: Tags,
    token_bytes: Lengths = None,
    limit: int | None = None,
    capacity: float | None = None,
) -> dict[str, float]:
    """Return all metrics, from at most `limit` batches per tag. capacity: a capacity factor; None: nothing is dropped.
    Raises UsageError for a tag with nothing to predict.
    """
    started, totals, waits = time.perf_counter(), {}, [0.0]
    with jax.set_mesh(trainer.mesh):
        for tag, batches in tags.items():
            timed = _timed(islice(iter(batches()), limit), waits)
            totals[tag] = measure(trainer, params, model_state, timed, token_bytes, capacity)
            if not totals[tag].tokens:
                raise UsageError(f"evaluation {tag!r} has no token to predict")
    return summary(totals) | {"eval/total_time": time.perf_counter() - started, "eval/loading_time": sum(waits)}


def _timed(batches: Iterator[HostBatch], waits: list[float]) -> Iterator[HostBatch]:
    """Yield the batches, and append to `waits` how many seconds each one took to arrive."""
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        waits.append(time.perf_counter() - started)
        if batch is None:
            return
        yield batch


def evaluate_all(
    trainer: Trainer,
    state: Tree,
    tags: Tags,
    token_bytes: Lengths = None,
    limit: int | None = None,
    other_lengths: Mapping[int, Tags] = NO_LENGTHS,
    capacities: Iterable[float] = (),
) -> dict[str, float]:
    """Return the metrics of a state's weights and, under eval/ema/, those of its averaged weights if it has any. The
    metrics of the validation sets in `other_lengths`, by sequence length, are under eval/length_<L>/, and those with
    each of the capacity factors `capacities` under eval/capacity_<factor>/.
    """
    ways: list[tuple[str, Tags, float | None]] = [("", tags, None)]
    ways += [(f"{LENGTH}{length}/", sets, None) for length, sets in other_lengths.items()]
    ways += [(f"{CAPACITY}{capacity_name(factor)}/", tags, factor) for factor in capacities]
    metrics: dict[str, float] = {}
    for which, weights in {"": state, **({f"{AVERAGED}/": state["ema"]} if "ema" in state else {})}.items():
        for prefix, sets, factor in ways:
            found = evaluate(trainer, weights["params"], weights["model"], sets, token_bytes, limit, factor)
            metrics |= {name.replace("eval/", f"eval/{which}{prefix}", 1): value for name, value in found.items()}
    return metrics


def measure(
    trainer: Trainer,
    params: Tree,
    model_state: Tree,
    batches: Iterable[HostBatch],
    token_bytes: Lengths,
    capacity: float | None = None,
) -> Totals:
    """Return the sums over the predicted tokens in the batches of one tag. capacity: see `evaluate`."""
    totals = Totals()
    for batch in batches:
        placed = place(batch, trainer.mesh, trainer.config.vocabulary).batch
        losses, weights, tokens = trainer.evaluate(params, model_state, placed, capacity=capacity)
        totals += count(np.asarray(losses), np.asarray(weights), np.asarray(tokens), token_bytes)
    return totals


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


def token_byte_lengths(tokenizer: bytes, place: str) -> np.ndarray:
    """Return the length of each token in bytes [V]; special tokens have length 0. `tokenizer` holds a byte-level
    tokenizer.json, in which each character of a vocabulary entry stands for one byte. Raises TokenizerError for other
    vocabularies and other files.
    """
    try:
        document = msgspec.json.decode(tokenizer, type=_TokenizerFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unknown_lengths(place, f" ({error})") from error
    vocabulary, added = document.model.vocab, document.added_tokens
    if not vocabulary or b"ByteLevel" not in msgspec.json.encode(document.decoder):
        raise _unknown_lengths(place, "")
    lengths = np.zeros(1 + max([*vocabulary.values(), *(token.id for token in added)]), np.int64)
    for entry, number in vocabulary.items():
        lengths[number] = len(entry)
    for token in added:
        lengths[token.id] = 0 if token.special else len(token.content.encode())
    return lengths


def _unknown_lengths(place: str, why: str) -> TokenizerError:
    return TokenizerError(
        f"{place} has no byte-level vocabulary{why}, so the lengths of its tokens in bytes are unknown; "
        "to get bits per byte, pass `token_bytes` to `train` or `evaluate` in Python"
    )


def check_evaluations(tags: Tags, limit: int | None) -> None:
    """Raise UsageError for a tag with nothing to predict. Usually, only the first batch of each tag is read."""
    for tag, batches in tags.items():
        if not any(any_says(_has_prediction(batch))[0] for batch in islice(iter(batches()), limit)):
            raise UsageError(f"evaluation {tag!r} has no token to predict; give it more documents, or remove it")


def check_capacities(trainer: Trainer, tags: Tags, factors: Sequence[float]) -> None:
    """Raise UsageError if a tag cannot be evaluated with these capacity factors. Reads the first batch of each tag."""
    for batches in tags.values() if factors else ():
        for batch in islice(iter(batches()), 1):
            rows, length = batch.tokens.shape
            check_blocks(trainer.config, factors, rows * jax.process_count(), length, trainer.mesh.size)


def _has_prediction(batch: HostBatch) -> bool:
    """Return True if this host's rows have a token to predict, according to the rule in `layers.next_tokens`."""
    counted = batch.loss_mask[:, 1:] & (batch.segments[:, 1:] == batch.segments[:, :-1])
    return bool(counted.any())
