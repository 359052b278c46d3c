"""The spans of substrings are those that a plain reference finds, whatever the partitions and the texts."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.engine.exchange import read_runs, sorted_blocks
from datakit.engine.task import Output
from datakit.passages.config import SearchConfig
from datakit.passages.stage import NAME, plan
from datakit.passages.substrings import find_stretches, undecided_texts
from datakit.storage.parquet import read_shard
from tests.support.data import need_data, texts_of
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import identity, normalized, step
from tests.support.passages.reference import Spans, expected

Shelves = dict[str, list[str]]


def searched(root: Path, sources: Shelves, searches: dict[str, SearchConfig], bits: int = 0) -> Output:
    plain: dict[str, Any] = {name: msgspec.to_builtins(one) for name, one in searches.items()}
    inputs = [normalized(root / "n", source, texts, bits) for source, texts in sources.items()]
    made = step(root / "out", NAME, inputs, searches=plain, drop=[])
    return run_plan_inline(plan(made), str(root / "out"))[0]


def spans(root: Path, output: Output, name: str) -> Spans:
    """The spans of a search that the step has written."""
    return {
        (part.source, row["id"]): [(one["start"], one["stop"]) for one in row[name]]
        for part in output.partitions
        for row in read_shard(str(root / "out" / part.path)).to_pylist()
        if row[name]
    }


def substrings(least: int, within: str = "dataset") -> SearchConfig:
    return SearchConfig("substring", within, least, ignore=())


def found(sources: Shelves, config: SearchConfig, bits: int = 0) -> Spans:
    with tempfile.TemporaryDirectory() as folder:
        return spans(Path(folder), searched(Path(folder), sources, {"equal": config}, bits), "equal")


alphabets = st.sampled_from(["a", "ab", "abcd", "é", "aé日😀", "😀𝄞", "\n a"])


@st.composite
def shelves(draw: st.DrawFn) -> Shelves:
    """Texts made of few phrases, some of which are repeated many times."""
    letters = draw(alphabets)
    phrases = draw(st.lists(st.text(letters, min_size=1, max_size=60), min_size=1, max_size=4))
    parts = st.tuples(st.sampled_from(phrases), st.sampled_from([1, 1, 1, 2, 30])).map(lambda one: one[0] * one[1])
    texts = st.lists(parts, max_size=7).map("".join).filter(lambda text: bool(text.strip()))
    chosen = draw(st.lists(st.lists(texts, max_size=5), min_size=1, max_size=2))
    return {f"source{number}": texts for number, texts in enumerate(chosen)}


@settings(max_examples=80, deadline=None)
@given(shelves(), st.integers(32, 60), st.sampled_from(["dataset", "document"]), st.integers(0, 2))
def test_spans_are_those_of_the_reference(sources: Shelves, least: int, within: str, bits: int) -> None:
    config = substrings(least, within)
    with tempfile.TemporaryDirectory() as folder:
        searches = {"equal": config, "lines": SearchConfig("line", min_bytes=1), "other": substrings(32)}
        output = searched(Path(folder), sources, searches, bits)
        for name, search in searches.items():
            wanted = expected(sources, search)
            assert spans(Path(folder), output, name) == wanted
            counts = [one["searches"][name] for one in output.details["sources"].values()]
            assert sum(one["marked"] for one in counts) == sum(map(len, wanted.values()))
            assert sum(one["documents"] for one in counts) == len(wanted)
        compared = sum(one["searches"]["equal"]["found"] for one in output.details["sources"].values())
    lengths = [len(text.encode()) for texts in sources.values() for text in set(texts)]
    assert compared == sum(max(0, length - least + 1) for length in lengths)


def fibonacci(length: int) -> str:
    before, text = "b", "a"
    while len(text) < length:
        before, text = text, text + before
    return text[:length]


def thue_morse(length: int, letters: str) -> str:
    return "".join(letters[number.bit_count() % 2] for number in range(length))


HOSTILE: dict[str, list[str]] = {
    "one byte": ["x" * 5000, "x" * 40, "x" * 39, "y" + "x" * 300],
    "fibonacci": [fibonacci(3000), fibonacci(2000) + "!" + fibonacci(1500)],
    "thue-morse": [thue_morse(3000, "ab"), thue_morse(2000, "ba")],
    "four bytes": ["😀𝄞" * 300, "𝄞😀" * 100 + "😀" * 50],
    "short": ["a", "b" * 39, "c" * 40],
    "equal parts": ["ab" * 500 + "c", "ab" * 500 + "d", "ab" * 499 + "e", "z" + "ab" * 500],
}


@pytest.mark.parametrize("within", ["dataset", "document"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts(name: str, within: str) -> None:
    config, sources = substrings(40, within), {"web": HOSTILE[name]}
    assert found(sources, config, bits=1) == expected(sources, config)


def test_nothing_is_found_if_all_texts_are_shorter() -> None:
    assert found({"web": ["same text " * 50, "same text " * 49]}, substrings(1 << 15)) == {}


def test_long_texts_are_searched_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, batches, sorted blocks and their windows end anywhere."""
    generator = random.Random(3)
    words = ["".join(generator.choices("abcdefgh", k=generator.randint(1, 40))) for _ in range(40)]
    texts = [" ".join(generator.choices(words, k=150)) + "-" * generator.randint(0, 200) for _ in range(20)]
    for module, name, value in (
        (find_stretches, "BLOCK", 1), (find_stretches, "LEAST_ROOM", 1), (undecided_texts, "HASHED", 50),
        (undecided_texts, "COPIED_BYTES", 500), (sorted_blocks, "BLOCK_BYTES", 20_000),
        (sorted_blocks, "WINDOW_BYTES", 3_000), (sorted_blocks, "SAMPLE_BYTES", 500),
        (read_runs, "PIECE_BYTES", 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    find_stretches.settings_of.cache_clear()
    for within in ("dataset", "document"):
        config, sources = substrings(50, within), {"web": texts[:12], "books": texts[12:]}
        assert found(sources, config, bits=1) == expected(sources, config)
    find_stretches.settings_of.cache_clear()


def test_planted_substrings_are_found_exactly() -> None:
    """Parts of real texts, copied into other documents, are marked from their first to their last character."""
    texts = texts_of(need_data() / "text" / "tldr.parquet")[:200]
    planted = "Ein Satz, der sonst nirgends steht – мир, 世界 🌍: " + " ".join(f"n{number}" for number in range(40))
    size, hosts = len(planted.encode()), dict[str, int]()
    for number, text in enumerate(texts[:20]):
        border = chr(0x4E00 + number)  # no two hosts have the same character before or after the planted text
        hosts[f"{text[:100]}{border}{planted}{border}{text[100:]}"] = len(f"{text[:100]}{border}".encode())
    marked = found({"web": [*hosts, *texts[20:]]}, substrings(size - 20))
    first, *others = sorted(hosts, key=identity)
    for host in others:
        span = (hosts[host], hosts[host] + size)
        assert [one for one in marked["web", identity(host)] if one[0] < span[1] and span[0] < one[1]] == [span]
    assert not any(one[0] <= hosts[first] < one[1] for one in marked.get(("web", identity(first)), []))


def without(text: str, cut: Sequence[tuple[int, int]]) -> tuple[str, list[int]]:
    """The text without its spans, and where these were."""
    data, kept, joints, last = text.encode(), b"", list[int](), 0
    for start, stop in cut:
        kept += data[last:start]
        joints.append(len(kept))
        last = stop
    return (kept + data[last:]).decode(), joints


@settings(max_examples=40, deadline=None)
@given(shelves())
def test_after_a_cut_only_substrings_across_cuts_occur_again(sources: Shelves) -> None:
    config, marked = substrings(32), found(sources, substrings(32))
    cut = {
        (source, text): without(text, marked.get((source, identity(text)), []))
        for source, texts in sources.items()
        for text in texts
    }
    remaining = {
        source: [cut[source, text][0] for text in texts if cut[source, text][0]] for source, texts in sources.items()
    }
    joints = {(source, identity(text)): places for (source, _), (text, places) in cut.items()}
    for place, again in expected(remaining, config).items():
        assert all(any(start < joint < stop for joint in joints[place]) for start, stop in again)
