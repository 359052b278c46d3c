"""A full shuffle reads single sequences only if the component does not fit in memory."""

from __future__ import annotations

from datakit.loader import Loader
from tests.support.loader.mixtures import watched_mixture


def reads(memory_blocks: int) -> tuple[float, float, list[int]]:
    """(reads, bytes read, first token of each sequence) of an epoch with memory for this many of the 64 blocks."""
    _, mixture = watched_mixture(memory_blocks, "full")
    with Loader(mixture) as loader:
        order = [token for batch in loader.iterate(0, 64) for token in batch.tokens[:, 0].tolist()]
        found = loader.metrics.snapshot()
    return found["reads"], found["bytes_read"], order


def test_full_shuffle_reads_single_sequences_beyond_memory() -> None:
    alone, together = reads(4), reads(65)
    assert alone[2] == together[2]
    assert sorted(alone[2]) == list(range(0, 256 * 64, 32))
    assert alone[:2] == (512, 512 * 32 * 4)
    assert together[:2] == (64, 64 * 256 * 4)
