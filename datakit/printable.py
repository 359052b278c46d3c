"""Makes text safe to show: escapes the characters with which a name could control a terminal, hide part of itself or
pass for a line of its own.

Names of files, objects, columns and sources come from data, and may hold any character. Control characters move the
cursor or change a terminal's title, bidirectional controls reorder what is read, and separators of lines and paragraphs
start new lines in a log. Every message, table, progress line and event passes through `printable`, `one_line` or
`escaped_json` on its way out, so code that composes a message need not escape anything. The exceptions are tabs and
line feeds, which a message may contain: a *name* is therefore escaped by `one_line` where it is put into a message.

Names that are written to data files are not escaped. Cost: one scan per message.
"""

from __future__ import annotations

import re

# C0 (except tab and line feed), DEL and C1; directional marks and controls; line and paragraph separators; invisible
# characters and the byte order mark; lone surrogates (from names that are not UTF-8), which cannot be encoded
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f"
)
_IN_TEXT, _IN_NAME = re.compile(f"[{_UNSAFE}]"), re.compile(f"[\t\n{_UNSAFE}]")


def printable(text: str) -> str:
    r"""Return a text of one or more lines with escapes in place of unsafe characters.

    >>> print(printable("a\x1b[2Jb\u202ec"))
    a\x1b[2Jb\u202ec
    """
    return _IN_TEXT.sub(_escape, text)


def one_line(name: str) -> str:
    r"""Return a name with escapes in place of unsafe characters, tabs and line feeds.

    >>> print(one_line("a.txt\nerror: all is lost"))
    a.txt\nerror: all is lost
    """
    return _IN_NAME.sub(_escape, name)


def escaped_json(text: str) -> str:
    r"""Return a JSON text with unsafe characters replaced by JSON's escapes; its meaning stays the same.

    >>> print(escaped_json('{"a": "\u202e"}'))
    {"a": "\u202e"}
    """
    return _IN_TEXT.sub(_escape_in_json, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode() if ord(found[0]) < 0xD800 else _number(found[0])


def _number(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08x}"


def _escape_in_json(found: re.Match[str]) -> str:
    return "".join(f"\\u{int.from_bytes(unit):04x}" for unit in _units(found[0]))


def _units(character: str) -> list[bytes]:
    encoded = character.encode("utf-16-be", "surrogatepass")
    return [encoded[start : start + 2] for start in range(0, len(encoded), 2)]
