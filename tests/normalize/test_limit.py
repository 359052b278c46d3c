"""`limit` takes the first documents in the order of files and records, whatever the slices and workers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize import limit
from datakit.normalize.config import Config
from datakit.normalize.readers import slices
from datakit.normalize.route import sampled
from tests.support.normalize.sources import Normalized, check_contract, normalize, write_lines

FILES = st.lists(st.lists(st.sampled_from(["a", "b", " ", None, 5, "c"]), max_size=5), min_size=1, max_size=9)


def contract(result: Normalized) -> None:
    """Assert that all records that were read are accounted for."""
    counters = {name.removeprefix("normalize/"): count for name, count in result.manifest.counters.items()}
    gone = sum(counters[name] for name in ("missing", "blank", "duplicates", "quarantined", "limit_dropped"))
    assert counters["records_in"] == result.manifest.totals.rows + gone


@settings(max_examples=15, deadline=None)
@given(files=FILES, most=st.integers(1, 12), size=st.sampled_from([40, 1 << 20]), wave=st.integers(1, 3))
def test_the_first_documents_are_taken(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[Any]], most: int, size: int, wave: int
) -> None:
    folder = tmp_path_factory.mktemp("in")
    number = 0
    expected, listed = list[str](), 0
    for name, texts in enumerate(files):
        records = []
        for text in texts:
            number += 1
            records.append({"text": f"{text}{number}" if isinstance(text, str) and text != " " else text})
            if isinstance(records[-1]["text"], str) and text != " ":
                expected.append(records[-1]["text"])
        write_lines(folder / "in" / f"{name}.jsonl", *records)
        listed += 1
    if not expected:
        return
    with ExitStack() as stack:
        stack.enter_context(patch.object(slices, "SLICE_BYTES", size))
        stack.enter_context(patch.object(slices, "FILE_OVERHEAD", 0))
        stack.enter_context(patch.object(limit, "FIRST_WAVE", wave))
        results = [
            normalize(folder / str(backwards), folder / "in", backwards, limit=most, max_quarantined=100)
            for backwards in (False, True)
        ]
    for result in results:
        contract(result)
        assert sorted(row["text"] for row in result.rows()) == sorted(expected[:most])
        assert len(result.file_counts()) == listed, "files that were not read are listed, too"
        assert sum(documents for _, documents, _ in result.file_counts().values()) == len(expected[:most])
    assert results[0].files() == results[1].files()


def test_duplicates_count_and_where_and_sample_come_first(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"text": f"t{n // 2}", "n": n} for n in range(20)))
    result = normalize(tmp_path / "out", tmp_path / "in.jsonl", limit=4, where="n >= 6")
    assert {row["text"] for row in result.rows()} == {"t3", "t4"}
    assert (result["where_dropped"], result["limit_dropped"], result["duplicates"]) == (6, 10, 2)


def test_what_comes_after_the_limit_is_not_read(tmp_path: Path) -> None:
    for number in range(12):
        write_lines(tmp_path / "in" / f"{number:02d}.jsonl", *({"text": f"{number}-{n}"} for n in range(3)))
    write_lines(tmp_path / "in" / "99.jsonl", {"text": {"broken": 1}})
    with patch.object(slices, "SLICE_BYTES", 60), patch.object(slices, "FILE_OVERHEAD", 0):
        result = normalize(tmp_path / "out", tmp_path / "in", limit=4)
    assert (result["records_in"], result["limit_dropped"], result["files_not_read"]) == (6, 2, 11)
    assert result.file_counts()["99.jsonl"] == (0, 0, 0)


def test_without_a_limit_nothing_is_counted(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "a"})
    result = normalize(tmp_path / "out", tmp_path / "in.jsonl")
    check_contract(result)
    names = ("limit_dropped", "files_not_read", "values_dropped", "values_nulled")
    assert not any(f"normalize/{name}" in result.manifest.counters for name in names)


def test_samples_depend_on_id_and_seed_alone() -> None:
    low = np.random.default_rng(1).integers(0, 1 << 64, 20_000, np.uint64)
    samples = {seed: sampled(low, Config(sample=0.3, sample_seed=seed)) for seed in (None, 0, 1, (1 << 63) - 1)}
    for kept in samples.values():
        assert 0.28 < kept.mean() < 0.32
    assert 0.07 < (samples[0] & samples[1]).mean() < 0.11, "different seeds are independent"
    assert (samples[None] == (low < np.uint64(int(0.3 * 2.0**64)))).all(), "no seed: the bits as they are"
    assert (sampled(low[5:9], Config(sample=0.3, sample_seed=1)) == samples[1][5:9]).all()
    larger = sampled(low, Config(sample=0.6, sample_seed=1))
    assert larger[samples[1]].all(), "a larger sample with the same seed contains the smaller one"
