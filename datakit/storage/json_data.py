"""Decodes JSON that strangers may have written. Data that is nested thousands of levels deep ends the decoder with a
RecursionError, and bytes that are not UTF-8 end it with a UnicodeDecodeError; here both are errors of the data, like
any other, and the caller can name the file.
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
