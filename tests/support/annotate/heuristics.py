"""Computes the numbers of the annotator `heuristics` in plain Python: the oracle of its kernels. Slow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from datakit.annotate.heuristics.kernels.characters import ALONE, CLOSER, LETTER, TERMINAL, VISIBLE, flags_table
from datakit.annotate.heuristics.stop_word_lists import stop_word_lists

CITATION = re.compile(r"\[[0-9]*]|\[edit]|\[citation needed]")
CITATIONS_AT_END = re.compile(rf"(?:{CITATION.pattern})+\Z")
PHRASES = {
    "lorem_ipsum": ("lorem ipsum",),
    "javascript": ("javascript",),
    "curly_bracket": ("{",),
    "policy": (
        *("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"),
    ),
}  # fmt: skip
Numbers = dict[str, Any]


def has(character: str, flag: int) -> bool:
    """Return True if a character is in a class."""
    return bool(flags_table()[ord(character)] & flag)


def words_of(text: str) -> list[str]:
    """Return the words of a text."""
    words = []
    for run in text.split():
        piece = ""
        for character in run:
            if has(character, ALONE):
                words += [piece, character] if piece else [character]
                piece = ""
            else:
                piece += character
        words += [piece] if piece else []
    return words


def ratio(count: int, total: int) -> float:
    """Return a ratio; 0 if there is nothing."""
    return count / total if total else 0.0


def lower(text: str) -> str:
    """Return a text with its ASCII letters in lower case."""
    return "".join(character.lower() if character.isascii() else character for character in text)


def duplicates(pieces: Sequence[str]) -> list[str]:
    """Return the pieces that occurred before."""
    return [piece for number, piece in enumerate(pieces) if piece in set(pieces[:number])]


def top_characters(words: list[str], n: int) -> int:
    """Return the characters of the most frequent n-gram that is repeated."""
    counter = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    if not counter:
        return 0
    gram, count = counter.most_common(1)[0]
    return len(" ".join(gram)) * count if count > 1 else 0


def duplicate_characters(words: list[str], n: int) -> int:
    """Return the characters of duplicate n-grams."""
    seen, characters, first = set(), 0, 0
    while first + n <= len(words):
        gram = tuple(words[first : first + n])
        if gram in seen:
            characters += len("".join(gram))
            first += n
        else:
            seen.add(gram)
            first += 1
    return characters


def sentences(line: str) -> int:
    """Return the number of sentences of a line."""
    count, ended = 0, True
    for word in words_of(line):
        word = CITATIONS_AT_END.sub("", word)
        while word and has(word[-1], CLOSER):
            word = word[:-1]
        ended = bool(word) and has(word[-1], TERMINAL)
        count += ended
    return count + (not ended)


def c4_class(line: str, fewest: int, longest: int) -> str:
    """Return what C4 does with a line."""
    pieces = line.split()
    bare = CITATIONS_AT_END.sub("", line.strip())
    dotless = CITATION.sub("", bare)
    if any(len(piece) > longest for piece in pieces):
        return "long_word"
    if not dotless.endswith((".", "?", "!", '"', "'")) or dotless.endswith("..."):
        return "unterminated"
    if len(pieces) < fewest:
        return "short"
    for kind, phrases in PHRASES.items():
        if any(phrase in lower(line) for phrase in phrases):
            return kind
    return "kept"


def word_numbers(text: str) -> Numbers:
    """Return the numbers of words and n-grams."""
    words = words_of(text)
    visible = [word for word in words if any(has(character, VISIBLE) for character in word)]
    numbers: Numbers = {
        "characters": len(text),
        "words": len(words),
        "non_symbol_words": len(visible),
        "mean_word_length": ratio(sum(map(len, visible)), len(visible)),
        "longest_word": max(map(len, words), default=0),
        "alphabetic_word_ratio": ratio(sum(any(has(c, LETTER) for c in word) for word in words), len(words)),
        "hash_ratio": ratio(text.count("#"), len(words)),
        "ellipsis_ratio": ratio(text.count("...") + text.count("…"), len(words)),
        "newline_ratio": ratio(text.count("\n"), len(words)),
        "curly_brackets": text.count("{"),
    }
    for n in range(2, 5):
        numbers[f"top_{n}_gram_character_ratio"] = ratio(top_characters(words, n), len(text))
    for n in range(5, 11):
        numbers[f"duplicate_{n}_gram_character_ratio"] = ratio(duplicate_characters(words, n), len(text))
    return numbers


def line_numbers(text: str, short: int) -> Numbers:
    """Return the numbers of lines and paragraphs."""
    marked, lines = text.splitlines(), text.split("\n")
    starts, ends = [line.lstrip() for line in marked], [line.rstrip() for line in marked]
    filled, nonblank = [line for line in lines if line], [line for line in lines if line.strip()]
    paragraphs = re.split("\n{2,}", text.strip()) if text.strip() else []
    lengths = sorted(map(len, lines), reverse=True)
    return {
        "lines": len(marked),
        "bullet_line_ratio": ratio(sum(line.startswith(("•", "-")) for line in starts), len(marked)),
        "ellipsis_line_ratio": ratio(sum(line.endswith(("...", "…")) for line in ends), len(marked)),
        "nonblank_lines": len(nonblank),
        "terminal_line_ratio": ratio(sum(has(line.rstrip()[-1], TERMINAL) for line in nonblank), len(nonblank)),
        "short_line_ratio": ratio(sum(len(line) <= short for line in nonblank), len(nonblank)),
        "longest_line": lengths[0],
        "third_longest_line": lengths[2] if len(lengths) > 2 else 0,
        "paragraphs": len(paragraphs),
        "duplicate_line_ratio": ratio(len(duplicates(filled)), len(filled)),
        "duplicate_line_character_ratio": ratio(len("".join(duplicates(filled))), len(text)),
        "duplicate_text_line_character_ratio": ratio(
            len("".join(duplicates(nonblank))), len(text.replace("\n", ""))
        ),
        "duplicate_paragraph_ratio": ratio(len(duplicates(paragraphs)), len(paragraphs)),
        "duplicate_paragraph_character_ratio": ratio(len("".join(duplicates(paragraphs))), len(text)),
    }  # fmt: skip


def c4_numbers(text: str, fewest: int, longest: int) -> Numbers:
    """Return the numbers of C4's lines."""
    classes = [(c4_class(line, fewest, longest), line) for line in text.splitlines() if line.strip()]
    names = ("long_word", "unterminated", "short", *PHRASES, "kept")
    numbers: Numbers = {f"c4_{name}_lines": sum(one == name for one, _ in classes) for name in names}
    return numbers | {"c4_sentences": sum(sentences(line) for one, line in classes if one == "kept")}


def reference(
    text: str, short_line: int = 30, fewest_words: int = 3, longest_word: int = 1000, stop_words: Sequence[str] = ()
) -> Numbers:
    """Return all numbers of a text, by column."""
    numbers = word_numbers(text) | line_numbers(text, short_line) | c4_numbers(text, fewest_words, longest_word)
    words = words_of(text)
    for name in stop_words:
        found = [word for word in words if word in stop_word_lists()[name]]
        numbers[f"stop_words_{name}"] = len(set(found))
        numbers[f"stop_word_ratio_{name}"] = ratio(len(found), len(words))
    return numbers
