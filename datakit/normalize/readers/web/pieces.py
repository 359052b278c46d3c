"""Defines what the decompression of a web archive yields: pieces of its content, and damaged members between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Content = bytes | bytearray
View = bytes | memoryview  # of a part of a content, or a copy of it


class Piece(NamedTuple):
    """A stretch of an archive's content. stored: the offset in the stored file at which the member begins whose content
    this is; for a file that is not compressed, the offset of the stretch. first: True if the content of a member begins
    here. In a file that is not compressed, `first` is False.
    """

    data: Content
    stored: int
    first: bool


@dataclass(frozen=True)
class Damage:
    """A member that cannot be used. stored: the offset in the stored file at which it begins."""

    stored: int
    reason: str
