"""Encodes a partition's documents (texts, conversations or lists of tokens) as their source's format requires, and adds
the contract's special tokens around each document. All three kinds become batches of encoded documents. For a sample of
the texts and conversations, the ids are compared with those of a reference encoder. Lists of tokens cannot be verified,
because there is nothing with which they could be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from datakit.cache.contract import PARTS, Contract, frame, frame_mask
from datakit.cache.writer import Documents
from datakit.errors import ColumnError
from datakit.storage.parquet import open_shard
from datakit.storage.selection.buckets import Members
from datakit.tokenize.chat import conversations, encode_chat, messages_without_content
from datakit.tokenize.chat_format import ChatFrames, chat_format, chat_frames
from datakit.tokenize.config import CHAT, TEXT, TOKENS, Config
from datakit.tokenize.document_ranges import WHOLE, Part
from datakit.tokenize.encoders.base import Encoder, ReferenceEncoder
from datakit.tokenize.encoders.long_texts import LongTexts
from datakit.tokenize.encoders.tokenizer import Tokenizer
from datakit.tokenize.guarded_batches import PartitionGuard
from datakit.tokenize.make_contract import AnyTokenizer, special_ids
from datakit.tokenize.prebuilt import framed_mask, prebuilt_mask, prebuilt_tokens, unframed
from datakit.tokenize.reference_check import Verification
from datakit.tokenize.split_check import SplitVerification
from datakit.tokenize.templates.encode_chats import EncodedChats, TemplateEncoder
from datakit.tokenize.text_batches import TextBatch, text_batches

WITHOUT_CONTENT = "tokenize/messages_without_content"
WITHOUT_TARGETS = "tokenize/conversations_without_targets"
TOOLS = "tools"  # the column of tools that a chat template gets if a source has it and the recipe names no other
CHAT_STRIDE = 300  # in a source of conversations, one in this many messages is verified
RENDERED_STRIDE = 64  # one in this many conversations that a template renders is verified


@dataclass(frozen=True)
class Encoded:
    """The encoded documents of a batch. lost: the reason for each row of the batch that could not be encoded.
    counters: what to count.
    """

    documents: Documents
    lost: Mapping[int, str] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


EncodeBatch = Callable[[TextBatch, "Verification | None"], Encoded]


class PartitionToEncode(msgspec.Struct, frozen=True):
    """One partition that a task encodes. url: the URL of the partition's file. leaving: the URL of the list of the rows
    that leave; None if all stay. name: the file's path relative to the directory of its step. shard: the path, in the
    cache, of the shard to write. rows: the number of documents to encode. text_bytes: the bytes of text in the file or,
    for a bucket, about those of its documents. file_bytes: the bytes of text in the file, which bound the text that a
    task holds, because a few documents of a bucket may have most of it. edits: the URL of the list of edits of the
    texts; None if there are none. bucket, members: the document bucket that is encoded, and its documents; None stands
    for all documents that stay.
    """

    url: str
    leaving: str | None
    name: str
    shard: str
    source: str
    rows: int
    text_bytes: int
    file_bytes: int
    edits: str | None = None
    bucket: str | None = None
    members: Members | None = None


@dataclass(frozen=True)
class Encoding:
    """The encoders that one task uses.

    texts: the encoder of documents that are texts. contents: the encoder of the contents of messages. frames: the heads
    and tails of messages; None if no source holds conversations, or if a template renders them. chats: the encoder of
    conversations that a template renders, if there are any. reference, contents_reference: the encoders with which
    `texts` and `contents` are compared; None for a custom tokenizer.
    """

    contract: Contract
    texts: LongTexts
    contents: LongTexts
    frames: ChatFrames | None
    reference: Encoder | None
    contents_reference: Encoder | None
    chats: TemplateEncoder | None = None

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, encoder: str, config: Config, contract: Contract) -> Encoding:
        """Return the encoders of a loaded tokenizer, set up as the contract requires.

        Raises TokenizerError if a source holds conversations and the chat format is not safe with this tokenizer.
        """
        special_strings = config.special_strings
        text, trusted, content = (tokenizer.encoder(encoder, policy) for policy in (special_strings, "keep", "text"))
        frames = None
        # Done in every task, even one without conversations, so that the first task refuses an unsafe format.
        if CHAT in config.formats.values() and not config.renders_templates:
            frames = chat_frames(chat_format(config.chat_format), trusted, special_ids(tokenizer))
        if contract.long_texts == PARTS:
            policies = ((text, special_strings), (content, "text"), (trusted, "keep"))
            texts, contents, rendered = (tokenizer.long_texts(*policy) for policy in policies)
        else:
            every = (text, content, trusted)
            texts, contents, rendered = (LongTexts(one, None, None, contract.long_texts) for one in every)
        # Even if the encoder is the reference itself, documents that are encoded in parts must be checked.
        reference = tokenizer.reference_encoder(special_strings)
        chats = None
        if contract.chat_template is not None and isinstance(tokenizer, Tokenizer):
            chats = TemplateEncoder.of(contract.chat_template, tokenizer, rendered, contents)
        return cls(contract, texts, contents, frames, reference, tokenizer.reference_encoder("text"), chats)

    def close(self) -> None:
        """End the process that renders conversations, if there is one."""
        if self.chats is not None:
            self.chats.close()

    def verification(self, rows: int, text_bytes: int, place: str) -> Verification | None:
        """Return the verification of one partition, or None if there is no reference encoder."""
        if self.reference is None:
            return None
        split = SplitVerification(self.reference, self.texts, place, text_bytes)
        return Verification(self.reference, self.texts.encoder, rows, text_bytes, place, split)


def encoded_documents(
    partition: PartitionToEncode,
    config: Config,
    encoding: Encoding,
    check: Verification | None,
    guard: PartitionGuard,
    *,
    counters: Counter[str],
    part: Part = WHOLE,
) -> Iterator[Documents]:
    """Encode the documents that stay in a partition, or in a part of it, and yield them in batches, without those that
    `guard` leaves out. `check` verifies a sample. A conversation that a template cannot render is given to `guard`.

    The numbers of messages without content and of conversations without targets are added to `counters`.
    """
    kind = config.formats.get(partition.source, TEXT)
    columns, encode = _encoder_for(kind, config, encoding, partition.url)
    batches = text_batches(partition.url, columns, partition.leaving, part, partition.edits, members=partition.members)
    for batch in guard.batches(batches, lambda one: encode(one, None)):
        encoded = encode(batch, check)
        guard.lose(batch, encoded.lost)
        counters.update(encoded.counters)
        yield encoded.documents


def _encoder_for(kind: str, config: Config, encoding: Encoding, place: str) -> tuple[list[str], EncodeBatch]:
    """Return the columns that documents of this kind need, and the function that encodes a batch of such documents."""
    frames, chats = encoding.frames, encoding.chats
    if kind == CHAT and chats is not None:
        columns = [config.messages, *_tools_column(config, place)]
        return columns, lambda batch, check: _rendered(batch, chats, encoding, check, place)
    if kind == CHAT and frames is not None:
        return [config.messages], lambda batch, check: _chat(batch, frames, encoding, check, place)
    if kind == TOKENS:
        columns = [config.tokens, *([config.loss_mask] if config.loss_mask else [])]
        return columns, lambda batch, check: _prebuilt(batch, encoding.contract, place)
    return [], lambda batch, check: _text(batch, encoding, check)


def _tools_column(config: Config, place: str) -> list[str]:
    """Return a list of the column of tools, if there is one. Raises ColumnError if the recipe names one that the file
    lacks.
    """
    with open_shard(place) as shard:
        there = (config.tools or TOOLS) in shard.schema_arrow.names
    if config.tools is not None and not there:
        raise ColumnError(f"{place}: there is no column {config.tools!r}, which tokenize.tools names")
    return [config.tools or TOOLS] if there else []


def _text(batch: TextBatch, encoding: Encoding, check: Verification | None) -> Encoded:
    ids, lengths, cut = encoding.texts.encode_documents(batch)
    if check is not None:
        check.check(batch, ids, lengths, cut)
    return Encoded(Documents(batch.ids, *frame(ids, lengths, encoding.contract)))


def _chat(batch: TextBatch, frames: ChatFrames, encoding: Encoding, check: Verification | None, place: str) -> Encoded:
    chats = conversations(batch.columns[0], batch.ids, frames.roles, place)
    ids, lengths, mask = encode_chat(chats, frames, encoding.contents.encode_batch)
    if check is not None and encoding.contents_reference is not None:
        chosen = range(0, len(chats.contents), CHAT_STRIDE)
        texts = [chats.contents[index] for index in chosen]
        documents = np.repeat(np.arange(len(chats.turns)), chats.turns)
        names = [batch.ids[int(documents[index])].as_py() for index in chosen]
        other = Verification(encoding.contents_reference, encoding.contents.encoder, len(texts), 0, place)
        other.compare(names, texts, *encoding.contents.encode_batch(texts))
        check.documents, check.text_bytes = check.documents + other.documents, check.text_bytes + other.text_bytes
    tokens, framed = frame(ids, lengths, encoding.contract)
    silent = messages_without_content(batch.columns[0])
    counters = {WITHOUT_CONTENT: silent} if silent else {}
    documents = Documents(batch.ids, tokens, framed, frame_mask(mask, lengths, encoding.contract))
    return Encoded(documents, counters=counters)


def _rendered(
    batch: TextBatch, chats: TemplateEncoder, encoding: Encoding, check: Verification | None, place: str
) -> Encoded:
    """Encode conversations that a template renders. The contract's tokens are added unless the template writes them."""
    messages, *tools = batch.columns
    found = chats.encode(messages, tools[0] if tools else None, place)
    ids = batch.ids.take(pa.array(found.rows))
    if check is not None:
        _verify_rendered(found, ids, chats, check, place)
    contract = encoding.contract
    kept, left = unframed(found.ids, found.lengths, contract)
    tokens, framed = frame(found.ids[kept], left, contract)
    mask = framed_mask(found.mask, found.ids, found.lengths, contract)
    owners = np.repeat(np.arange(len(found.lengths)), found.lengths)
    idle = len(found.lengths) - len(np.unique(owners[found.mask > 0]))
    return Encoded(Documents(ids, tokens, framed, mask), found.lost, {WITHOUT_TARGETS: idle} if idle else {})


