"""Says why a number or a verdict of datatrove's filters differs from ours: the causes that
docs/annotate/heuristics.md lists, each with a check on the text. What no check explains is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from datakit.annotate.heuristics.kernels.characters import LETTER
from tests.support.annotate.heuristics import CITATION, duplicate_characters, has, words_of

REASONS = {
    "gopher_short_doc": "few_words",
    "gopher_long_doc": "many_words",
    "gopher_below_avg_threshold": "short_words",
    "gopher_above_avg_threshold": "long_words",
    "gopher_too_many_hashes": "hashes",
    "gopher_too_many_ellipsis": "ellipses",
    "gopher_too_many_bullets": "bullet_lines",
    "gopher_too_many_end_ellipsis": "ellipsis_lines",
    "gopher_below_alpha_threshold": "few_alphabetic_words",
    "gopher_enough_stop_words": "few_stop_words",
    "empty": "no_text",
    "dup_para_frac": "duplicate_paragraphs",
    "dup_para_char_frac": "duplicate_paragraph_characters",
    "dup_line_frac": "duplicate_lines",
    "dup_line_char_frac": "duplicate_line_characters",
    **{f"top_{n}_gram": f"top_{n}_grams" for n in range(2, 5)},
    **{f"duplicated_{n}_n_grams": f"duplicate_{n}_grams" for n in range(5, 11)},
    "line_punct_ratio": "unterminated_lines",
    "short_line_ratio": "short_lines",
    "char_dup_ratio": "duplicate_line_characters",
    "list_ratio": "list",
    "lorem_ipsum": "lorem_ipsum",
    "curly_bracket": "curly_brackets",
    "too_few_sentences": "few_sentences",
    "< 3 paragraphs": "few_long_lines",
}
UNKNOWN = "unknown"
NUMBERS = {  # the number that a reason compares with a threshold; gopher's and FineWeb's duplicate lines differ
    "duplicate_lines": "duplicate_line_ratio",
    "unterminated_lines": "terminal_line_ratio",
    "few_alphabetic_words": "alphabetic_word_ratio",
    "few_sentences": "c4_sentences",
    **{f"top_{n}_grams": f"top_{n}_gram_character_ratio" for n in range(2, 5)},
    **{f"duplicate_{n}_grams": f"duplicate_{n}_gram_character_ratio" for n in range(5, 11)},
}


def cause_of_number(text: str, name: str, ours: float, theirs: float) -> str:
    """Return why two numbers of a text differ; empty if they are equal."""
    if ours == theirs:
        return ""
    if name == "duplicate_line_ratio" and (text.startswith("\n") or text.endswith("\n")):
        return "newlines at the ends"
    if name == "terminal_line_ratio" and re.search(r"\S[^\S\n]+(?:\n|\Z)", text) and ours > theirs:
        return "whitespace after lines"
    if name.startswith("top_") and not ours:
        return "n-grams that occur once"
    if name.startswith("duplicate_") and "_gram_" in name:
        size = int(name.split("_")[1])
        return "joined words" if duplicate_characters(words_of(text), size) / len(text) == ours else UNKNOWN
    if name == "alphabetic_word_ratio" and any(character.isalpha() != has(character, LETTER) for character in text):
        return "Unicode versions"
    if name == "mean_word_length" and math.isnan(theirs) and not ours:
        return "texts without words"
    if name == "c4_unterminated_lines" and theirs - ours == sum(not line.strip() for line in text.splitlines()):
        return "blank lines"
    if name.startswith("c4_"):
        return cause_in_lines(text)
    return UNKNOWN


def cause_in_lines(text: str) -> str:
    """Return why C4's lines of a text differ."""
    if any(CITATION.sub("", line.strip()) != re.sub(rf"(?:{CITATION.pattern})+\Z", "", line.strip())
           for line in text.splitlines()):  # fmt: skip
        return "citations inside lines"
    if any(not character.isascii() and character.lower()[:1].isascii() for character in text):
        return "letters like the Kelvin sign"
    return UNKNOWN


def causes_of_verdict(name: str, text: str, answers: tuple[str, str, str], different: Mapping[str, str]) -> str:
    """Return why two verdicts differ. answers: ours, the peer's, and the peer's with our words. different: the causes
    of the numbers that differ.
    """
    ours, theirs, plain = answers
    if theirs.startswith("error"):
        return "a tokenizer that is not installed" if theirs == "error: ImportError" else theirs
    if plain == ours:
        return "sentences" if name == "c4" else "words"
    if name == "c4" and {ours, plain} == {"lorem_ipsum", "curly_brackets"}:
        return "which line comes first"
    found = {different.get(NUMBERS.get(answer, ""), "") for answer in (ours, plain)} - {""}
    if found:
        return ", ".join(sorted(found)) + ("" if theirs == plain else ", and words")
    if name == "c4":
        return cause_in_lines(text)
    return UNKNOWN
