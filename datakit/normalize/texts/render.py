"""Makes the texts of a chunk's records from their columns (settings/text_forms.py describes the forms).

All work is done by Arrow's kernels, column by column. Before a text is made, its size is known from those of its
values, so a record whose text would be too long costs no memory. If a value is binary, so are the texts of the chunk;
the text rules repair what is not UTF-8.

Cost: one copy of every value, and one more of the values in lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from datakit.normalize.columns.schema_union import fit, is_bytes
from datakit.normalize.settings.paths import ColumnPath
from datakit.normalize.settings.text_forms import CHAT, COLUMNS, MISSING, PATH, Pieces, TextForm
from datakit.normalize.texts.select_values import Selection, select

Texts: TypeAlias = "pa.LargeStringArray | pa.LargeBinaryArray"
Get: TypeAlias = Callable[[ColumnPath], Texts]


def texts_of(table: pa.Table, form: TextForm, limit: int) -> tuple[Texts, np.ndarray]:
    """Return the texts of all records, null if there is none, and bool [records], True for each record whose text would
    have more than `limit` bytes (its text is null). The types of the columns must be usable (`paths_in_types.mistake`).
    """
    parts = [_texts_of(batch, form, limit) for batch in table.to_batches()]
    if not parts:
        return pa.array([], pa.large_string()), np.zeros(0, bool)
    return _concatenated([texts for texts, _ in parts]), np.concatenate([long for _, long in parts])


def filled(texts: Texts, others: Texts) -> Texts:
    """Return the texts, with nulls replaced by the values of `others`."""
    return pc.call_function("coalesce", _of_one_type([texts, others]))


def _texts_of(batch: pa.RecordBatch, form: TextForm, limit: int) -> tuple[Texts, np.ndarray]:
    if form.kind == CHAT:
        return _chat_texts(batch, form, limit)

    def get(path: ColumnPath) -> Texts:
        places = dict.fromkeys(((path.whole,), path.parts))  # the column with the whole name comes first
        found = [
            _joined(select(batch.column(parts[0]), parts[1:]), form.separator)
            for parts in places
            if parts[0] in batch.schema.names
        ]
        if not found:
            return pa.nulls(batch.num_rows, pa.large_string())
        return found[0] if len(found) == 1 else filled(*found)

    return _rendered(form.pieces, form, get, limit)


def _chat_texts(batch: pa.RecordBatch, form: TextForm, limit: int) -> tuple[Texts, np.ndarray]:
    none = pa.nulls(batch.num_rows, pa.large_string()), np.zeros(batch.num_rows, bool)
    if form.chat.column not in batch.schema.names:
        return none
    messages = _without_nulls(select(batch.column(form.chat.column), form.chat.parts[1:]))
    if types.is_null(messages.values.type):
        return none
    fields = TextForm(COLUMNS, form.message)  # nulls stay empty, and a message of nulls is still a message

    def get(path: ColumnPath) -> Texts:
        return _joined(select(messages.values, path.parts), form.separator)

    texts, long = _rendered(fields.pieces, form, get, limit)
    assert messages.offsets is not None
    sizes = np.concatenate([[0], np.cumsum(_sizes(texts))])[messages.offsets]
    counts = np.concatenate([[0], np.cumsum(long)])[messages.offsets]
    too_long = (np.diff(counts) > 0) | (np.diff(sizes) > limit)
    texts = filled(texts, pa.repeat(pa.scalar("", texts.type), len(texts)))
    joined = _joined(Selection(texts, messages.offsets), form.separator)
    return pc.call_function("if_else", [pa.array(too_long), pa.scalar(None, joined.type), joined]), too_long


def _rendered(pieces: Pieces, form: TextForm, get: Get, limit: int) -> tuple[Texts, np.ndarray]:
    parts = [one if isinstance(one, str) else get(one) for one in pieces]
    values = _of_one_type([one for one in parts if not isinstance(one, str)])
    sizes = sum(_sizes(one) for one in values)
    long = np.asarray(sizes > limit)
    if long.any():
        values = [pc.call_function("if_else", [pa.array(long), pa.scalar(None, one.type), one]) for one in values]
    if form.kind == PATH:
        return values[0], long
    kind, queue = values[0].type, iter(values)
    if form.kind == COLUMNS:
        return _columns(values, form.separator), long
    arrays = [pa.scalar(one, kind) if isinstance(one, str) else next(queue) for one in parts]
    options = pc.JoinOptions("replace", "")
    texts = pc.call_function("binary_join_element_wise", [*arrays, pa.scalar("", kind)], options)
    absent = np.stack([one.is_null().to_numpy(zero_copy_only=False) for one in values])
    if form.kind == CHAT:
        return texts, long
    missing = absent.any(axis=0) if form.nulls == MISSING else absent.all(axis=0)
    return pc.call_function("if_else", [pa.array(missing), pa.scalar(None, kind), texts]), long


def _columns(values: Sequence[Texts], separator: str) -> Texts:
    """Join the values that are neither null nor empty. (Arrow's own way to leave out nulls, `null_handling="skip"`,
    returns too few rows in pyarrow 26 if all values of a row are null.)
    """
    kind, parts = values[0].type, list[Texts]()
    before = np.zeros(len(values[0]), bool)
    between, nothing = pa.scalar(separator, kind), pa.scalar("", kind)
    for one in values:
        present = _sizes(one) > 0
        parts += [pc.call_function("if_else", [pa.array(present & before), between, nothing]), one]
        before |= present
    texts = pc.call_function("binary_join_element_wise", [*parts, nothing], pc.JoinOptions("replace", ""))
    return pc.call_function("if_else", [pa.array(before), texts, pa.scalar(None, kind)])


def _joined(selection: Selection, separator: str) -> Texts:
    """Return one string per row: its only value, or its values that are not null, joined; null if there is none."""
    if selection.offsets is None:
        return _strings(selection.values)
    rest = _without_nulls(selection)
    strings, offsets = _strings(rest.values), np.asarray(rest.offsets)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), strings)
    joined = pc.call_function("binary_join", [lists, pa.scalar(separator, strings.type)])
    return pc.call_function("if_else", [pa.array(np.diff(offsets) == 0), pa.scalar(None, strings.type), joined])


def _without_nulls(selection: Selection) -> Selection:
    """Return the values that are not null, with offsets."""
    values, offsets = selection.values, selection.offsets
    offsets = np.arange(len(values) + 1) if offsets is None else offsets
    present = np.concatenate([[0], np.cumsum(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.int64)])
    return Selection(values.drop_null(), present[offsets])


def _strings(values: pa.Array) -> Texts:
    """Convert values to strings, as `schema_union.fit` does."""
    kind = values.type
    if types.is_null(kind):
        return pa.nulls(len(values), pa.large_string())
    if is_bytes(kind):
        return values.cast(pa.large_binary())
    if types.is_string(kind) or types.is_large_string(kind):
        return values.cast(pa.large_string())
    return fit(values, pa.string()).cast(pa.large_string())


def _of_one_type(values: Sequence[Texts]) -> list[Texts]:
    if any(one.type == pa.large_binary() for one in values):
        return [one.cast(pa.large_binary()) for one in values]
    return list(values)


def _concatenated(parts: Sequence[Texts]) -> Texts:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(_of_one_type(parts))


def _sizes(texts: Texts) -> np.ndarray:
    sizes = pc.call_function("binary_length", [texts]).fill_null(0)
    return sizes.to_numpy(zero_copy_only=False).astype(np.int64)
