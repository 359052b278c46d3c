"""Builds the tables with which the kernels encode, from a tokenizer.json, and decides which tokenizers they support.

Supported are byte-level BPE tokenizers with the regular expression of GPT-2 or one of the cl100k kind, with or without
NFC, whose added tokens do not depend on what stands around them: the tokenizers of GPT-2, GPT-NeoX, OLMo, Pythia,
Llama 3, Qwen 2 and 3 and many others. For any other tokenizer, `model_of` returns the reason.

Cost: 0.1 to 0.3 s of CPU time for 50,000 to 150,000 tokens, and 5 to 25 MB of memory, which tasks share.
"""

from __future__ import annotations

import os
import threading
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from datakit.tokenize.encoders import word_models
from datakit.tokenize.encoders.added_tokens import added_by_string, added_tokens
from datakit.tokenize.encoders.bpe import word_ends
from datakit.tokenize.encoders.bpe.added_matches import AddedTokens, added_tokens_table, is_searchable
from datakit.tokenize.encoders.bpe.batch import Batch, output
from datakit.tokenize.encoders.bpe.character_tables import character_classes
from datakit.tokenize.encoders.bpe.encode_kernel import ModelAddresses
from datakit.tokenize.encoders.bpe.memory_access import address_of
from datakit.tokenize.encoders.bpe.merge_table import NO_RANK, TOKEN_BITS, Merges, merges_table
from datakit.tokenize.encoders.bpe.merges import Workspace
from datakit.tokenize.encoders.bpe.whole_words import WholeWords
from datakit.tokenize.encoders.bpe.word_cache import WordCache
from datakit.tokenize.encoders.disagreements import disputed_added_tokens
from datakit.tokenize.encoders.safe_cuts import family_of, splitting_expression, steps_of

