"""Runs a user's own code (a transform, a tokenizer), reports its exceptions without quoting documents, and lets a
transform declare which fields of JSON records must hold text.

The messages of other libraries are hidden, because they may quote documents (`worker/child.py`). The exceptions of a
user's own code are different: its author needs the traceback, the message, and a description of what the code received.
The message is cut off before the first quoted part that neither names a column, a type or a file nor occurs in the
lines of code shown.
"""

from __future__ import annotations

import builtins
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from datakit.engine.task import resolve
from datakit.errors import DatakitError, UserCodeError

SHOWN_FRAMES = 10
_OURS = str(Path(__file__).parents[1])
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_LIBRARY_TYPES = ("pyarrow.", "numpy.", "pandas.", "datetime.")
_DECLARED = "required_text"
_used = False
_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True)
class RequiredText:
    """A column that must hold lists of objects, and the fields that must hold a string or null in each object."""

    column: str
    fields: tuple[str, ...]


def requires_text(column: str, *fields: str) -> Callable[[_Function], _Function]:
    """Decorate a transform that requires text in `fields` of the objects in `column`. JSON records with other values in
    these fields are quarantined before the transform is called. The transform itself could not recognize them,
    because numbers in a batch that also holds strings are converted to strings before the call.
    """

    def declare(transform: _Function) -> _Function:
        setattr(transform, _DECLARED, RequiredText(column, fields))
        return transform

    return declare


def required_text(transform: str | None) -> RequiredText | None:
    """Return the requirement that the transform named `package.module:function` has declared, or None."""
    return None if transform is None else getattr(resolve(transform), _DECLARED, None)


def note_user_code() -> None:
    """Note that this process has imported a user's own code, which may have changed anything in it."""
    global _used  # noqa: PLW0603 - imported code belongs to the process
    _used = True


def user_code_was_used() -> bool:
    """Return True if this process, or one from which it was forked, has imported a user's own code."""
    return _used


@contextmanager
def user_code(name: str, received: str, columns: Iterable[str] = ()) -> Iterator[None]:
    """Raise UserCodeError, with the user's own traceback, if the code in the `with` block raises an exception.
    Errors that datakit itself raises, and MemoryError, are passed on unchanged.

    name: a description of the code, such as "transform 'filters:keep'". received: a description of the values passed to
    it. columns: column names that the error message may quote.
    """
    try:
        yield
    except (DatakitError, MemoryError):
        raise
    except Exception as error:
        raise UserCodeError(f"{name} failed; it received {received}\n{describe(error, columns)}") from error


def describe(error: Exception, columns: Iterable[str] = ()) -> str:
    """Describe an exception raised by a user's code: its traceback, without datakit's frames, and its message."""
    if os.environ.get("DATAKIT_DEBUG"):
        return "".join(traceback.format_exception(error)).rstrip()
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((_OURS, "<frozen "))][-SHOWN_FRAMES:]
    lines = traceback.format_list([frame for frame in theirs if frame.line] or frames[-1:])  # skips compiled code
    if isinstance(error, SyntaxError):
        return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()
    known = {*columns, *(str(name) for name in (getattr(error, "filename", None),) if name)}
    code = "\n".join(frame.line or "" for frame in theirs)
    return "".join(lines) + f"{type(error).__name__}: {_shown(_message(error, theirs), known, code)}"


def _message(error: Exception, frames: list[traceback.FrameSummary]) -> str:
    """Return the error's message. A KeyError raised by pyarrow has a sentence as its key, which `str` would quote."""
    by_pyarrow = bool(frames) and frames[-1].filename.endswith((".pxi", ".pyx"))
    return str(error.args[0]) if by_pyarrow and isinstance(error, KeyError) and error.args else str(error)


def _shown(message: str, known: set[str], code: str) -> str:
    for quotation in _QUOTED.finditer(message):
        quoted = quotation.group()[1:-1]
        if not (quoted in known or quoted in code or hasattr(builtins, quoted) or quoted.startswith(_LIBRARY_TYPES)):
            hidden = len(message) - quotation.start()
            return (
                f"{message[: quotation.start()]}... ({hidden} more characters, which may quote a document, are shown "
                "with DATAKIT_DEBUG=1)"
            )
    return message
