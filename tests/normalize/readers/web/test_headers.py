"""Headers: the usual way to write a length is found faster, with the same result as by the pattern."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from datakit.normalize.readers.web import headers
from datakit.normalize.readers.web.headers import content_length

NAMES = st.sampled_from(["Content-Length", "content-length", "CONTENT-LENGTH", "X-Content-Length", "Content-Length "])
LINES = st.tuples(NAMES, st.sampled_from([": ", ":", ":  ", ":\t"]), st.text("19x \t\r\n", max_size=5))
ENDS = st.sampled_from(["\r\n", "\n", "\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=3))
def test_length_is_found_as_by_the_pattern(lines: list[tuple[tuple[str, str, str], str]]) -> None:
    header = ("WARC/1.0\r\n" + "".join("".join(line) + end for line, end in lines) + "A: 1").encode()
    found = content_length(header)
    with patch.object(headers, "USUAL_LENGTH", b"never found"):
        assert content_length(header) == found
