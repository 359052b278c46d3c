"""Decides for which tokenizers, and between which neighboring bytes, a text can be cut without changing a token id.

A place between two bytes is safe if the pre-tokenizer always splits the text there, whatever surrounds the place, and
if no piece on one side depends on the other side. For the pre-tokenizers of the byte-level BPE family (the regular
expression of GPT-2 and those of the cl100k kind), a table of all pairs of bytes tells which places are safe:

- A place after a character that is not white space and before white space is safe, because no piece spans it. With the
  cl100k kind, however, a place before a line break is safe only after an ASCII letter or digit, because a piece of
  punctuation includes the line breaks after it.
- A place between ASCII characters of two kinds (letters, digits, punctuation) is safe if no piece continues from the
  first kind to the second (`a1`, `1a`, `a.`, `1.`, ...).
- A place after an apostrophe and before a letter is never safe, because of contractions.
- A place inside white space is never safe, because the division of a run depends on the text after it.
- A place next to a byte beyond ASCII is not safe, because the byte does not identify the kind of its character. The
  exception is a place between such a byte and ASCII white space after it, if the byte cannot be the last one of a
  white-space character.

The text after a safe place starts with an ASCII character, which no normalization form composes with what precedes it,
so the parts of a text can be normalized separately. Added tokens are matched before pre-tokenization. Therefore pairs
of bytes inside an added token are removed from the table, and so are pairs at an end of a token whose match depends on
its surroundings. With any other pre-tokenizer, or with a normalizer other than the Unicode normalization forms,
documents are not split; `find_splitter` returns the reason.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The expressions as tokenizer files write them: contractions in two equivalent forms, and pieces of 1 to 3 digits
# (cl100k), of 1 digit (Qwen) or of any number of digits.
CL100K_KIND = {
    rf"{contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for contractions in ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)")
    for digits in (r"\p{N}{1,3}", r"\p{N}", r"\p{N}+")
}
WHITE_SPACE = b"\t\n\v\f\r "
LETTERS, DIGITS = string.ascii_letters.encode(), string.digits.encode()
PUNCTUATION = string.punctuation.encode()
# The last bytes of white-space characters beyond ASCII (U+0085, U+00A0, U+1680, U+180E, U+2000-200A, U+2028, U+2029,
# U+202F, U+205F, U+3000). Other characters end in these bytes too, and the byte alone does not tell which character it
# ends, so a place after such a byte is never safe.
DOUBTFUL = bytes([*range(0x80, 0x8B), 0x8E, 0x85, 0x9A, 0x9F, 0xA0, 0xA8, 0xA9, 0xAF])


@dataclass(frozen=True)
class Splitter:
    """Finds places at which a text can be cut. safe: bool [256, 256]; safe[a, b] is True if a text may be cut between a
    byte a and a byte b that follows it.
    """

    safe: np.ndarray

    def points(self, data: np.ndarray) -> np.ndarray:
        """Return all safe places in N bytes of UTF-8: int64, ascending, from 1 to N - 1. Place i is before byte i."""
        return np.flatnonzero(self.safe[data[:-1], data[1:]]) + 1

    def cuts(self, data: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a text as ranges of bytes (start, stop). A part has at most `size` bytes unless it
        contains no safe place.
        """
        start, count = 0, len(data)
        while count - start > size:
            stop = self._last(data, start, start + size) or self._next(data, start + size, size) or count
            yield start, stop
            start = stop
        if start < count:
            yield start, count

    def _last(self, data: np.ndarray, start: int, stop: int) -> int | None:
        """Return the last safe place in (start, stop], or None. The search runs backward in growing steps."""
        reach = 64
        while True:
            low = max(start, stop - reach)
            found = self.points(data[low : stop + 1])
            if len(found):
                return low + int(found[-1])
            if low == start:
                return None
            reach *= 8

    def _next(self, data: np.ndarray, start: int, size: int) -> int | None:
        for low in range(start, len(data), size):
            found = self.points(data[low : low + size + 1])
            if len(found):
                return low + int(found[0])
        return None


