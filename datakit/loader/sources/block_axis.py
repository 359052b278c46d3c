"""An axis of tokens in blocks: the unit of reading and of shuffling, whatever the sequence length.

Blocks have `block_tokens` tokens each; what is left at the end of the axis joins the last block if it is less than half
a block, and is a block of its own otherwise. So a length of 4,096 today and of 131,072 tomorrow cut the same blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True)
class BlockAxis:
    """Blocks 0..count-1 over `tokens` tokens."""

    tokens: int
    block_tokens: int

    @property
    def count(self) -> int:
        return max(1, (self.tokens + self.block_tokens // 2) // self.block_tokens)

    def range(self, block: int) -> tuple[int, int]:
        """The tokens start..stop-1 of a block."""
        start = block * self.block_tokens
        return start, self.tokens if block == self.count - 1 else start + self.block_tokens
