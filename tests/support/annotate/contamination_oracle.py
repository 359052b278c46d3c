"""Finds n-grams of evaluation items in documents with Python strings and sets: slow, but easy to check by reading."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from datakit.annotate.contamination.annotator import ContaminationAnnotator
from datakit.annotate.contamination.config import Config, EvaluationFiles
from datakit.text.unicode_words import ALONE, CHARACTER, WORD, character_table

Words = list[tuple[str, int, int]]  # each word in lowercase, its first byte, and the byte after its last one


def words_of(text: str) -> Words:
    """Return the words of a text, character by character."""
    words: Words = []
    position, open_word = 0, False
    for character in text:
        entry, size = int(character_table()[ord(character)]), len(character.encode())
        lower = chr(entry & int(CHARACTER))
        if entry & int(WORD) and open_word:
            before, start, _ = words.pop()
            words.append((before + lower, start, position + size))
        elif entry & int(WORD | ALONE):
            words.append((lower, position, position + size))
        open_word = bool(entry & int(WORD))
        position += size
    return words


@dataclass(frozen=True)
class Rules:
    """The options of decontamination."""

    ngram: int = 3
    min_words: int = 2
    min_characters: int = 3
    max_hits: int = 100


def item_ngrams(passages: Sequence[str], rules: Rules) -> set[tuple[str, ...]]:
    """Return the n-grams of an item."""
    ngrams: set[tuple[str, ...]] = set()
    for passage in passages:
        words = tuple(word for word, _, _ in words_of(passage))
        if len(words) >= rules.ngram:
            ngrams |= {words[i : i + rules.ngram] for i in range(len(words) - rules.ngram + 1)}
        elif len(words) >= rules.min_words and sum(map(len, words)) >= rules.min_characters:
            ngrams.add(words)
    return ngrams


def merged(spans: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    """Merge spans that overlap or touch."""
    result: list[dict[str, int]] = []
    for start, stop in sorted(spans):
        if result and start <= result[-1]["stop"]:
            result[-1]["stop"] = max(result[-1]["stop"], stop)
        else:
            result.append({"start": start, "stop": stop})
    return result


def expected(text: str, items: Sequence[set[tuple[str, ...]]], rules: Rules, name: str = "one") -> dict[str, object]:
    """Return the row of the annotator for a text. items: the n-grams of each item of one set."""
    words = words_of(text)
    places: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for length in range(1, rules.ngram + 1):
        for i in range(len(words) - length + 1):
            ngram = tuple(word for word, _, _ in words[i : i + length])
            places.setdefault(ngram, []).append((words[i][1], words[i + length - 1][2]))
    hits, everything = [], []
    for number, ngrams in enumerate(items):
        found = ngrams & places.keys()
        spans = [span for ngram in found for span in places[ngram]]
        everything += spans
        if found:
            hits.append(
                {"set": name, "item": number, "matches": len(found), "ngrams": len(ngrams),
                 "overlap": len(found) / len(ngrams), "spans": merged(spans)}
            )  # fmt: skip
    hits.sort(key=lambda hit: (-hit["overlap"], hit["item"]))
    spans = [{**span, "kind": "evaluation"} for span in merged(everything)]
    return {"items": len(hits) or None, "hits": hits[: rules.max_hits], "spans": spans}


def annotator_of(folder: Path, items: Sequence[Sequence[str]], rules: Rules) -> ContaminationAnnotator:
    """Return an annotator for items, each given by its passages."""
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps({"texts": [*item]}) + "\n" for item in items))
    sets = {"one": EvaluationFiles(str(path), ("texts",))}
    return Config(sets, rules.ngram, rules.min_words, rules.min_characters, rules.max_hits).annotator()


def annotated(annotator: ContaminationAnnotator, texts: Sequence[str]) -> list[dict[str, object]]:
    """Return the annotator's rows for these texts."""
    result = annotator.annotate(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    result.validate(full=True)
    assert result.schema == annotator.schema
    return result.to_pylist()
