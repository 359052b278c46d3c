"""Decodes JSON that strangers may have written. Data that is nested thousands of levels deep makes msgspec raise a
RecursionError, and bytes that are not UTF-8 make it raise a UnicodeDecodeError. Here, both become msgspec.DecodeError,
as all other errors in the data do, so that the caller can handle them alike and name the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode(data: bytes, type: type[T]) -> T:
    """Decode a value of this type. Raises msgspec.DecodeError for any data that cannot be decoded."""
    with decode_errors():
        return msgspec.json.decode(data, type=type)


@contextmanager
def decode_errors() -> Iterator[None]:
    """Raise msgspec.DecodeError in place of the other errors that msgspec's decoders raise for wrong data."""
    try:
        yield
    except RecursionError as error:
        raise msgspec.DecodeError("JSON is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"JSON is not UTF-8 text (byte {error.start} of a string)") from error