def find_splitter(tokenizer: dict[str, Any]) -> tuple[Splitter | None, str]:
    """Return (splitter, "") for a tokenizer.json, or (None, reason) if it has no splitter. Do not reword the reasons:
    manifests store them.
    """
    family, reason = family_of(tokenizer.get("pre_tokenizer"))
    if family is None:
        return None, reason
    if not _is_form(tokenizer.get("normalizer")):
        return None, "its normalizer is none of NFC, NFD, NFKC, NFKD"
    safe = _table(family)
    for token in tokenizer.get("added_tokens") or []:
        _spare(safe, token)
    return Splitter(safe), ""


def splitting_expression(tokenizer: dict[str, Any]) -> str:
    """Return the regular expression of a tokenizer.json's pre-tokenizer. `find_splitter` must have returned a splitter
    for this tokenizer.json.
    """
    first = steps_of(tokenizer["pre_tokenizer"], "pretokenizers")[0]
    return GPT2 if first["type"] == "ByteLevel" else first["pattern"]["Regex"]


def family_of(pre_tokenizer: Any) -> tuple[str | None, str]:
    """Return ("gpt2" or "cl100k", ""), the kind of a pre-tokenizer's regular expression, or (None, reason)."""
    steps = steps_of(pre_tokenizer, "pretokenizers")
    last = steps[-1] if steps else {}
    if last.get("type") != "ByteLevel":
        return None, "its pre-tokenizer is not byte-level"
    if last.get("add_prefix_space"):
        return None, "it puts a space before each text"
    if len(steps) == 1 and last.get("use_regex", True):
        return "gpt2", ""
    if len(steps) == 2 and not last.get("use_regex", True) and _is_split(steps[0]):
        expression = steps[0]["pattern"].get("Regex")
        if expression == GPT2:
            return "gpt2", ""
        if expression in CL100K_KIND:
            return "cl100k", ""
    return None, "its pre-tokenizer is not one of those whose borders are known"


def _is_split(step: dict[str, Any]) -> bool:
    return step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")


def steps_of(part: Any, key: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer: none, one, or those that a (nested) sequence lists under
    `key`.
    """
    if part is None:
        return []
    if part.get("type") == "Sequence":
        return [step for entry in part[key] for step in steps_of(entry, key)]
    return [part]


def _is_form(normalizer: Any) -> bool:
    return all(step.get("type") in FORMS for step in steps_of(normalizer, "normalizers"))


def _table(family: str) -> np.ndarray:
    safe = np.zeros((256, 256), bool)

    def allow(before: bytes, after: bytes) -> None:
        safe[np.ix_(list(before), list(after))] = True

    beyond = bytes(byte for byte in range(0x80, 0xC0) if byte not in DOUBTFUL)
    words = LETTERS + DIGITS + beyond
    allow(LETTERS, DIGITS + PUNCTUATION)
    allow(DIGITS, LETTERS + PUNCTUATION)
    allow(PUNCTUATION, DIGITS)
    if family == "gpt2":
        allow(words + PUNCTUATION, WHITE_SPACE)
        allow(PUNCTUATION.replace(b"'", b""), LETTERS)
    else:
        allow(words + PUNCTUATION, b"\t\v\f ")
        allow(LETTERS + DIGITS, b"\r\n")
    return safe


def _spare(safe: np.ndarray, token: dict[str, Any]) -> None:
    """Remove from `safe` the pairs of bytes that may occur inside an added token and, if the token's match depends on
    its surroundings, the pairs at the token's ends.
    """
    content = token["content"].encode()
    pairs = np.frombuffer(content, np.uint8)
    safe[pairs[:-1], pairs[1:]] = False
    inner = content.translate(None, WHITE_SPACE) and any(white in content.strip() for white in WHITE_SPACE)
    if inner or token.get("rstrip") or token.get("single_word") or not content.isascii():
        safe[0x80:, :] = False  # normalization may turn a non-ASCII character into one that the token contains
    if content and token.get("rstrip"):
        safe[content[-1], list(WHITE_SPACE)] = False
    if content and token.get("single_word"):
        safe[content[-1], :] = False
        safe[:, content[0]] = False
