"""Finds the array in a JSON file: the file is an array, or an object with one member that is an array of records.

The other members of such an object may be anything but arrays; otherwise it would be unclear which one holds the
records, and the file is refused. They are checked, but not kept. What comes before the array and what comes after it
may have at most 64 KiB each, so that neither has to be searched for a long time nor held in memory.
"""

from __future__ import annotations

import json
from typing import Any

from datakit.errors import UnreadableError
from datakit.normalize.columns.schema_union import shown
from datakit.normalize.readers.json_arrays.recognition import WHITE_SPACE
from datakit.normalize.readers.line_chunks import BYTE_ORDER_MARK
from datakit.printable import one_line

ENVELOPE_BYTES = 64 << 10
MOST_BRACKETS = 1000  # each bracket before the array takes one parse of what comes before it


def array_start(path: str, head: bytes) -> tuple[int, str | None]:
    """Return the offset of the first byte inside the array, and the name of the member that is the array (None if the
    file is an array). head: the first bytes of the file. Raises UnreadableError if no array is found.
    """
    mark = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    text = head[mark:].lstrip(WHITE_SPACE)
    start = len(head) - len(text)
    if text.startswith(b"["):
        return start + 1, None
    found = 0
    for _ in range(MOST_BRACKETS if text.startswith(b"{") else 0):
        found = text.find(b"[", found) + 1
        if not found:
            break
        members = _parsed(text[: found - 1] + b"[]}")
        if members:
            name = next(reversed(members))
            _require_single(path, members, name)
            return start + found, name
    raise UnreadableError(
        f"{one_line(path)} is neither a JSON array nor an object with a member that is an array in its first "
        f"{ENVELOPE_BYTES} bytes; correct the source's `format`, or exclude the file"
    )


def check_rest(path: str, position: int, rest: bytes, name: str | None) -> None:
    """Raise UnreadableError if something other than white space or, in an object, other members and the closing brace
    follows the array. position: the offset of `rest` in the file. name: see `array_start`.
    """
    if name is None:
        if rest.strip(WHITE_SPACE):
            raise UnreadableError(
                f"{one_line(path)}: at byte {position}, something follows the end of the JSON array; a file must hold "
                "one array, or one object per line"
            )
        return
    members = _parsed(b'{"":0' + rest) if len(rest) <= ENVELOPE_BYTES else None
    if members is None:
        raise UnreadableError(
            f"{one_line(path)}: after byte {position}, the end of the array {shown(name)}, the object does not end as "
            f"JSON requires, or has more than {ENVELOPE_BYTES} bytes of other members; exclude the file, or extract "
            "the array"
        )
    _require_single(path, members, name)


def _require_single(path: str, members: dict[str, Any], name: str) -> None:
    """Raise UnreadableError if a member other than `name` is an array."""
    other = next((key for key, value in members.items() if isinstance(value, list) and key != name), None)
    if other is not None:
        raise UnreadableError(
            f"{one_line(path)} has two arrays, {shown(other)} and {shown(name)}, so it is unclear which one holds the "
            "records; extract one of them to a file of its own"
        )


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
