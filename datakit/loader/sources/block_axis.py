"""Divides an axis of tokens into blocks, the unit of reading and shuffling at any sequence length.

Blocks have `block_tokens` tokens. A remainder of less than half a block joins the last block; a larger one is a block.
Blocks do not depend on the sequence length, so 4,096 now and 131,072 later cut the same blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_TOKENS = 1 << 20  # 2 to 4 MB a read; 256 sequences of 4,096 tokens


@dataclass(frozen=True)
class BlockAxis:
    """Blocks 0..count-1 of an axis of `tokens` tokens."""

    tokens: int
    block_tokens: int

    @property
    def count(self) -> int:
        return max(1, (self.tokens + self.block_tokens // 2) // self.block_tokens)

    def range(self, block: int) -> tuple[int, int]:
        """(start, stop) of a block: it has tokens start..stop-1."""
        start = block * self.block_tokens
        return start, self.tokens if block == self.count - 1 else start + self.block_tokens
