"""Renders conversations: parses chat formats, encodes each message as head, content and tail, and makes the loss mask.

The three parts of a message are encoded separately, so no token spans two of them, just as none does when a model
continues from a head. The mask is 1 on the content and tail of messages of the target roles ("assistant"), and 0
elsewhere. Heads and tails come from the recipe and may contain special tokens. Contents are untrusted: a special
token's string inside a content is encoded as ordinary text, so a message cannot end its own turn. Like every document,
a conversation needs a text, from which its id is computed and which dedup compares. The transform `with_text` makes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.cache.lengths import starts_of
from datakit.errors import CorruptError, RecipeError, suggestion
from datakit.tokenize.encoders.base import Encoder

FORMATS = {  # name: (head, tail)
    "simple": ("<|{role}|>\n", "\n"),
    "chatml": ("<|im_start|>{role}\n", "<|im_end|>\n"),
}
TARGETS = ("assistant",)
CONTENT = "{content}"
TRANSFORM_VERSION = 1


@dataclass(frozen=True)
class ChatFormat:
    """The strings around a message's content ({role} stands for the message's role), and the roles that are targets."""

    head: str
    tail: str
    targets: tuple[str, ...] = TARGETS


def chat_format(form: str) -> ChatFormat:
    """Parse a format, which is a name or a string such as "[{role}] {content}\\n". Raises RecipeError."""
    if form in FORMATS:
        return ChatFormat(*FORMATS[form])
    if form.count(CONTENT) != 1:
        raise RecipeError(
            f"tokenize.chat_format {form!r} is neither a known name nor a string that contains {CONTENT} once; "
            f"{suggestion(form, FORMATS)}"
        )
    head, _, tail = form.partition(CONTENT)
    return ChatFormat(head, tail)


@dataclass(frozen=True)
class Conversations:
    """N conversations. roles, contents: one entry per message. turns: int64 [N], the number of messages in each."""

    roles: list[str]
    contents: list[str]
    turns: np.ndarray


def conversations(messages: pa.Array, place: str) -> Conversations:
    """Convert a list<struct<role, content, ...>> column. Raises CorruptError for another type or a missing value."""
    kind = messages.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    fields = [f.name for f in kind.value_type] if is_list and pa.types.is_struct(kind.value_type) else []
    if "role" not in fields or "content" not in fields:
        raise CorruptError(f"{place}: messages are {kind}, not a list of structures with role and content")
    turns = pc.fill_null(pc.list_value_length(messages), 0).to_numpy().astype(np.int64)  # pyright: ignore
    flat = messages.flatten()
    columns = [flat.field(name) for name in ("role", "content")]
    if flat.null_count or any(column.null_count for column in columns) or not turns.all():
        raise CorruptError(
            f"{place}: a conversation has no messages, or one of its messages has no role or no content; filter out "
            "such conversations"
        )
    roles, contents = (column.to_pylist() for column in columns)
    return Conversations(roles, contents, turns)


def encode_chat(
    batch: Conversations,
    form: ChatFormat,
    trusted: Encoder,
    content: Callable[[list[str]], tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids, uint32 [T], the length of each conversation, int64 [N], and the loss mask, uint8 [T].

    `trusted` encodes heads and tails; `content` encodes the contents of messages.
    """
    roles = sorted(set(batch.roles))
    number_of = {role: number for number, role in enumerate(roles)}
    heads = np.fromiter(map(number_of.__getitem__, batch.roles), np.int64, len(batch.roles))
    tails = heads + len(roles)
    frames, frame_lengths = trusted.encode_batch(
        [text.replace("{role}", role) for text in (form.head, form.tail) for role in roles]
    )
    inner, inner_lengths = content(batch.contents)
    lengths = np.stack([frame_lengths[heads], inner_lengths, frame_lengths[tails]], axis=1)
    part = np.repeat(np.tile([0, 1, 2], len(heads)), lengths.ravel())  # 0: head, 1: content, 2: tail
    ids = np.empty(len(part), np.uint32)
    ids[part == 1] = inner
    starts = starts_of(frame_lengths)
    for side, rows in ((0, heads), (2, tails)):
        ids[part == side] = frames[_ranges(starts[rows], lengths[:, side])]
    message_lengths = lengths.sum(axis=1)
    target = np.isin(np.array(roles), form.targets)[heads]
    mask = (np.repeat(target, message_lengths) & (part > 0)).astype(np.uint8)
    return ids, np.diff(starts_of(message_lengths)[starts_of(batch.turns)]), mask


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenated indices of the ranges that begin at `starts` and have these lengths."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def with_text(records: pa.RecordBatch) -> pa.RecordBatch:
    """Add the column `text`, with one JSON line per message, so that dedup compares words; for use as `transform`."""
    lines = [
        "\n".join(json.dumps([turn["role"], turn["content"]], ensure_ascii=False) for turn in conversation or [])
        for conversation in records.column("messages").to_pylist()
    ]
    kept = [name for name in records.schema.names if name != "text"]
    return records.select(kept).append_column("text", pa.array(lines, pa.large_string()))
