"""States the filters of Gopher, C4, mC4 and FineWeb in plain Python, with their published thresholds: the oracle of the
rule sets. Slow. A verdict is the name of the first rule that drops a text; empty if the text is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from datakit.annotate.heuristics.kernels.characters import LETTER, TERMINAL, VISIBLE
from tests.support.annotate.heuristics import (
    c4_class,
    duplicate_characters,
    duplicates,
    has,
    sentences,
    top_characters,
    words_of,
)

GOPHER_STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
TOP = {2: 0.20, 3: 0.18, 4: 0.16}
DUPLICATE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
Reasons = Iterator[tuple[str, bool]]


def share(items: Sequence[bool]) -> float:
    """Return the share of true items; 0 if there are none."""
    return sum(items) / len(items) if items else 0.0


def gopher_quality(text: str) -> Reasons:
    """Yield Gopher's quality rules."""
    words, lines = words_of(text), text.splitlines()
    visible = [word for word in words if any(has(character, VISIBLE) for character in word)]
    mean = sum(map(len, visible)) / len(visible) if visible else 0.0
    yield "few_words", len(visible) < 50
    yield "many_words", len(visible) > 100_000
    yield "short_words", mean < 3
    yield "long_words", mean > 10
    yield "hashes", text.count("#") > 0.1 * len(words)
    yield "ellipses", text.count("...") + text.count("…") > 0.1 * len(words)
    yield "bullet_lines", share([line.lstrip()[:1] in {"•", "-"} for line in lines]) > 0.9
    yield "ellipsis_lines", share([line.rstrip().endswith(("...", "…")) for line in lines]) > 0.3
    yield "few_alphabetic_words", share([any(has(one, LETTER) for one in word) for word in words]) < 0.8
    yield "few_stop_words", len(GOPHER_STOP_WORDS & set(words)) < 2


def gopher_repetition(text: str) -> Reasons:
    """Yield Gopher's repetition rules."""
    words, size = words_of(text), max(len(text), 1)
    yield "no_text", not text
    for name, pieces in (
        ("paragraph", re.split("\n{2,}", text.strip()) if text.strip() else []),
        ("line", [line for line in text.split("\n") if line]),
    ):
        repeated = duplicates(pieces)
        yield f"duplicate_{name}s", len(repeated) / max(len(pieces), 1) > 0.3
        yield f"duplicate_{name}_characters", len("".join(repeated)) / size > 0.2
    for n, most in TOP.items():
        yield f"top_{n}_grams", top_characters(words, n) / size > most
    for n, most in DUPLICATE.items():
        yield f"duplicate_{n}_grams", duplicate_characters(words, n) / size > most


def c4(text: str) -> Reasons:
    """Yield C4's rules for documents."""
    classes = [(c4_class(line, 3, 1000), line) for line in text.splitlines() if line.strip()]
    yield "lorem_ipsum", any(one == "lorem_ipsum" for one, _ in classes)
    yield "curly_brackets", any(one == "curly_bracket" for one, _ in classes)
    yield "few_sentences", sum(sentences(line) for one, line in classes if one == "kept") < 5


def mc4(text: str) -> Reasons:
    """Yield mC4's rule."""
    yield "few_long_lines", sum(len(line) >= 200 for line in text.split("\n")) < 3


def fineweb_quality(text: str) -> Reasons:
    """Yield FineWeb's own rules."""
    lines = [line for line in text.split("\n") if line.strip()]
    yield "no_text", not lines
    yield "unterminated_lines", share([has(line.rstrip()[-1], TERMINAL) for line in lines]) < 0.12
    yield "short_lines", share([len(line) <= 30 for line in lines]) > 0.67
    repeated = len("".join(duplicates(lines)))
    yield "duplicate_line_characters", repeated / max(len(text.replace("\n", "")), 1) > 0.01
    yield "list", text.count("\n") / max(len(words_of(text)), 1) > 0.3


FILTERS: dict[str, Callable[[str], Reasons]] = {
    "gopher_quality": gopher_quality,
    "gopher_repetition": gopher_repetition,
    "c4": c4,
    "mc4": mc4,
    "fineweb_quality": fineweb_quality,
}


def verdict(name: str, text: str) -> str:
    """Return the verdict of a filter."""
    return next((reason for reason, drops in FILTERS[name](text) if drops), "")
