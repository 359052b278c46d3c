"""Defines what every export of a token cache shares: the choice of documents, the refusals, and the check at the end.

Every exporter hashes the documents that it hands to its format. When the export is complete, its files are read again,
from the bytes alone, and what is found there must have the same numbers of documents and tokens and the same hash. The
numbers must also be those in the cache's manifest. The order of documents, their boundaries and their tokens are part
of the hash; where a format has them, so are the ids.

Cost of the check: one read of the export. Memory: one block of documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from datakit.cache.reader import Cache, Shard
from datakit.errors import CorruptError, UsageError, suggestion

Progress = Callable[[int, int, str], None]  # called with what is done, the total and a noun


def silent(done: int, total: int, what: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Exported:
    """Summary of an export: the files or the directory that a reader opens, the numbers of sequences (documents with
    tokens, unless the format also holds empty ones) and tokens, and the number of empty documents left out.
    """

    places: tuple[str, ...]
    sequences: int
    tokens: int
    empty: int


@dataclass(frozen=True)
class Choice:
    """The shards to export, which follow one another, with their first and last row. name: for messages."""

    cache: Cache
    shards: Sequence[Shard]

    @property
    def rows(self) -> tuple[int, int]:
        """The rows of the cache that are exported, as [start, stop)."""
        return self.shards[0].row_start, self.shards[-1].row_start + self.shards[-1].rows

    @property
    def documents(self) -> int:
        """The number of documents, according to the manifest."""
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        """The number of tokens, according to the manifest."""
        return sum(shard.tokens for shard in self.shards)


def choose(cache: Cache, source: str | None) -> Choice:
    """Return the shards of a source or a document bucket, or all shards. Raises UsageError for an unknown name, and for
    a cache without documents.
    """
    chosen = cache.shards_of(source)
    if not chosen:
        raise UsageError(f"{cache.directory} has no source {source!r}; {suggestion(source or '', cache.part_names())}")
    return Choice(cache, chosen)


def refuse_loss_masks(choice: Choice, format_name: str, drop_loss_mask: bool) -> None:
    """Raise UsageError if shards have loss masks, which the format cannot hold, unless they may be dropped."""
    details = choice.cache.details.shards
    masked = sorted({shard.source for shard in choice.shards if details[shard.index].loss_mask})
    if masked and not drop_loss_mask:
        raise UsageError(
            f"{choice.cache.directory}: the {format_name} format cannot store the loss masks of {', '.join(masked)}; "
            "export another source, or add --drop-loss-mask to export all tokens as targets"
        )


class ContentDigest:
    """Counts and hashes documents in order. Tokens are hashed as uint32 and lengths as uint64, whatever types a format
    has for them.
    """

    def __init__(self) -> None:
        self.documents = self.tokens = 0
        self._tokens, self._lengths, self._ids = xxhash.xxh3_128(), xxhash.xxh3_128(), xxhash.xxh3_128()

    def add(self, tokens: np.ndarray, lengths: np.ndarray, ids: bytes = b"") -> None:
        """Add documents: their tokens end to end, their lengths, and their ids end to end."""
        self.add_tokens(tokens)
        self.add_lengths(lengths)
        self._ids.update(ids)

    def add_tokens(self, tokens: np.ndarray) -> None:
        """Add tokens of one or more documents."""
        self.tokens += len(tokens)
        self._tokens.update(np.ascontiguousarray(tokens, "<u4").data)

    def add_lengths(self, lengths: np.ndarray) -> None:
        """Add the lengths of documents."""
        self.documents += len(lengths)
        self._lengths.update(np.ascontiguousarray(lengths, "<u8").data)

    @property
    def value(self) -> tuple[int, int, str, str, str]:
        """The counts and hashes; equal for equal documents in the same order."""
        hashes = (self._tokens.hexdigest(), self._lengths.hexdigest(), self._ids.hexdigest())
        return self.documents, self.tokens, *hashes


def require_equal(place: str, sent: ContentDigest, found: ContentDigest, choice: Choice, empty: int) -> None:
    """Raise CorruptError unless the export holds what was sent, and what was sent is what the cache's manifest states.
    empty: the number of empty documents that were left out.
    """
    if (sent.documents + empty, sent.tokens) != (choice.documents, choice.tokens):
        raise CorruptError(
            f"{choice.cache.directory}: {sent.documents + empty} documents with {sent.tokens} tokens were read, but "
            f"its manifest states {choice.documents} with {choice.tokens}; run `datakit validate`"
        )
    if sent.value != found.value:
        raise CorruptError(
            f"{place} holds {found.documents} documents with {found.tokens} tokens that differ from the "
            f"{sent.documents} with {sent.tokens} that were written; remove it and export again"
        )
