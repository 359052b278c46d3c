"""Signs of mistakes in files that a run would accept are reported before the run."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from datakit.normalize.inspection import sample
from datakit.normalize.inspection.report import inspect_source
from datakit.normalize.inspection.suspicions import EVALUATION
from tests.support.small_shelf import prose, write_lines


@pytest.mark.parametrize(
    ("path", "is_evaluation"),
    [
        ("test/a.jsonl", True), ("data/validation/a.parquet", True), ("test-00000-of-00001.parquet", True),
        ("mmlu_test-1.jsonl.gz", True), ("en.dev.jsonl", True), ("val.jsonl", True), ("train.jsonl", False),
        ("latest/a.jsonl", False), ("test_fixtures/a.jsonl", False), ("contest.jsonl", False),
        ("agi_eval_train-1.jsonl", False), ("evaluation/a.jsonl", True), ("testing/devices.jsonl", False),
    ],
)  # fmt: skip
def test_names_of_evaluation_data(path: str, is_evaluation: bool) -> None:
    assert bool(EVALUATION.search(path)) == is_evaluation


def texts_of(folder: Path, texts: list[str]) -> tuple[str, ...]:
    lines = (json.dumps({"text": f"{text} and {prose(n)}"}, ensure_ascii=False) + "\n" for n, text in enumerate(texts))
    (folder / "a.jsonl").write_text("".join(lines))
    (group,) = inspect_source(str(folder / "a.jsonl")).groups
    return group.suspicions


@pytest.mark.parametrize("text", ["Ã©tÃ©", "Ã¼ber", "donâ€™t", "ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Â£5"])
def test_utf8_read_as_latin1_is_recognized(tmp_path: Path, text: str) -> None:
    (found,) = texts_of(tmp_path, [text, "plain"])
    assert "1 of 2 sampled texts look like UTF-8 that was read as Latin-1" in found


@pytest.mark.parametrize(
    "text", ["été über don’t", "Привет", "日本語", "ÀÉÎÕÜ", "São Paulo, Ângela, Øre", "Ã", "±5 £3"]
)
def test_texts_in_any_language_are_not_suspicious(tmp_path: Path, text: str) -> None:
    assert texts_of(tmp_path, [text] * 5) == ()


def test_a_few_texts_about_encodings_are_not_suspicious(tmp_path: Path) -> None:
    assert texts_of(tmp_path, ["Ã© is é"] + ["plain"] * 199) == ()


def test_group_above_the_limits_is_sampled_only(tmp_path: Path) -> None:
    for number in range(5):
        write_lines(tmp_path / "t" / f"part-{number}.jsonl", [prose(10 * number + n) for n in range(4)])
    (tmp_path / "t" / "part-1.jsonl").write_text("no record\n")
    whole = inspect_source(str(tmp_path / "t")).groups[0]
    assert (whole.records, whole.unusable) == (16, 1)
    for name, value in (("CHECKED_FILES", 4), ("CHECKED_GROUP_BYTES", 100)):
        with patch.object(sample, name, value):
            sampled = inspect_source(str(tmp_path / "t")).groups[0]
        assert (sampled.records, sampled.unusable) == (12, 0), "of the files 0, 2 and 4"


def test_large_file_is_decoded_up_to_a_limit(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [prose(n, 100) * 400 for n in range(30)])
    assert inspect_source(str(tmp_path / "a.jsonl")).groups[0].records == 30
    with patch.object(sample, "DECODED_BYTES", 1000):
        assert inspect_source(str(tmp_path / "a.jsonl")).groups[0].records < 30