def _verify_rendered(
    found: EncodedChats, ids: pa.Array, chats: TemplateEncoder, check: Verification, place: str
) -> None:
    chosen = np.flatnonzero(found.ordinary)[::RENDERED_STRIDE].tolist()
    texts, ends = [found.texts[number] for number in chosen], np.cumsum(found.lengths)
    parts = [found.ids[ends[number] - found.lengths[number] : ends[number]] for number in chosen]
    reference = ReferenceEncoder(chats.reference)
    other = Verification(reference, chats.texts.encoder, len(texts), 0, place)
    names = [ids[number].as_py() for number in chosen]
    other.compare(names, texts, np.concatenate([np.empty(0, np.uint32), *parts]), found.lengths[chosen])
    check.documents, check.text_bytes = check.documents + other.documents, check.text_bytes + other.text_bytes


def _prebuilt(batch: TextBatch, contract: Contract, place: str) -> Encoded:
    ids, lengths = prebuilt_tokens(batch.columns[0], contract, place)
    mask = prebuilt_mask(batch.columns[1], lengths, place) if len(batch.columns) > 1 else None
    kept, left = unframed(ids, lengths, contract)
    tokens, framed = frame(ids[kept], left, contract)
    made = None if mask is None else framed_mask(mask, ids, lengths, contract)
    return Encoded(Documents(batch.ids, tokens, framed, made))
