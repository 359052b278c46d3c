"""Decides in which charset a payload is, and decodes it.

The first of these decides, as in browsers: a byte order mark; the charset that the server states; in HTML, the charset
that a `<meta>` in the first META_BYTES bytes states, unless it is in a comment; UTF-8, if the whole payload is valid
UTF-8; Resiliparse's detector. A charset that the WHATWG Encoding Standard does not know does not count. Texts of WET
files (`conversion`) are UTF-8. Names mean what they mean to browsers: `iso-8859-1` is windows-1252. Bytes that are
invalid in the charset become U+FFFD.

Cost: 0.1 ms per page whose charset is stated. The detector reads up to DETECTED_BYTES.
"""

from __future__ import annotations

import codecs
import re

import numpy as np
import pyarrow as pa
from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from datakit.normalize.readers.web.pieces import View

META_BYTES = 1024  # as the HTML standard says
DETECTED_BYTES = 128 << 10
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
LONGEST_MARK = 3  # in bytes
META = re.compile(rb"<meta[^>]{0,512}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.I)
COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
UTF_8 = "utf-8"


def charset_of(payload: View, stated: str | None, is_html: bool) -> str:
    """Return the name, in Python, of a payload's charset. stated: the charset that the server states, if any."""
    if mark := mark_of(payload):
        return mark
    found = _known(stated)
    if found is None and is_html and (meta := META.search(COMMENT.sub(b"", bytes(payload[:META_BYTES])))):
        found = _known(meta[1].decode("ascii"))
        # a <meta> can be read as ASCII only if the page is not in UTF-16
        found = UTF_8 if found is not None and found.startswith("utf-16") else found
    if found is not None:
        return found
    if is_utf8(payload):
        return UTF_8
    return _known(detect_encoding(bytes(payload), DETECTED_BYTES)) or "cp1252"


def _known(name: str | None) -> str | None:
    """Return Python's name of a charset that the WHATWG Encoding Standard knows."""
    mapped = map_encoding_to_html5(name.strip(), False) if name else None
    try:
        return mapped and codecs.lookup(mapped).name
    except LookupError:
        return None


def mark_of(payload: View) -> str | None:
    """Return the charset of which the payload begins with the byte order mark, or None."""
    first = bytes(payload[:LONGEST_MARK])
    return next((name for mark, name in MARKS if first.startswith(mark)), None)


def is_utf8(payload: View) -> bool:
    """Return True if the payload is valid UTF-8. Arrow finds out several times as fast as decoding would."""
    ends = pa.py_buffer(np.array([0, len(payload)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(payload)]).validate(full=True)
        return True
    except pa.ArrowInvalid:
        return False


def text_of(payload: View, charset: str) -> tuple[str, bool]:
    """Decode a payload without its byte order mark. Return the text, and whether invalid bytes had to be replaced."""
    try:
        text, replaced = str(payload, charset), False
    except UnicodeDecodeError:
        text, replaced = str(payload, charset, "replace"), True
    return text.removeprefix("\ufeff"), replaced
