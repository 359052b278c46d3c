"""The counts of a report are sums of the manifests' counts, also for sources of which nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from datakit.pipeline.run_summary import DROPPED
from datakit.report import counts
from datakit.report.counts import component_sizes, document_lengths, merged, source_counts, total
from datakit.report.subject import subject_of
from datakit.storage.manifest import read_manifest
from tests.support.report.made_up_root import write_root
from tests.support.small_shelf import prose, write_lines


def test_source_of_which_nothing_is_left_has_no_tokens(tmp_path: Path) -> None:
    """Every document of the second source is an exact duplicate of one in the first."""
    texts = [prose(number) for number in range(5)]
    write_lines(tmp_path / "first" / "a.jsonl", texts)
    write_lines(tmp_path / "second" / "b.jsonl", texts)
    recipe = tmp_path / "two.toml"
    sources = "".join(f'[[sources]]\nname = "{name}"\nurl = "{name}"\n' for name in ("first", "second"))
    recipe.write_text(f'name = "two"\n{sources}[dedup]\nmax_removal = 1.0\n[tokenize]\ntokenizer = "bytes"\n')
    run = datakit.run(recipe, tmp_path / "root", workers=2)
    found = {source.name: source for source in source_counts(subject_of(str(tmp_path / "root" / "two")))}
    assert (found["second"].kept, found["second"].tokens) == (0, 0)
    assert total(list(found.values())).tokens == run.steps[-1].manifest.totals.tokens


def test_small_sources_share_a_row_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MOST_SOURCES", 4)
    subject = subject_of(str(write_root(tmp_path, [f"s{number}" for number in range(9)], 2)))
    found = source_counts(subject)
    assert [source.name for source in found][-1] == "6 other sources" and len(found) == 4
    assert total(found).sources == 9 and merged(found[2:]).name == "7 other sources"
    assert total(found).kept == 9 * 2 * 39


def test_distributions_count_every_document_and_component(finished: Path) -> None:
    subject = subject_of(str(finished / "root" / "shelf"))
    cache = read_manifest(subject.directory)
    lengths = document_lengths(subject)
    assert sum(number for _, _, number in lengths) == cache.totals.rows
    assert all(most == 2 * least - 1 for least, most, _ in lengths)
    (dedup,) = subject.found("dedup")
    assert dedup.manifest is not None
    expected = dict(dedup.manifest.details["clusters"]["histogram"])
    assert {least: number for least, _, number in component_sizes(subject) if number} == expected


def test_reasons_have_the_texts_of_the_run_summary() -> None:
    shown = {name.removeprefix("select/dropped_"): text for name, text in DROPPED["select"].items()}
    assert shown == counts.REASONS
