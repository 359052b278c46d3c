"""Whether each validation set holds a token that can be predicted: seen before the first step, not after the last."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from datakit.errors import UsageError
from datakit.trainer.batches import HostBatch
from datakit.trainer.evaluate import BatchesOf
from datakit.trainer.hosts import any_says


def check_evaluations(tags: Mapping[str, BatchesOf], limit: int | None) -> None:
    """Raises UsageError for a set without one in its first `limit` batches; mostly the first batch has one."""
    for tag, batches in tags.items():
        if not any(any_says(_has_prediction(batch))[0] for batch in islice(iter(batches()), limit)):
            raise UsageError(
                f"evaluation {tag!r} holds no token that can be predicted; give it more documents, or leave it out"
            )


def _has_prediction(batch: HostBatch) -> bool:
    """The rule of `layers.next_tokens`, for this host's rows."""
    counted = batch.loss_mask[:, 1:] & (batch.segments[:, 1:] == batch.segments[:, :-1])
    return bool(counted.any())
