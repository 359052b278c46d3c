"""Lets a user declare that a function is an annotator: its version, and the columns that it reads and writes.

    @datakit.annotator(version=1, writes={"exclamations": pa.int32()})
    def exclamations(batch: pa.RecordBatch, mark: str = "!") -> pa.RecordBatch:
        ...

The function's other arguments are its parameters. Each has a default, which a recipe may replace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.errors import UsageError
from datakit.text.spans import SPANS

DECLARED = "datakit_annotator"  # the attribute of a function that holds its declaration
Function = TypeVar("Function", bound=Callable[..., pa.RecordBatch])
_SCALARS = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string,
    pa.types.is_binary, pa.types.is_large_binary,
)  # fmt: skip


@dataclass(frozen=True)
class Declaration:
    """The declaration of a function. parameters: the defaults of its parameters. The others are as in `Annotator`."""

    version: int
    columns: tuple[str, ...]
    schema: pa.Schema
    sparse: bool
    parameters: dict[str, Any]


def annotator(
    *, version: int, writes: Mapping[str, pa.DataType], reads: Sequence[str] = (TEXT,), sparse: bool = False
) -> Callable[[Function], Function]:
    """Decorate a function that maps a record batch of documents to a record batch of attributes, one row for each
    document, in the same order. What it returns for a document must depend on this document alone.

    version: raise it whenever a change of the code may change an attribute. writes: the names and types of the columns
    that it returns; the type of a column of spans, which edits can mask or cut, is `datakit.SPANS`. reads: the columns
    that it receives. sparse: True if documents whose attributes are all null or
    empty lists get no row in the table.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UsageError(f"version is {version!r}; it must be an integer from 1")
    if not reads or isinstance(reads, str) or len(set(reads)) < len(reads):
        raise UsageError(f"reads is {reads!r}; it must list at least one column, and no column twice")
    if not writes or "id" in writes:
        raise UsageError("writes must name at least one column, and none of them may be 'id'")
    for name, kind in writes.items():
        if not _is_supported(kind):
            raise UsageError(
                f"writes: column {name!r} has type {kind}; use booleans, numbers, texts, or lists of these"
            )
        if kind.equals(SPANS) and TEXT not in reads:
            raise UsageError(f"column {name!r} holds spans of the text, so `reads` must list {TEXT!r}")

    def declare(function: Function) -> Function:
        schema = pa.schema([pa.field(name, kind) for name, kind in writes.items()])
        declared = Declaration(version, tuple(reads), schema, bool(sparse), _parameters(function))
        setattr(function, DECLARED, declared)
        return function

    return declare


def _is_supported(kind: Any) -> bool:
    if not isinstance(kind, pa.DataType):
        return False
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_supported(kind.value_type)
    if pa.types.is_struct(kind):
        return bool(kind.num_fields) and all(_is_supported(kind.field(i).type) for i in range(kind.num_fields))
    return any(is_kind(kind) for is_kind in _SCALARS)


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of all arguments but the first. Raises UsageError for one without a default, and for a
    default that a recipe could not hold.
    """
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"argument {parameter} of {function.__name__} has no name; name each parameter")
        if parameter.default is parameter.empty:
            raise UsageError(f"argument {name!r} of {function.__name__} has no default; give it one")
        found[name] = parameter.default
    try:
        return msgspec.json.decode(msgspec.json.encode(found, order="deterministic"))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a default of {function.__name__} is none of the values that a recipe can hold: texts, numbers, booleans, "
            "lists and tables of these"
        ) from error
