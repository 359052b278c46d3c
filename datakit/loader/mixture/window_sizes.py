"""Divides `memory_bytes` among components: decides how many blocks form a window and which components stay in memory.

A component that fits in an equal share of the memory is kept there as a whole and read only once, for all epochs. The
other components with a block shuffle share the remaining memory equally: half of each share is for the current window,
half for the next. The window sizes affect the order (the more blocks in a window, the better the shuffle), so they are
computed from the mixture alone and saved in checkpoints. If a different `memory_bytes` changes a window size, the run
cannot be resumed unless the mixture sets `window_blocks` to the old size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datakit.errors import LoaderError
from datakit.loader.mixture.config import Shuffle
from datakit.loader.sources.token_source import BlockAxis

IN_ORDER_WINDOW = 2  # blocks per window if nothing is shuffled; this only affects the read-ahead


@dataclass(frozen=True)
class Claim:
    """The facts that determine how much memory a component needs: its blocks, its bytes per token, and its Shuffle."""

    axis: BlockAxis
    token_bytes: int
    shuffle: Shuffle

    @property
    def whole(self) -> int:
        return self.axis.tokens * self.token_bytes

    @property
    def pair(self) -> int:
        """Size in bytes of two blocks: one of the current window and one of the next window."""
        return 2 * self.axis.block_tokens * self.token_bytes


@dataclass(frozen=True)
class Grant:
    """The window size granted to a component, and the memory set aside for it."""

    blocks: int
    resident: bool  # True if blocks stay in memory while their window is served; False if sequences are read separately
    bytes: int


def grant_windows(claims: Mapping[str, Claim], memory_bytes: int) -> dict[str, Grant]:
    """Return each component's grant. A component whose window size is not set in the mixture is kept in memory as a
    whole if it is small; otherwise, it gets an equal share of the remaining memory. Raises LoaderError if the windows
    exceed `memory_bytes`.
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
            f"{memory_bytes - left:,}; raise memory_bytes, or lower block_tokens or window_blocks"
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
