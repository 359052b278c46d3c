"""`datakit why` fits a terminal, ends with what to do next, and shows text only of documents that were asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import invoke
from tests.support.partitions import identity
from tests.support.small_shelf import prose


def test_near_duplicate_is_shown_side_by_side(finished: Path) -> None:
    shown = invoke("why", "root/shelf", "--id", identity(prose(5)), cwd=finished, COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "jaccard 0.949 (duplicates have at least 0.8)" in shown.stdout
    assert "+ and one more" in shown.stdout
    assert "equal words ..." in shown.stdout
    assert f"--id {identity(prose(5))} --cluster" in shown.stderr


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_no_text_is_shown_of_a_document_that_is_kept(finished: Path, arguments: list[str]) -> None:
    shown = invoke("why", "root/shelf", "--id", identity(prose(7)), *arguments, cwd=finished)
    assert shown.returncode == 0
    assert "word" not in shown.stdout
    assert arguments or f"--document {identity(prose(7))}" in shown.stderr


def test_json_has_the_texts_and_the_cluster(finished: Path) -> None:
    shown = invoke("why", "root/shelf", "--id", identity(prose(5)), "--cluster", "--json", cwd=finished)
    found = json.loads(shown.stdout)
    assert found["comparisons"][0]["text"] == prose(5)
    assert [one["reason"] for one in found["cluster"]] == ["retained", "fuzzy"]


def test_cluster_lists_its_documents(finished: Path) -> None:
    shown = invoke("why", "root/shelf", "--id", identity(prose(5)), "--cluster", cwd=finished)
    assert "cluster of 2 documents" in shown.stdout
    alone = invoke("why", "root/shelf", "--id", identity(prose(7)), "--cluster", cwd=finished)
    assert "neither this document nor another one in favor of it" in alone.stdout


def test_unknown_document_ends_with_a_usage_error(finished: Path) -> None:
    refused = invoke("why", "root/shelf", "--source-id", "nobody", cwd=finished)
    assert refused.returncode == 2
    assert "novels: its documents have no source ids" in refused.stderr
