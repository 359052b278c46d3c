"""Final rules, equal texts and document buckets give the results of a plain computation in Python, whatever the
partitions.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from datakit.engine.task import Output
from datakit.select.final import equal_texts
from datakit.select.final import plan as final_plan
from datakit.select.stage import NAME, plan
from datakit.storage import parquet
from datakit.storage.parquet import read_shard
from tests.support.annotate.rules_inputs import annotated, listed
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import attributes, identity, normalized, step

EDITS = {"secret": {"spans": "personal.spans", "action": "mask", "replacement": "#"}}
RULES = [
    {"name": "kept", "where": "quality.words = 3", "action": "keep"},
    {"name": "gone", "where": "edited.removed_share > 0.4"},
    {"name": "weak", "lowest": 0.2, "by": "quality.score"},
    {"name": "small", "where": "edited.bytes < 9 AND edited.stretches_secret > 0"},
]
BUCKETS = [
    {"name": "high", "highest": 0.3, "by": "quality.score", "sources": ["a"]},
    {"name": "edited", "where": "edited.stretches > 0"},
]


@dataclass(frozen=True)
class Text:
    """A document: its text around a secret ("" if it has none), and its attributes."""

    source: str
    head: str
    secret: str
    score: float
    words: int
    duplicate: bool

    @property
    def text(self) -> str:
        return f"{self.head}[{self.secret}]" if self.secret else f"{self.head}[#]" if self.words == 5 else self.head

    @property
    def edited(self) -> str:
        return f"{self.head}[#]" if self.secret else self.text

    @property
    def id(self) -> str:
        return identity(self.text)


def texts(source: str) -> st.SearchStrategy[list[Text]]:
    one = st.builds(
        Text, st.just(source), st.sampled_from(["é" * n + "abcdefgh"[:n] for n in range(1, 7)]),
        st.sampled_from(["", "s", "secret", "秘密の文字列", "#"]), st.sampled_from([0.0, 0.25, 0.5, 1.5]),
        st.integers(0, 6), st.booleans(),
    )  # fmt: skip
    return st.lists(one, min_size=1, max_size=30, unique_by=lambda text: text.text)


def inputs(root: Path, documents: list[Text], bits: dict[str, int]) -> list[Any]:
    """The steps that select reads: texts, marks of dedup, and attributes."""
    sources = {name: [one for one in documents if one.source == name] for name in dict.fromkeys(bits)}
    steps = [normalized(root / "n", name, [one.text for one in mine], bits[name]) for name, mine in sources.items()]
    marks = {name: {one.id: "fuzzy" for one in mine if one.duplicate} for name, mine in sources.items()}
    tables = [annotated(root / f"annotate-{entry.source}", entry, facts(sources[str(entry.source)])) for entry in steps]
    return [*steps, attributes(root / "dedup", marks, bits), *tables]


def facts(mine: list[Text]) -> dict[str, dict[str, dict[str, Any]]]:
    spans = {
        one.text: {"spans": [{"start": len(one.head.encode()) + 1, "stop": len(one.text.encode()) - 1, "kind": "x"}]}
        for one in mine
        if one.secret
    }
    return {"quality": {one.text: {"score": one.score, "words": one.words} for one in mine}, "personal": spans}


def select(root: Path, documents: list[Text], bits: dict[str, int], **parameters: Any) -> Output:
    made = step(root / "out", NAME, inputs(root, documents, bits), **parameters)
    return run_plan_inline(plan(made), str(root / "out"))[0]


def stretches(one: Text) -> int:
    return int(one.edited != one.text)  # a text that already holds the replacement is not edited


def removed_share(one: Text) -> float:
    return stretches(one) * len(one.secret.encode()) / len(one.text.encode())


def lowest(population: list[Text], tenths: int) -> set[Text]:
    """The documents with the lowest scores; equal texts of several sources are treated alike."""
    keys = sorted((one.score, one.id) for one in population)[: len(population) * tenths // 10]
    return {one for one in population if keys and (one.score, one.id) <= keys[-1]}


def highest(population: list[Text], tenths: int) -> set[Text]:
    keys = sorted((one.score, one.id) for one in population)
    keys = keys[len(keys) - len(keys) * tenths // 10 :]
    return {one for one in population if keys and (one.score, one.id) >= keys[0]}


def final_reasons(staying: list[Text]) -> dict[Text, list[str]]:
    """The documents that rules remove, with all reasons, as plain Python finds them."""
    weak = lowest(staying, 2)
    found = {}
    for one in staying:
        applies = {
            "gone": removed_share(one) > 0.4,
            "weak": one in weak,
            "small": len(one.edited.encode()) < 9 and stretches(one) > 0,
        }
        if one.words != 3 and any(applies.values()):
            found[one] = sorted(f"final:{name}" for name, holds in applies.items() if holds)
    return found


def later_equal(staying: list[Text]) -> set[Text]:
    """The documents whose edited text equals that of an earlier document, if one of the two was edited."""
    groups: dict[str, list[Text]] = {}
    for one in sorted(staying, key=lambda one: (one.source, one.id)):
        groups.setdefault(one.edited, []).append(one)
    changed = [group for group in groups.values() if any(one.edited != one.text for one in group)]
    return {one for group in changed for one in group[1:]}


@settings(max_examples=16, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(texts("a"), texts("b"), st.sampled_from([(0, 0), (2, 0), (0, 1), (2, 1)]), st.booleans(), st.booleans())
def test_final_lists_equal_a_plain_computation(
    first: list[Text], second: list[Text], bits: tuple[int, int], drop: bool, small: bool
) -> None:
    """small: compare the texts in many ranges of ids, with many runs and row groups."""
    documents = [*first, *second, Text("a", "stays here", "", 9.0, 3, False)]
    expected: dict[Text, list[str]] = {one: ["fuzzy"] for one in documents if one.duplicate}
    expected |= final_reasons([one for one in documents if one not in expected])
    equal = later_equal([one for one in documents if one not in expected])
    expected |= {one: ["equal_after_editing"] for one in equal} if drop else {}
    staying = [one for one in documents if one not in expected]
    high = highest([one for one in staying if one.source == "a"], 3)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        stack.enter_context(patch.object(final_plan, "TASK_BYTES", 64 if small else final_plan.TASK_BYTES))
        stack.enter_context(patch.object(parquet, "ROW_GROUP_ROWS", 3 if small else parquet.ROW_GROUP_ROWS))
        stack.enter_context(patch.object(equal_texts, "BUDGET", 100 if small else equal_texts.BUDGET))
        output = select(
            root, documents, {"a": bits[0], "b": bits[1]}, edits=EDITS, rules=RULES, buckets=BUCKETS,
            equal_after_editing="drop" if drop else "report",
        )  # fmt: skip
        for source in ("a", "b"):
            rows = listed(root / "out", source)
            assert [row["id"] for row in rows] == sorted(one.id for one in expected if one.source == source)
            assert {row["id"]: row["reasons"] for row in rows} == {
                one.id: reasons for one, reasons in expected.items() if one.source == source
            }
            edits = rows_of(root / "out" / "edits" / source)
            changed = [one for one in staying if one.source == source and one.edited != one.text]
            assert {row["id"]: row["edited_id"] for row in edits} == {one.id: identity(one.edited) for one in changed}
            counts = output.details["edits"][source]
            assert counts["documents"] == len(changed)
            assert counts["text_bytes_after"] == sum(len(one.edited.encode()) for one in changed)
            assert counts["text_bytes_before"] == sum(len(one.text.encode()) for one in changed)
            assert output.details["equal_after_editing"][source] == sum(one.source == source for one in equal)
            buckets = {name: set[str]() for name in (("high", "edited") if source == "a" else ("edited",))}
            for one in staying:
                if one.source == source and one in high:
                    buckets["high"].add(one.id)
                elif one.source == source and one.edited != one.text:
                    buckets["edited"].add(one.id)
            for name, ids in buckets.items():
                found = [row["id"] for row in rows_of(root / "out" / "buckets" / source / name)]
                assert found == sorted(ids)
            rest = sum(one.source == source for one in staying) - sum(map(len, buckets.values()))
            assert output.details["buckets"][source]["rest"]["documents"] == rest


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*")) for row in read_shard(str(path)).to_pylist()]
