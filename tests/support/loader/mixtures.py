"""Small mixtures and streams over sources in memory, for tests of the loader."""

from __future__ import annotations

from typing import Any

import numpy as np

from datakit.loader import Component, Mixture, Packing, Shuffle
from datakit.loader.mixture.stream import Stream
from datakit.loader.mixture.window import StreamSettings
from datakit.loader.sources.token_source import BlockAxis
from tests.support.loader.sources import WatchedSource, counting

EVEN = {"web": 1.0, "code": 1.0}
BLOCKS_OF_64 = Shuffle(block_tokens=64)


def two_components(**settings: Any) -> Mixture:
    """140 sequences of `a` at three quarters and 110 of `b` at one quarter, ten tokens each."""
    components = {"a": Component(counting([7] * 200)), "b": Component(counting([11] * 100))}
    usual = {"sequence_length": 10, "batch_size": 8, "block": 16}
    return Mixture(components, {"a": 0.75, "b": 0.25}, **{**usual, **settings})


def plain_and_packed(**settings: Any) -> Mixture:
    """A plain component `web` and a packed one `code`, in equal parts, in batches of 4 sequences of 10 tokens."""
    components = {
        "web": Component(counting([10] * 100), shuffle=BLOCKS_OF_64),
        "code": Component(counting([9] * 50), packing=Packing(), shuffle=BLOCKS_OF_64),
    }
    usual = {"components": components, "stages": EVEN, "sequence_length": 10, "batch_size": 4, "block": 8}
    return Mixture(**{**usual, **settings})


def watched_mixture(memory_blocks: int = 16, kind: str = "block") -> tuple[WatchedSource, Mixture]:
    """A watched source of 64 blocks of 256 tokens, in batches of one block; memory for `memory_blocks` blocks."""
    source = WatchedSource(np.arange(256 * 64, dtype=np.uint32))
    component = Component(source, shuffle=Shuffle(kind, block_tokens=256))
    memory = memory_blocks * 1024
    return source, Mixture({"x": component}, {"x": 1}, sequence_length=32, batch_size=8, memory_bytes=memory)


def stream_of(
    lengths: list[int],
    length: int,
    *,
    block_tokens: int = 64,
    window: int = 3,
    packing: Packing | None = None,
    seed: int = 0,
    shuffled: bool = True,
) -> Stream:
    """A stream of sequences of `length` over documents of these lengths."""
    source = counting(lengths)
    blocks = min(window, BlockAxis(source.tokens, block_tokens).count)
    return Stream(source, StreamSettings("x", seed, block_tokens, blocks, shuffled, packing), length)
