"""The spans of a step are those that a plain reference finds, whatever the partitions, and each is counted."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.engine.task import Output, StepInput
from datakit.errors import CorruptError
from datakit.passages.config import SearchConfig
from datakit.passages.find_passages import BATCH
from datakit.passages.stage import NAME, plan
from datakit.storage.parquet import read_shard
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import attributes, identity, normalized, step
from tests.support.passages.reference import Spans, expected

Searches = dict[str, SearchConfig]


def search(root: Path, inputs: Sequence[StepInput], searches: Searches, drop: Sequence[str] = ()) -> Output:
    plain: dict[str, Any] = {name: msgspec.to_builtins(one) for name, one in searches.items()}
    made = step(root / "out", NAME, inputs, searches=plain, drop=list(drop))
    return run_plan_inline(plan(made), str(root / "out"))[0]


def spans(root: Path, output: Output, name: str) -> Spans:
    """The spans of a search that the step has written."""
    found: Spans = {}
    for part in output.partitions:
        for row in read_shard(str(root / "out" / part.path)).to_pylist():
            if row[name]:
                found[part.source, row["id"]] = [(one["start"], one["stop"]) for one in row[name]]
    return found


words = st.sampled_from(["a", "B", "ß", "Éa", "é", "日本", "12", "1 3", ",", "—", " ", "\u3000", "\t", "\r", "😀", "Ⱥ"])
lines = st.lists(words, max_size=4).map("".join)
texts = st.lists(lines, min_size=1, max_size=6).map("\n".join).filter(lambda text: bool(text.strip()))
differences = st.lists(st.sampled_from(["white_space", "case", "digits", "punctuation"]), unique=True)


@st.composite
def configs(draw: st.DrawFn) -> SearchConfig:
    keep = draw(st.integers(0, 2))
    above = draw(st.one_of(st.none() if keep else st.nothing(), st.integers(max(1, keep), 3)))
    return SearchConfig(
        draw(st.sampled_from(["line", "paragraph"])), draw(st.sampled_from(["dataset", "document"])),
        draw(st.integers(1, 4)), draw(st.integers(0, 2)), tuple(draw(differences)), keep, above,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(texts, max_size=5), min_size=1, max_size=2),
    st.lists(configs(), min_size=1, max_size=3),
    st.integers(0, 2),
)
def test_spans_are_those_of_the_reference(shelves: list[list[str]], found: list[SearchConfig], bits: int) -> None:
    sources = {f"source{number}": texts for number, texts in enumerate(shelves)}
    searches = {f"search{number}": config for number, config in enumerate(found)}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        inputs = [normalized(root / "n", source, texts, bits) for source, texts in sources.items()]
        output = search(root, inputs, searches)
        for name, config in searches.items():
            wanted = expected(sources, config)
            assert spans(root, output, name) == wanted
            counts = [one["searches"][name] for one in output.details["sources"].values()]
            sizes = [stop - start for mine in wanted.values() for start, stop in mine]
            assert sum(one["marked"] for one in counts) == len(sizes)
            assert sum(one["marked_bytes"] for one in counts) == sum(sizes)
            assert sum(one["documents"] for one in counts) == len(wanted)


TEXTS = [f"The same line in every text.\nand number {number}" for number in range(20)]
LINES = {"lines": SearchConfig("line", min_bytes=10)}


def test_documents_that_leave_are_not_compared(tmp_path: Path) -> None:
    source = normalized(tmp_path / "n", "web", TEXTS)
    first, second, third, *others = sorted(TEXTS, key=identity)
    marks = {identity(first): "exact", identity(second): "fuzzy"}
    output = search(tmp_path, [source, attributes(tmp_path / "d", {"web": marks})], LINES, ["exact", "fuzzy"])
    assert sorted(name for _, name in spans(tmp_path, output, "lines")) == sorted(map(identity, others))
    counts = output.details["sources"]["web"]
    assert (counts["documents"], counts["left_out"]) == (18, 2)
    assert identity(third) not in str(spans(tmp_path, output, "lines"))


def test_duplicates_that_select_keeps_are_compared(tmp_path: Path) -> None:
    source = normalized(tmp_path / "n", "web", TEXTS)
    first, second, *others = sorted(TEXTS, key=identity)
    marks = {identity(first): "exact", identity(second): "fuzzy"}
    output = search(tmp_path, [source, attributes(tmp_path / "d", {"web": marks})], LINES, ["exact"])
    assert sorted(name for _, name in spans(tmp_path, output, "lines")) == sorted(map(identity, others))


def test_marks_of_another_partition_are_refused(tmp_path: Path) -> None:
    source = normalized(tmp_path / "n", "web", TEXTS)
    strange = attributes(tmp_path / "d", {"web": {identity("strange"): "exact"}})
    with pytest.raises(CorruptError, match="which is not in"):
        search(tmp_path, [source, strange], LINES, ["exact"])


def test_source_order_decides_which_copy_stays(tmp_path: Path) -> None:
    inputs = [normalized(tmp_path / "n", source, TEXTS[at : at + 1]) for at, source in enumerate(("b", "a"))]
    output = search(tmp_path, inputs, LINES)
    assert spans(tmp_path, output, "lines") == {("a", identity(TEXTS[1])): [(0, 29)]}


def test_different_lines_of_a_long_text_are_not_copies(tmp_path: Path) -> None:
    """A text with more lines than are found at a time."""
    text = "\n".join(f"A line with the number {number}" for number in range(2 * BATCH + 5))
    output = search(tmp_path, [normalized(tmp_path / "n", "web", [text])], LINES)
    counts = output.details["sources"]["web"]["searches"]["lines"]
    assert (counts["found"], counts["marked"]) == (2 * BATCH + 5, 0)


def test_step_without_documents_writes_empty_tables(tmp_path: Path) -> None:
    output = search(tmp_path, [normalized(tmp_path / "n", "web", [], bits=1)], LINES)
    assert [part.rows for part in output.partitions] == [0, 0]
