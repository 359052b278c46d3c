"""Plants items of personal data in texts, and compares what is found with what was planted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from datakit.annotate.personal.config import PersonalConfig
from tests.support.annotate.personal_items import MAKERS

AROUND = ((" ", " "), ("\n", "\n"), (" (", ") "), (" ", ", "), (" ", ". "), (' "', '" '), (" <", "> "), ("、", "。"))
Finding = tuple[str, int, int]  # kind, start and stop


@dataclass(frozen=True)
class Planted:
    """A text, and the items in it, in order."""

    text: str
    items: list[Finding]


def spans_of(texts: Sequence[str], kinds: tuple[str, ...] = ()) -> list[list[Finding]]:
    """Return what the annotator finds in each text."""
    annotator = (PersonalConfig(kinds) if kinds else PersonalConfig()).annotator()
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.large_string())], names=["text"])
    lists = annotator.annotate(batch)["spans"].to_pylist()
    return [[(span["kind"], span["start"], span["stop"]) for span in spans] for spans in lists]


def found_in(text: str, *kinds: str) -> list[tuple[str, str]]:
    """Return the kind and the text of each finding."""
    data = text.encode()
    return [(kind, data[start:stop].decode()) for kind, start, stop in spans_of([text], kinds)[0]]


def planted(texts: Sequence[str], items: int, seed: int) -> list[Planted]:
    """Plant items, in equal numbers of each kind, between the words of texts; return the texts that have any."""
    chance = random.Random(seed)
    places: dict[int, list[tuple[str, str, str, str]]] = {}
    for i in range(items):
        maker = MAKERS[i % len(MAKERS)]
        item = maker(chance)
        before, text, after = item if isinstance(item, tuple) else ("", item, "")
        left, right = chance.choice(AROUND)
        places.setdefault(chance.randrange(len(texts)), []).append((maker.__name__, left + before, text, after + right))
    return [_with_items(texts[number], places[number], chance) for number in sorted(places)]


def _with_items(text: str, items: list[tuple[str, str, str, str]], chance: random.Random) -> Planted:
    gaps = [i for i, character in enumerate(text) if character == " "] or [len(text)]
    spots = sorted(chance.choice(gaps) for _ in items)
    data, last, truth = b"", 0, []
    for spot, (kind, before, item, after) in zip(spots, items, strict=True):
        data += (text[last:spot] + before).encode()
        truth.append((kind, len(data), len(data) + len(item.encode())))
        data += (item + after).encode()
        last = spot
    return Planted((data + text[last:].encode()).decode(), truth)


@dataclass(frozen=True)
class Score:
    """The number of items, of those that are found exactly, and of findings that are no item, by kind."""

    items: Counter[str]
    exact: Counter[str]
    wrong: Counter[str]
    missed: list[str]


def score(texts: Sequence[Planted]) -> Score:
    """Compare findings with what was planted. Items that overlap are one another's surroundings and count as usual."""
    items, exact, wrong, missed = Counter[str](), Counter[str](), Counter[str](), []
    for planted_text, found in zip(texts, spans_of([one.text for one in texts]), strict=True):
        truth, data = set(planted_text.items), planted_text.text.encode()
        items.update(kind for kind, _, _ in truth)
        exact.update(kind for kind, _, _ in truth.intersection(found))
        wrong.update(kind for kind, _, _ in set(found) - truth)
        missed += [f"{kind}: {data[start:stop].decode()}" for kind, start, stop in sorted(truth - set(found))]
    return Score(items, exact, wrong, missed)
