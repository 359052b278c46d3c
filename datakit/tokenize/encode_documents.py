"""Encodes a partition's documents (texts, conversations or lists of tokens) as their source's format requires, and adds
the contract's tokens around each document. All three kinds become batches of encoded documents. A sample of the texts
and conversations is verified. Prebuilt tokens cannot be verified, because there is no reference to compare them with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from datakit.cache.contract import PARTS, Contract, frame, frame_mask
from datakit.cache.writer import Documents
from datakit.tokenize.chat import ChatFormat, chat_format, conversations, encode_chat
from datakit.tokenize.config import CHAT, TEXT, TOKENS, Config
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.long_texts import LongTexts
from datakit.tokenize.guarded_batches import PartitionGuard
from datakit.tokenize.make_contract import AnyTokenizer
from datakit.tokenize.prebuilt import prebuilt_mask, prebuilt_tokens, unframed
from datakit.tokenize.reference_check import Verification
from datakit.tokenize.text_batches import TextBatch, text_batches

EncodeBatch = Callable[[TextBatch, "Verification | None"], Documents]
CHAT_STRIDE = 300  # in a source of conversations, one in this many messages is verified


class PartitionToEncode(msgspec.Struct, frozen=True):
    """A task's partition. dataset: the URL of its file. name: its path in the dataset. shard: the new shard's path."""

    dataset: str
    name: str
    shard: str
    source: str
    rows: int
    text_bytes: int


@dataclass(frozen=True)
class Encoding:
    """The encoders of one task.

    texts: encodes documents that are texts. trusted: encodes the heads and tails of messages. contents: encodes the
    contents of messages. reference, contents_reference: the encoders with which `texts` and `contents` are compared.
    """

    contract: Contract
    texts: LongTexts
    trusted: Encoder
    contents: LongTexts
    reference: Encoder | None
    contents_reference: Encoder | None

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, encoder: str, special_strings: str, contract: Contract) -> Encoding:
        """Set up the encoders of a loaded tokenizer in the way that the contract requires."""
        text, trusted, content = (tokenizer.encoder(encoder, policy) for policy in (special_strings, "keep", "text"))
        if contract.long_texts == PARTS:
            texts, contents = tokenizer.long_texts(text, special_strings), tokenizer.long_texts(content, "text")
        else:
            texts, contents = (LongTexts(one, None, None, contract.long_texts) for one in (text, content))
        checked = encoder != "tokenizers"
        references = (tokenizer.reference_encoder(policy) if checked else None for policy in (special_strings, "text"))
        return cls(contract, texts, trusted, contents, *references)

    def verification(self, rows: int, text_bytes: int, place: str) -> Verification | None:
        """Return the verification of one partition, or None if there is no reference to compare with."""
        if self.reference is None:
            return None
        return Verification(self.reference, self.texts.encoder, rows, text_bytes, place)


def encoded_documents(
    partition: PartitionToEncode, config: Config, encoding: Encoding, check: Verification | None, guard: PartitionGuard
) -> Iterator[Documents]:
    """Encode a partition's documents, each batch under `guard`, and verify a sample of them with `check`."""
    columns, encode = _encoder_for(config.formats.get(partition.source, TEXT), config, encoding, partition.dataset)
    for batch in guard.batches(text_batches(partition.dataset, columns), lambda one: encode(one, None)):
        yield encode(batch, check)


def _encoder_for(kind: str, config: Config, encoding: Encoding, place: str) -> tuple[list[str], EncodeBatch]:
    """Return the columns that documents of this kind need, and the function that encodes a batch of such documents."""
    if kind == CHAT:
        form = chat_format(config.chat_format)
        return [config.messages], lambda batch, check: _chat(batch, form, encoding, check, place)
    if kind == TOKENS:
        columns = [config.tokens, *([config.loss_mask] if config.loss_mask else [])]
        return columns, lambda batch, check: _prebuilt(batch, encoding.contract, place)
    return [], lambda batch, check: _text(batch, encoding, check)


def _text(batch: TextBatch, encoding: Encoding, check: Verification | None) -> Documents:
    ids, lengths = encoding.texts.encode_documents(batch)
    if check is not None:
        check.check(batch, ids, lengths)
    return Documents(batch.ids, *frame(ids, lengths, encoding.contract))


def _chat(batch: TextBatch, form: ChatFormat, encoding: Encoding, check: Verification | None, place: str) -> Documents:
    chats = conversations(batch.columns[0], place)
    ids, lengths, mask = encode_chat(chats, form, encoding.trusted, encoding.contents.encode_batch)
    if check is not None and encoding.contents_reference is not None:
        chosen = range(0, len(chats.contents), CHAT_STRIDE)
        texts = [chats.contents[index] for index in chosen]
        documents = np.repeat(np.arange(len(chats.turns)), chats.turns)
        names = [batch.ids[int(documents[index])].as_py() for index in chosen]
        other = Verification(encoding.contents_reference, encoding.contents.encoder, len(texts), 0, place)
        other.compare(names, texts, *encoding.contents.encode_batch(texts))
        check.documents, check.text_bytes = check.documents + other.documents, check.text_bytes + other.text_bytes
    tokens, framed = frame(ids, lengths, encoding.contract)
    return Documents(batch.ids, tokens, framed, frame_mask(mask, lengths, encoding.contract))


def _prebuilt(batch: TextBatch, contract: Contract, place: str) -> Documents:
    ids, lengths = prebuilt_tokens(batch.columns[0], contract, place)
    mask = prebuilt_mask(batch.columns[1], lengths, place) if len(batch.columns) > 1 else None
    kept, left = unframed(ids, lengths, contract)
    tokens, framed = frame(ids[kept], left, contract)
    return Documents(batch.ids, tokens, framed, None if mask is None else frame_mask(mask[kept], left, contract))
