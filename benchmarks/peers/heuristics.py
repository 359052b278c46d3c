"""Runs datatrove's filters on texts: their verdicts and CPU-seconds, and the numbers that they compare with thresholds.
Imports nothing from datakit.

    python heuristics.py TEXTS.parquet SETTINGS.json OUTPUT.json [--guard SECONDS]

TEXTS has the columns text and list; list is FineWeb-2's name of the text's language, or empty. Every filter runs twice:
once as it is, and once with the words and sentences of the rules in SETTINGS, so that only formulas differ. The numbers
come from the second run, in which the thresholds are objects that note what they are compared with. OUTPUT has one
object per text. `--guard` runs each text in a process of its own, with that many CPU-seconds; what is missing in the
output was not finished.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datatrove.data import Document  # pyright: ignore[reportMissingImports]
from datatrove.pipeline.filters import (  # pyright: ignore[reportMissingImports]
    C4ParagraphFilter,
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    c4_filters,
    fineweb_quality_filter,
    gopher_quality_filter,
    gopher_repetition_filter,
)
from datatrove.utils.text import split_into_sentences, split_into_words  # pyright: ignore[reportMissingImports]

Found = Iterator[tuple[str, Any]]
WORD_MODULES = (gopher_quality_filter, gopher_repetition_filter, fineweb_quality_filter)
NGRAMS = {"top": range(2, 5), "duplicate": range(5, 11)}
MEMORY = 8 << 30  # bytes that a guarded process may have


class Threshold:
    """A threshold that notes the numbers with which it is compared, and that none of them crosses."""

    __array_ufunc__ = None  # numpy's numbers let this class compare

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def _note(self, number: Any) -> bool:
        self.numbers.append(float(number))
        return False

    __lt__ = __gt__ = _note


class CountingC4(C4QualityFilter):
    """C4's filter, with the counts of its lines."""

    counts: Counter[str]

    def stat_update(self, *labels: str, **_: Any) -> None:
        """Count a line."""
        self.counts.update(labels)


class OurSplitting:
    """The words and sentences by the rules in the settings; the words of the last text are kept."""

    def __init__(self, rules: dict[str, Any]) -> None:
        alone = "".join(f"{chr(first)}-{chr(last)}" for first, last in rules["alone"])
        self._word = re.compile(rf"[{alone}]|[^\s{alone}]+")
        self._terminal, self._closers = frozenset(rules["terminal"]), rules["closers"]
        self._citations = re.compile(r"(?:\[[0-9]*]|\[edit]|\[citation needed])+\Z")
        self._text, self._words = "", [""][:0]

    def words(self, text: str, _: str = "") -> list[str]:
        """Return the words of a text."""
        if text is not self._text:
            self._text, self._words = text, self._word.findall(text)
        return self._words

    def sentences(self, line: str, _: str = "") -> list[None]:
        """Return one item per sentence of a line."""
        count, ended = 0, True
        for word in self._word.findall(line):
            bare = self._citations.sub("", word).rstrip(self._closers)
            ended = bare[-1:] in self._terminal
            count += ended
        return [None] * (count + (not ended))


def use(words: Any, sentences: Any) -> None:
    """Let the filters split texts with these functions."""
    for module in WORD_MODULES:
        module.split_into_words = words
    c4_filters.split_into_sentences = sentences


def standard() -> dict[str, Any]:
    """Return the filters with their own thresholds. C4 is last: it drives the words out of datatrove's cache."""
    filters = {"gopher_quality": GopherQualityFilter(), "gopher_repetition": GopherRepetitionFilter()}
    return filters | {"fineweb_quality": FineWebQualityFilter(), "mc4": C4ParagraphFilter(), "c4": C4QualityFilter()}


def fineweb2(limits: dict[str, float], stop_words: list[str], language: str) -> tuple[Any, ...]:
    """Return FineWeb-2's filters for a language, in its order."""
    top = tuple((n, limits[f"top_{n}_grams"]) for n in NGRAMS["top"])
    duplicate = tuple((n, limits[f"duplicate_{n}_grams"]) for n in NGRAMS["duplicate"])
    return (
        GopherRepetitionFilter(
            dup_line_frac=limits["duplicate_lines"], dup_para_frac=0, dup_line_char_frac=0, dup_para_char_frac=0,
            top_n_grams=top, dup_n_grams=duplicate, language=language,
        ),
        FineWebQualityFilter(
            line_punct_thr=limits.get("unterminated_lines", 0), short_line_thr=999, language=language,
            char_duplicates_ratio=limits["duplicate_line_characters"], new_line_ratio=limits["list"],
        ),
        GopherQualityFilter(
            min_doc_words=limits["few_words"], max_doc_words=limits["many_words"],
            min_avg_word_length=limits.get("short_words", 0), max_avg_word_length=limits["long_words"],
            max_symbol_word_ratio=limits["hashes"], max_bullet_lines_ratio=limits["bullet_lines"],
            max_ellipsis_lines_ratio=limits["ellipsis_lines"],
            max_non_alpha_words_ratio=limits["few_alphabetic_words"], min_stop_words=limits["few_stop_words"],
            stop_words=stop_words, language=language,
        ),
    )  # fmt: skip


