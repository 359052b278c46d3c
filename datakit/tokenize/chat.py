"""Checks the messages of conversations, encodes each message as head, content and tail, and computes the loss mask.

The three parts of a message are encoded separately, so no token spans two of them, just as no token spans a head and
the content that a model generates after it. The mask is 1 on the content and tail of each message whose role is a
target ("assistant"), and 0 elsewhere. Heads and tails are those of the recipe's chat format, and every head contains a
special token (chat_format.py). Only known roles are allowed. The contents of messages are untrusted: if one contains
the string of a special token, that string is encoded as ordinary text, so a message cannot end its own turn. A message
without content (null, as in a tool call) keeps its place as an empty turn. Such a message is never a target, because it
would teach a model to answer with nothing. Like every document, a conversation needs a text, from which its id is
computed and which dedup compares. The transform `with_text` adds this text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.cache.lengths import starts_of
from datakit.engine.user_code import requires_text
from datakit.errors import ColumnError, InputError, TokenizerError
from datakit.tokenize.chat_format import ChatFrames

TRANSFORM_VERSION = 1
LONGEST_SHOWN = 20  # an error quotes a role of at most this many characters; a longer one may be a document's text


@dataclass(frozen=True)
class Conversations:
    """The messages of N conversations, in order. roles, contents: the role and the content ("" if null) of each
    message. silent: bool, True for each message whose content is null. turns: int64 [N], the number of messages in each
    conversation.
    """

    roles: list[str]
    contents: list[str]
    silent: np.ndarray
    turns: np.ndarray


def conversations(messages: pa.Array, documents: pa.Array, roles: Sequence[str], place: str) -> Conversations:
    """Return the conversations in a column of type list<struct<role, content, ...>>. documents: the conversations' ids.
    roles: the roles that are allowed. place: the column's name in error messages.

    Raises ColumnError if the column has another type, and InputError if a conversation has no messages or a message has
    no allowed role.
    """
    _check_type(messages.type, place)
    turns = pc.fill_null(pc.list_value_length(messages), 0).to_numpy().astype(np.int64)  # pyright: ignore
    flat = messages.flatten()
    role, content = (flat.field(name) for name in ("role", "content"))
    owners = np.repeat(np.arange(len(turns)), turns)
    missing = np.logical_or(*(column.is_null().to_numpy(zero_copy_only=False) for column in (flat, role)))
    for broken, what in ((np.flatnonzero(turns == 0), "has no messages"), (owners[missing], "has a message without")):
        if len(broken):
            end = " a role" if what.endswith("without") else ""
            raise InputError(
                f"{place}, document {documents[int(broken[0])]}: it {what}{end}; filter out such documents"
            )
    names = role.to_pylist()
    unknown = next((number for number, name in enumerate(names) if name not in roles), None)
    if unknown is not None:
        raise InputError(
            f"{place}, document {documents[int(owners[unknown])]}: {_shown(names[unknown])} is not one of the roles "
            f"that are safe with this tokenizer and chat format ({', '.join(roles)}); rename the role in a transform"
        )
    silent = content.is_null().to_numpy(zero_copy_only=False)
    return Conversations(names, [text or "" for text in content.to_pylist()], silent, turns)


def messages_without_content(messages: pa.Array) -> int:
    """Return the number of messages whose content is null."""
    return messages.flatten().field("content").null_count


def _check_type(kind: pa.DataType, place: str) -> None:
    fields = {entry.name: entry.type for entry in kind.value_type} if _is_list(kind) and _is_struct(kind) else {}
    if not {"role", "content"} <= fields.keys():
        raise ColumnError(f"{place}: messages are {kind}, not a list of structures with role and content")
    for name in ("role", "content"):
        if not (_is_string(fields[name]) or (name == "content" and pa.types.is_null(fields[name]))):
            raise ColumnError(
                f"{place}: the {name} of messages is {fields[name]}, not a string; convert it in a transform (if a "
                "message's content is a list of parts, join them)"
            )


def _shown(role: str) -> str:
    """Return a description of a role for an error message. A role that may be a document's text (because it is long or
    not an identifier) is not quoted.
    """
    if role.isidentifier() and role.isascii() and len(role) <= LONGEST_SHOWN:
        return f"role {role!r}"
    return f"a role of {len(role)} characters"


def encode_chat(
    batch: Conversations, frames: ChatFrames, content: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the token ids of all conversations, uint32 [T]; the number of tokens in each conversation, int64 [N]; and
    the loss mask, uint8 [T].

    `content` encodes the contents of messages, and returns what Encoder.encode_batch returns. Raises TokenizerError if
    `content` returns the id of one of the format's markers.
    """
    number_of = {role: number for number, role in enumerate(frames.roles)}
    heads = np.fromiter(map(number_of.__getitem__, batch.roles), np.int64, len(batch.roles))
    tails = heads + len(frames.roles)
    inner, inner_lengths = content(batch.contents)
    if np.isin(inner, frames.markers).any():
        raise TokenizerError(
            "the tokenizer encodes the string of a chat marker inside a message's content as the marker itself, so a "
            "message could imitate a turn; use a tokenizer whose model does not contain its special tokens"
        )
    lengths = np.stack([frames.lengths[heads], inner_lengths, frames.lengths[tails]], axis=1)
    part = np.repeat(np.tile([0, 1, 2], len(heads)), lengths.ravel())  # 0: head, 1: content, 2: tail
    ids = np.empty(len(part), np.uint32)
    ids[part == 1] = inner
    starts = starts_of(frames.lengths)
    for side, rows in ((0, heads), (2, tails)):
        ids[part == side] = frames.ids[_ranges(starts[rows], lengths[:, side])]
    message_lengths = lengths.sum(axis=1)
    target = frames.targets[heads] & ~batch.silent
    mask = (np.repeat(target, message_lengths) & (part > 0)).astype(np.uint8)
    return ids, np.diff(starts_of(message_lengths)[starts_of(batch.turns)]), mask


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the indices in the ranges that begin at `starts` and have these lengths, one range after another."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_struct(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind.value_type)


def _is_string(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


@requires_text("messages", "role", "content")
def with_text(records: pa.RecordBatch) -> pa.RecordBatch:
    """Add the column `text`, with one JSON line per message, for dedup to compare. Use this function as a source's
    `transform`.

    JSON records with a role or content that is not a string have already been quarantined. Raises ColumnError if the
    roles or contents in files of another kind are not strings.
    """
    messages = records.column("messages")
    if not pa.types.is_null(messages.type):
        _check_type(messages.type, "transform with_text")
    texts = ["\n".join(_lines(conversation or [])) for conversation in messages.to_pylist()]
    kept = [name for name in records.schema.names if name != "text"]
    return records.select(kept).append_column("text", pa.array(texts, pa.large_string()))


def _lines(conversation: list[dict[str, str | None] | None]) -> Iterator[str]:
    for turn in conversation:
        yield json.dumps([turn and turn["role"], turn and turn["content"]], ensure_ascii=False)