DIGITS = {r"|\p{N}{1,3}|": 3, r"|\p{N}|": 1}  # in an expression of the cl100k kind; otherwise, any number
NFC = "NFC"
NO_TOKENS = added_tokens_table({})


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The V entries of a vocabulary that can be words, the highest id first. data: uint8, their bytes. offsets: int64
    [V + 1], where each begins. ids: uint64 [V].
    """

    data: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray

    def words(self, numbers: np.ndarray) -> list[tuple[bytes, int]]:
        """Return the bytes and the ids of some entries."""
        starts, stops = self.offsets[numbers].tolist(), self.offsets[numbers + 1].tolist()
        pieces = [self.data[start:stop].tobytes() for start, stop in zip(starts, stops, strict=True)]
        return list(zip(pieces, self.ids[numbers].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class BpeModel:
    """The tables of a tokenizer. family, digits: how it splits texts (word_ends.py). normalizes: True if it brings
    texts into NFC. words: those that become one token although no merges make it. added: the added tokens, by the
    setting `special_strings`. raw, normalized: those of them that are matched before and after normalization.
    """

    family: np.uint64
    digits: np.uint64
    normalizes: bool
    vocabulary: Vocabulary
    merges: Merges
    words: WholeWords
    added: Mapping[str, AddedTokens]
    raw: Mapping[str, dict[str, int | None]]
    normalized: Mapping[str, AddedTokens]

    @cached_property
    def _caches(self) -> dict[int, WordCache]:
        return {}

    @property
    def cache(self) -> WordCache:
        """This process's cache of words, which begins as a copy of that of the process from which it was forked. To
        write to the inherited one would make the system copy it page by page, which is slower.
        """
        process = os.getpid()
        if process not in self._caches:
            inherited = next(reversed(self._caches.values()), None)
            self._caches[process] = WordCache.new() if inherited is None else inherited.copy()
        return self._caches[process]

    @cached_property
    def lock(self) -> threading.RLock:
        """The lock that a thread holds while it encodes, because the cache, the workspace and buffers are shared."""
        return threading.RLock()

    @cached_property
    def space(self) -> Workspace:
        return Workspace.new()

    def addresses(self, added: AddedTokens, family: np.uint64 | None = None) -> ModelAddresses:
        """Return the addresses of the tables. They are valid as long as this model is. added: the tokens to look for.
        family: how to split texts, if not as the tokenizer does.
        """
        return ModelAddresses(
            self.family if family is None else family,
            self.digits,
            np.uint64(address_of(character_classes())),
            added.addresses(),
            self.merges.addresses(),
            np.uint64(len(self.words.offsets) > 1),
            self.words.addresses(),
            self.cache.addresses(),
            self.space.addresses(),
        )

    def learn_vocabulary(self) -> np.ndarray:
        """Put the entries of the vocabulary into the cache, as words, the most frequent ones last. Return bool [V],
        which of the entries do not become one token, their own.
        """
        batch = Batch.of(self.vocabulary.data, self.vocabulary.offsets, output())
        ids = batch.encode(self.addresses(NO_TOKENS, word_ends.WHOLE))
        first = ids[np.cumsum(batch.lengths) - batch.lengths]
        return (batch.lengths != 1) | (first != self.vocabulary.ids)


def model_of(definition: dict[str, Any]) -> tuple[BpeModel | None, str]:
    """Return (model, "") for the content of a tokenizer.json, or (None, reason) if the kernels do not support it."""
    family, reason = family_of(definition.get("pre_tokenizer"))
    reason = reason or word_models.refusal(definition) or _refusal(definition)
    if family is None or reason:
        return None, reason
    found = _model(definition, family)
    if definition["model"].get("ignore_merges"):
        other = np.flatnonzero(found.learn_vocabulary())
        found = replace(found, words=WholeWords.of(found.vocabulary.words(other)))  # with a cache of its own
    return found, ""


def _model(definition: dict[str, Any], family: str) -> BpeModel:
    expression = splitting_expression(definition)
    digits = next((most for part, most in DIGITS.items() if part in expression), int(word_ends.ANY_NUMBER))
    splits = word_ends.CL100K if family == "cl100k" else word_ends.GPT2
    normalizes = bool(steps_of(definition.get("normalizer"), "normalizers"))
    vocabulary, merges = _vocabulary(definition["model"]["vocab"]), _merges(definition["model"])
    both = {policy: added_by_string(added_tokens(definition), policy == "keep") for policy in ("keep", "text")}
    return BpeModel(
        splits,
        np.uint64(digits),
        normalizes,
        vocabulary,
        merges,
        WholeWords.of([]),
        {policy: added_tokens_table({**raw, **normalized}) for policy, (raw, normalized) in both.items()},
        {policy: raw for policy, (raw, _) in both.items()},
        {policy: added_tokens_table(normalized) for policy, (_, normalized) in both.items()},
    )


def _refusal(definition: dict[str, Any]) -> str:
    """Return the reason why a byte-level BPE tokenizer is not supported, or "" if it is."""
    steps = steps_of(definition.get("normalizer"), "normalizers")
    if any(step.get("type") != NFC for step in steps):
        return f"its normalizer is not {NFC}"
    tokens = [token["content"] for token in added_tokens(definition) if token["content"]]
    if not is_searchable(tokens):
        return "it has too many kinds of added tokens, or one of a single byte"
    if disputed_added_tokens(definition):
        return "the matches of its added tokens depend on each other"
    if steps and any(unicodedata.normalize(NFC, token) != token for token in tokens):
        return f"{NFC} changes an added token"
    model = definition["model"]
    if len(model["merges"]) >= int(NO_RANK) or max(model["vocab"].values()) >> TOKEN_BITS:
        return f"it has {1 << TOKEN_BITS:,} merges or more, or an id that high"
    return ""


def _pairs(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of strings that can be merged, by rank."""
    # The reference takes a string that begins so for a comment.
    listed = (merge for merge in model["merges"] if not (isinstance(merge, str) and merge.startswith("#version")))
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in listed)
    return [(left, right) for left, right in merges]


def _merges(model: dict[str, Any]) -> Merges:
    vocabulary, pairs = model["vocab"], _pairs(model)
    both = np.array([(vocabulary[left], vocabulary[right]) for left, right in pairs], np.uint64).reshape(-1, 2)
    merged = np.array([vocabulary[left + right] for left, right in pairs], np.uint32)
    # Bytes that do not occur in UTF-8 may have no token.
    tokens = np.array([vocabulary.get(character, 0) for character in word_models.byte_characters()], np.uint32)
    return merges_table(both, merged, tokens)


def _vocabulary(vocabulary: dict[str, int]) -> Vocabulary:
    """Return the entries that can be words: those that are not empty and have only characters that stand for bytes."""
    characters = word_models.byte_characters()
    known = frozenset(characters)
    strange = {entry for entry in vocabulary if not entry}
    if not known.issuperset("".join(vocabulary)):
        strange |= {entry for entry in vocabulary if not known.issuperset(entry)}
    entries = sorted(vocabulary.keys() - strange if strange else vocabulary, key=vocabulary.__getitem__, reverse=True)
    values = {ord(character): byte for byte, character in enumerate(characters)}
    data = "".join(entries).translate(values).encode("latin-1")
    offsets = np.cumsum([0, *map(len, entries)])
    ids = np.array([vocabulary[entry] for entry in entries], np.uint64)
    return Vocabulary(np.frombuffer(data or b"\0", np.uint8), offsets, ids)