def verdict(filters: tuple[Any, ...], text: str) -> str:
    """Return the reason for which a text is dropped; empty if it is kept."""
    for one in filters:
        try:
            answer = one.filter(Document(text=text, id=""))
        except Exception as error:  # noqa: BLE001 - what a filter raises is a result
            return f"error: {type(error).__name__}"
        if answer is not True:
            return answer[1]
    return ""


def timed_verdicts(prefix: str, text: str, words: Any, filters: dict[str, Any]) -> Found:
    """Yield the verdicts of filters with their CPU-seconds, and those of splitting the text into words."""
    start = time.process_time()
    words(text)
    yield f"{prefix}_seconds.words", time.process_time() - start
    for name, one in filters.items():
        start = time.process_time()
        answer = verdict((one,), text)
        yield f"{prefix}_seconds.{name}", time.process_time() - start
        yield f"{prefix}.{name}", answer


def numbers(text: str) -> Found:
    """Yield the numbers that the filters compare with thresholds, by the columns of datakit."""
    t: dict[str, Threshold] = {}

    def note(name: str) -> Threshold:
        return t.setdefault(name, Threshold())

    gopher = GopherQualityFilter(
        note("non_symbol_words"), note("non_symbol_words"), note("mean_word_length"), note("mean_word_length"),
        note("symbols"), note("bullet_line_ratio"), note("ellipsis_line_ratio"), note("alphabetic_word_ratio"),
        note("stop_words_gopher"),
    )  # fmt: skip
    repetition = GopherRepetitionFilter(
        note("duplicate_line_ratio"), note("duplicate_paragraph_ratio"), note("duplicate_line_character_ratio"),
        note("duplicate_paragraph_character_ratio"),
        *(tuple((n, note(f"{kind}_{n}_gram_character_ratio")) for n in range_) for kind, range_ in NGRAMS.items()),
    )  # fmt: skip
    fineweb = FineWebQualityFilter(
        line_punct_thr=note("terminal_line_ratio"), short_line_thr=note("short_line_ratio"),
        char_duplicates_ratio=note("duplicate_text_line_character_ratio"), new_line_ratio=note("newline_ratio"),
    )  # fmt: skip
    for one in (gopher, repetition, fineweb):
        answer = verdict((one,), text)
        if answer.startswith("error"):
            yield f"error.{type(one).__name__}", answer
    symbols = t.pop("symbols").numbers
    yield from zip((f"number.{name}" for name in ("hash_ratio", "ellipsis_ratio")), symbols, strict=False)
    for name, threshold in t.items():
        if threshold.numbers:
            yield f"number.{name}", threshold.numbers[0]


def c4_numbers(text: str) -> Found:
    """Yield the number of sentences and the counts of C4's lines, unless a line drops the document at once."""
    sentences, c4 = Threshold(), CountingC4()
    c4.min_num_sentences, c4.counts = sentences, Counter()
    verdict((c4,), text)
    if sentences.numbers:
        yield "number.c4_sentences", sentences.numbers[0]
        labels = {"too_long_word": "long_word", "no_terminal_punc": "unterminated", "too_few_words": "short"}
        for label, name in (labels | {"javascript": "javascript", "policy": "policy"}).items():
            yield f"number.c4_{name}_lines", c4.counts[f"line-filter-{label}"]
        yield "number.c4_kept_lines", c4.counts["line-kept"]


class Comparison:
    """Runs all filters on a text. settings: see `main`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings, self._splitting, self._filters = settings, OurSplitting(settings), standard()

    def own(self, text: str, language: str) -> Found:
        """Yield the results of the filters as they are."""
        use(split_into_words, split_into_sentences)
        yield from self._verdicts("own", text, language, split_into_words)

    def ours(self, text: str, language: str) -> Found:
        """Yield the results of the filters with our words and sentences."""
        use(self._splitting.words, self._splitting.sentences)
        yield from self._verdicts("ours", text, language, self._splitting.words)
        yield from numbers(text)
        yield from c4_numbers(text)

    def _verdicts(self, prefix: str, text: str, language: str, words: Any) -> Found:
        yield from timed_verdicts(prefix, text, words, self._filters)
        if limits := self._settings["limits"].get(language):
            filters = fineweb2(limits, self._settings["stop_words"][language], language)
            yield f"{prefix}.fineweb2", verdict(filters, text)


def guarded(found: Found, seconds: int) -> Found:
    """Yield what a process of its own finds before it ends or has used its CPU-seconds."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with os.fdopen(write, "w") as pipe:
            for pair in found:
                print(json.dumps(pair), file=pipe, flush=True)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        for line in pipe:
            yield tuple(json.loads(line))  # pyright: ignore[reportReturnType]
    os.waitpid(child, 0)


def main() -> None:
    """Write the results of all texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("settings", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--guard", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the mean of no words
    settings, table = json.loads(options.settings.read_text()), pq.read_table(options.texts)
    comparison = Comparison(settings)
    for _ in comparison.own("Some words. And more.", ""):  # loads the word splitter
        pass
    rows: list[dict[str, Any]] = []
    for text, language in zip(table["text"].to_pylist(), table["list"].to_pylist(), strict=True):
        rows.append({})
        for found in (comparison.own(text, language), comparison.ours(text, language)):
            rows[-1].update(guarded(found, options.guard) if options.guard else found)
    options.output.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
