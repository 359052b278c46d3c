"""Decides how many blocks each component shuffles together, so that the current and next windows fit in memory.

A component that fits is kept in memory whole and read only once, for all epochs. The others share the remaining memory
equally: half of each share is for the current window, half for the next. The window sizes affect the order (more blocks
shuffle better), so they are computed from the mixture alone and saved in checkpoints. A resumed run is refused if a
different `memory_bytes` changes a window, unless the mixture sets the old `window_blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datakit.errors import LoaderError
from datakit.loader.mixture.config import Shuffle
from datakit.loader.sources.token_source import BlockAxis

IN_ORDER_WINDOW = 2  # blocks; nothing is shuffled, so this only sets the read-ahead


@dataclass(frozen=True)
class Claim:
    """A component's memory demand: its axis in blocks, the bytes per token, and its Shuffle."""

    axis: BlockAxis
    token_bytes: int
    shuffle: Shuffle

    @property
    def whole(self) -> int:
        return self.axis.tokens * self.token_bytes

    @property
    def pair(self) -> int:
        """Bytes of one block of the current window and one of the next window."""
        return 2 * self.axis.block_tokens * self.token_bytes


@dataclass(frozen=True)
class Grant:
    """A component's window."""

    blocks: int
    resident: bool  # blocks are kept in memory while the window is served; otherwise sequences are read separately
    bytes: int


def grant_windows(claims: Mapping[str, Claim], memory_bytes: int) -> dict[str, Grant]:
    """Grant first the windows that the mixture sets, then small components as a whole, then equal shares.

    Raises LoaderError if the windows exceed `memory_bytes`.
    """
    grants = {name: _fixed(claim) for name, claim in claims.items() if _is_fixed(claim)}
    left = memory_bytes - sum(grant.bytes for grant in grants.values())
    ascending = sorted((name for name in claims if name not in grants), key=lambda name: (claims[name].whole, name))
    for waiting, name in zip(range(len(ascending), 0, -1), ascending, strict=True):
        grants[name] = _share(claims[name], left // waiting)
        left -= grants[name].bytes
    if left < 0:
        raise LoaderError(
            f"memory_bytes is {memory_bytes:,}, but the windows of {', '.join(sorted(claims))} need "
            f"{memory_bytes - left:,}; raise it, or lower block_tokens or window_blocks"
        )
    return grants


def _is_fixed(claim: Claim) -> bool:
    return claim.shuffle.kind == "none" or claim.shuffle.window_blocks is not None


def _fixed(claim: Claim) -> Grant:
    blocks = min(claim.axis.count, claim.shuffle.window_blocks or IN_ORDER_WINDOW)
    return Grant(blocks, True, min(claim.whole, blocks * claim.pair))


def _share(claim: Claim, share: int) -> Grant:
    if claim.whole <= share or claim.axis.count == 1:
        return Grant(claim.axis.count, True, claim.whole)
    if claim.shuffle.kind == "full":
        return Grant(claim.axis.count, False, 0)
    blocks = min(claim.axis.count - 1, max(1, share // claim.pair))
    return Grant(blocks, True, blocks * claim.pair)
