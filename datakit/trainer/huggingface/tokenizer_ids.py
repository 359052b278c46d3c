"""Compares two tokenizer.json files: which token each id stands for, and whether they cut texts in the same way.

A model learned its token ids with one tokenizer. If training continues on caches of another tokenizer, in which an id
stands for another token, nothing fails, but the model interprets that id wrongly. Files that differ only in layout, or
in tokens that were added at ids without a token, are compatible.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.errors import TokenizerError
from datakit.storage.json_data import decode

CUTTING = ("normalizer", "pre_tokenizer")  # with the model's merges, they decide how a text is cut into tokens


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]
    merges: Any = None


class TokenizerFile(msgspec.Struct):
    """The parts of a tokenizer.json that decide the ids of a text."""

    model: _Model
    added_tokens: list[_Added] = []
    normalizer: Any = None
    pre_tokenizer: Any = None

    @property
    def tokens(self) -> dict[int, str]:
        """The string of each id."""
        vocab = self.model.vocab
        pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], id) for id, entry in enumerate(vocab))
        return {id: token for token, id in pairs} | {added.id: added.content for added in self.added_tokens}

    @property
    def merges(self) -> list[tuple[str, ...]]:
        """The merges, each as a pair. Older files write a pair as one string with a space."""
        found = self.model.merges or []
        return [tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in found]


def read_tokenizer(data: bytes, place: str) -> TokenizerFile:
    """Parse a tokenizer.json. Raises TokenizerError for any other file."""
    try:
        return decode(data, TokenizerFile)
    except msgspec.DecodeError as error:
        raise TokenizerError(f"{place} is not a tokenizer.json that can be compared: {error}") from error


def compare_tokenizers(theirs: bytes, their_place: str, ours: bytes, our_place: str) -> tuple[str, ...]:
    """Compare the tokenizer that a model was trained with (`theirs`) with that of the caches (`ours`). Return warnings.
    Raises TokenizerError if an id stands for different tokens.
    """
    known, used = read_tokenizer(theirs, their_place), read_tokenizer(ours, our_place)
    known_tokens, used_tokens = known.tokens, used.tokens
    different = sorted(id for id in known_tokens.keys() & used_tokens.keys() if known_tokens[id] != used_tokens[id])
    if different:
        first = different[0]
        raise TokenizerError(
            f"{len(different):,} token ids mean something else in {our_place} than in {their_place}: id {first} is "
            f"{used_tokens[first]!r} instead of {known_tokens[first]!r}; make the caches with the model's tokenizer"
        )
    notes = []
    new = sorted(used_tokens.keys() - known_tokens.keys())
    if new:
        notes.append(
            f"warning: the model's tokenizer lacks {len(new):,} token ids of the caches' tokenizer, such as "
            f"{used_tokens[new[0]]!r} (id {new[0]}), so the model has not learned them"
        )
    cuts = [name for name in CUTTING if getattr(known, name) != getattr(used, name)]
    cuts += ["model.merges"] if known.merges != used.merges else []
    if cuts:
        notes.append(
            f"warning: {our_place} differs from {their_place} in {', '.join(cuts)}, so a text may be cut into other "
            "tokens than those that the model has learned"
        )
    return tuple(notes)
