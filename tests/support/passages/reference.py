"""A plain reference of the search for passages: loops over characters and dictionaries."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from datakit.passages.config import DOCUMENT, PARAGRAPH, SUBSTRING, SearchConfig
from datakit.text.unicode_words import ALONE, CHARACTER, WORD, character_table
from datakit.text.white_space import WHITE_SPACE
from tests.support.partitions import identity

Spans = dict[tuple[str, str], list[tuple[int, int]]]  # (source, id) -> spans in bytes


def is_blank(text: str) -> bool:
    """True if a text is white space only."""
    return all(character in WHITE_SPACE for character in text)


def passages_of(text: str, unit: str) -> Iterator[tuple[int, int, str]]:
    """Yield the span of each passage, in characters, and its text."""
    lines = list(re.finditer(r"[^\n]*\n|[^\n]+$", text))
    filled = [line for line in lines if not is_blank(line[0])]
    if unit != PARAGRAPH:
        yield from ((line.start(), line.end(), line[0].removesuffix("\n")) for line in filled)
        return
    groups: list[list[re.Match[str]]] = []
    for line in filled:
        if groups and groups[-1][-1].end() == line.start():
            groups[-1].append(line)
        else:
            groups.append([line])
    ends = [*(group[0].start() for group in groups[1:]), len(text)]
    for group, end in zip(groups, ends[: len(groups)] if groups else [], strict=True):
        yield group[0].start(), end, "".join(line[0] for line in group).removesuffix("\n")


def normal_form(passage: str, ignore: Sequence[str]) -> bytes:
    """The bytes of a passage that are compared, without the differences in `ignore`."""
    table, kept = character_table(), list[str]()
    for character in passage:
        entry = int(table[ord(character)])
        in_word = entry & int(WORD | ALONE)
        if character in WHITE_SPACE:
            kept.append(character)
        elif "punctuation" in ignore and not in_word:
            continue
        elif "digits" in ignore and character in "0123456789":
            kept.append("0")
        else:
            kept.append(chr(entry & int(CHARACTER)) if "case" in ignore and in_word else character)
    whole = "".join(kept)
    if "white_space" in ignore:
        whole = " ".join(re.split(f"[{WHITE_SPACE}]+", whole.strip(WHITE_SPACE)))
    return whole.encode()


def expected(sources: Mapping[str, Sequence[str]], config: SearchConfig) -> Spans:
    """Return the spans of all documents that have some. sources: the texts that stay, by source, in recipe order."""
    if config.unit == SUBSTRING:
        return expected_substrings(sources, config)
    places = defaultdict[object, list[tuple[str, str, int, int]]](list)
    for source, texts in sources.items():
        for text in sorted(set(texts), key=identity):
            for start, stop, passage in passages_of(text, config.unit):
                form = normal_form(passage, config.ignore)
                words = len(re.findall(f"[^{WHITE_SPACE}]+", passage))
                if len(form) < config.least or words < config.min_words:
                    continue
                span = len(text[:start].encode()), len(text[:stop].encode())
                group = (source, identity(text), form) if config.within == DOCUMENT else form
                places[group].append((source, identity(text), *span))
    found = defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for group in places.values():
        if len(group) > config.threshold:
            for source, name, start, stop in group[config.keep :]:
                found[source, name].append((start, stop))
    return {place: sorted(spans) for place, spans in found.items()}


def expected_substrings(sources: Mapping[str, Sequence[str]], config: SearchConfig) -> Spans:
    """Return the spans of all documents with copied substrings: every substring is compared with all earlier ones."""
    first: dict[object, tuple[tuple[str, str], int]] = {}
    found = defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for source, texts in sources.items():
        for text in sorted(set(texts), key=identity):
            place, data = (source, identity(text)), text.encode()
            for start in range(len(data) - config.least + 1):
                stop = start + config.least
                group = (place, data[start:stop]) if config.within == DOCUMENT else data[start:stop]
                home, before = first.setdefault(group, (place, start))
                if home != place or before + config.least <= start:
                    found[place].append(whole_characters(data, start, stop))
    return {place: joined(spans) for place, spans in found.items()}


def whole_characters(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """The characters that lie between two positions as a whole."""
    while data[start] & 0xC0 == 0x80:
        start += 1
    while stop < len(data) and data[stop] & 0xC0 == 0x80:
        stop -= 1
    return start, stop


def joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of spans; those that touch become one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found
