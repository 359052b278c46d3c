"""Edits texts at their spans: keeps, masks or cuts each stretch, or drops the document, as the span's kind demands.

Spans that share at least one byte are edited as one stretch. It is cut if any of them is to be cut; otherwise it is
replaced once, by the replacement of the span that begins first (of several, the one that stops first, then the first
kind in alphabetical order). Spans that are kept take no part in this. All other bytes stay as they are.

Cost: bytes are copied once, by a compiled loop; no Python object is made per document or span.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import SPANS
from datakit.annotate.editing import mask_kernels
from datakit.annotate.editing.mask_kernels import CUT, KEEP
from datakit.errors import ColumnError, RecipeError, suggestion
from datakit.text.string_buffers import string_buffers

Verb = Literal["keep", "mask", "cut", "drop"]
VERBS: tuple[Verb, ...] = ("keep", "mask", "cut", "drop")


@dataclass(frozen=True)
class Action:
    """The treatment of the spans of a kind: `keep` changes nothing, `mask` puts `replacement` in their place, `cut`
    removes them, and `drop` removes the document.
    """

    verb: Verb
    replacement: str = ""

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise RecipeError(f"unknown action {self.verb!r}; {suggestion(self.verb, VERBS)}")
        if self.verb == "mask" and not self.replacement:
            raise RecipeError("the action mask needs a replacement; give one, or use cut to remove the text")
        if self.verb != "mask" and self.replacement:
            raise RecipeError(f"a replacement has no effect with the action {self.verb}; remove it, or use mask")


class Edited(NamedTuple):
    """Edited texts. retained: boolean [N], false for dropped documents. texts: large_string, those of the M retained
    documents. edits: int64 [M], the number of stretches that were masked or cut in each.
    """

    retained: pa.BooleanArray
    texts: pa.LargeStringArray
    edits: pa.Int64Array


def edit(texts: pa.Array | pa.ChunkedArray, spans: pa.ListArray, actions: Mapping[str, Action]) -> Edited:
    """Return N texts, edited at their spans. spans: of the type `SPANS`, N lists.

    Raises RecipeError for a kind without an action, and ColumnError for spans of another type or number, and for spans
    that are empty, out of order, outside their text, or that divide a character.
    """
    data, offsets = string_buffers(texts)
    _check(spans, len(offsets) - 1)
    lists, starts, stops, kinds = _columns(spans)
    table = [actions[kind] for kind in _known(kinds.dictionary.to_pylist(), actions)]
    place = mask_kernels.first_misplaced(data, offsets, lists, starts, stops)
    if place >= 0:
        row = int(np.searchsorted(lists, place, side="right")) - 1
        raise ColumnError(
            f"the spans of row {row} are empty, out of order, outside the text, or divide a character; "
            "annotate this text again"
        )
    codes = kinds.indices.to_numpy()
    dropped = np.array([action.verb == "drop" for action in table], bool)[codes]
    retained = ~mask_kernels.any_in_row(lists, dropped)
    return _edited(data, offsets, mask_kernels.Spans(lists, starts, stops, codes), table, retained)


def _known(kinds: list[str], actions: Mapping[str, Action]) -> list[str]:
    """Return the kinds; raise RecipeError if one has no action."""
    for kind in kinds:
        if kind not in actions:
            raise RecipeError(f"the kind {kind!r} has no action; give it one of {', '.join(VERBS)}")
    return kinds


def _check(spans: pa.Array, rows: int) -> None:
    if not spans.type.equals(SPANS):
        raise ColumnError(f"the spans have the type {spans.type}; it must be {SPANS}")
    if len(spans) != rows:
        raise ColumnError(f"there are {len(spans):,} lists of spans for {rows:,} texts; give one list per text")


def _columns(spans: pa.ListArray) -> tuple[np.ndarray, np.ndarray, np.ndarray, pa.DictionaryArray]:
    """Return the offsets of the lists (int64 [N + 1]) and all spans' starts, stops (uint64) and kinds."""
    sizes = spans.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    lists = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(sizes, out=lists[1:])
    starts, stops, kinds = spans.flatten().flatten()
    return lists, starts.to_numpy(), stops.to_numpy(), kinds.dictionary_encode()


def _edited(
    data: np.ndarray, offsets: np.ndarray, spans: mask_kernels.Spans, table: list[Action], retained: np.ndarray
) -> Edited:
    """Return the retained texts; `table` holds the action of each kind code."""
    verbs = np.array([{"mask": mask_kernels.MASK, "cut": CUT}.get(action.verb, KEEP) for action in table], np.int64)
    replacements, ends = string_buffers(pa.array([action.replacement for action in table], pa.large_string()))
    rules = mask_kernels.Rules(verbs, replacements, ends)
    sizes, edits = mask_kernels.edited_sizes(offsets, spans, rules, retained)
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    output = np.empty(int(bounds[-1]), np.uint8)
    mask_kernels.write_edited(data, offsets, spans, rules, retained, output)
    texts = pa.LargeStringArray.from_buffers(len(sizes), pa.py_buffer(bounds), pa.py_buffer(output))
    return Edited(pa.array(retained), texts, pa.array(edits))


def warm() -> None:
    """Load the kernels from numba's cache, or compile them, so that no task has to do so."""
    spans = pa.array([[{"start": 0, "stop": 1, "kind": "x"}]], SPANS)
    edit(pa.array(["ab"], pa.large_string()), spans, {"x": Action("mask", "-")})
