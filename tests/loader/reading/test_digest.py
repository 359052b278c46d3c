"""The digest of a batch covers what the model sees, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from datakit.loader.reading.digest import batch_digest


@dataclass(frozen=True)
class Rows:
    """A batch."""

    tokens: np.ndarray
    segments: np.ndarray
    loss_mask: np.ndarray


BATCH = Rows(np.arange(12).reshape(3, 4), np.array([[1, 1, 2, 0]] * 3), np.ones((3, 4), bool))


def test_tokens_in_padding_do_not_count() -> None:
    padded = BATCH.tokens.copy()
    padded[:, 3] = 99
    assert batch_digest(replace(BATCH, tokens=padded)) == batch_digest(BATCH)


def test_types_of_the_arrays_do_not_count() -> None:
    assert batch_digest(replace(BATCH, tokens=BATCH.tokens.astype(np.uint16))) == batch_digest(BATCH)


def test_tokens_documents_mask_and_order_count() -> None:
    changed = [
        replace(BATCH, tokens=BATCH.tokens + 1),
        replace(BATCH, segments=np.array([[1, 1, 1, 0]] * 3)),
        replace(BATCH, loss_mask=np.zeros((3, 4), bool)),
        Rows(BATCH.tokens[::-1], BATCH.segments, BATCH.loss_mask),
        Rows(BATCH.tokens.reshape(4, 3), BATCH.segments.reshape(4, 3), BATCH.loss_mask.reshape(4, 3)),
    ]
    assert len({batch_digest(batch) for batch in [BATCH, *changed]}) == 6
