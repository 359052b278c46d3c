"""A page that crashes its extractor, hangs it or makes it eat memory costs one record, whatever else runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.scheduler.finish import read_quarantine
from datakit.errors import PartialError
from datakit.normalize import stage
from datakit.storage.manifest import Manifest
from tests.support.engine.runs import fresh_executor
from tests.support.faults.web_extractors import GROW, LOOP, RAISE, SEGFAULT, faulty
from tests.support.normalize.sources import Normalized, normalize_step
from tests.support.normalize.web_archives import page, response, write_archive

PILLS = {SEGFAULT: "crash", LOOP: "hang", GROW: "memory", RAISE: "the extractor raised RecursionError"}


def run(root: Path, source: Path, allowed: int, workers: int = 2, **config: object) -> Manifest:
    made = normalize_step(root, str(source), **{"extract_seconds": 3, **config})
    made = replace(made, operations={**made.operations, "max_quarantined": allowed})
    with fresh_executor(workers) as executor:
        return run_step(made, faulty(stage.plan(made)), lambda: executor, Observer())


def archive(folder: Path, pills: dict[int, str], count: int = 40) -> dict[int, int]:
    """Write an archive of pages, some with a pill; return the content offset of each of these."""
    pages = [response(page(f"This is page {number}. {pills.get(number, '')} " * 5), number) for number in range(count)]
    places = write_archive(folder / "in.warc.gz", pages)
    return {number: places[number][0] for number in pills}


@pytest.mark.parametrize("extract", ["resiliparse", "trafilatura"])
def test_page_that_kills_its_extractor_costs_one_record(tmp_path: Path, extract: str) -> None:
    """Crash, endless loop and exception, in one batch of pages; all others become documents."""
    pills: dict[int, str] = {3: SEGFAULT, 33: RAISE}
    if extract == "resiliparse":
        pills |= {11: LOOP}
    assert_each_costs_one_record(tmp_path, pills, extract=extract)


def test_page_that_eats_memory_costs_one_record(tmp_path: Path) -> None:
    """The limit on CPU time is far away: on a busy machine, filling memory takes seconds."""
    assert_each_costs_one_record(tmp_path, {25: GROW}, extract="resiliparse", extract_seconds=60)


def assert_each_costs_one_record(tmp_path: Path, pills: dict[int, str], **config: Any) -> None:
    places = archive(tmp_path / "in", pills)
    manifest = run(tmp_path / "out", tmp_path / "in", len(pills), **config)
    found = {
        (bad.position, bad.reason.partition(" (")[0]) for bad in read_quarantine(str(tmp_path / "out" / "normalize"))
    }
    assert found == {(places[number], PILLS[pill]) for number, pill in pills.items()}
    counters = manifest.counters
    assert counters["normalize/records_in"] == 40 == manifest.totals.rows + len(pills)
    assert counters["normalize/quarantined"] == len(pills)


def test_killing_page_is_named_if_none_may_be_left_out(tmp_path: Path) -> None:
    places = archive(tmp_path / "in", {5: SEGFAULT})
    with pytest.raises(PartialError, match=rf"record in\.warc\.gz:{places[5]} caused the failure"):
        run(tmp_path / "out", tmp_path / "in", 0)


def test_bytes_do_not_depend_on_workers_or_deaths(tmp_path: Path) -> None:
    """The documents with a killing page among them are those without it, with 1 worker and with 4."""
    for number in range(6):
        pages = [response(page(f"Page {number}.{one} of some archive. " * 9), one) for one in range(30)]
        write_archive(tmp_path / "calm" / f"{number}.warc.gz", pages)
        bad = [response(page(f"x {SEGFAULT} {number}"), 99)] if number in (1, 4) else []
        write_archive(tmp_path / "bad" / f"{number}.warc.gz", [*pages[:12], *bad, *pages[12:]])
    outputs = []
    for name, source, workers in (("a", "bad", 1), ("b", "bad", 4), ("c", "calm", 2)):
        root = tmp_path / name
        manifest = run(root, tmp_path / source, 2, workers)
        assert manifest.totals.rows == 180
        outputs.append(Normalized(str(root / "normalize"), manifest, []).files())
    one, four, calm = ({path: data for path, data in files.items() if "ledger" not in path} for files in outputs)
    assert one == four
    columns = ("id", "text", "url", "source_id")
    documents = [
        [
            {name: row[name] for name in columns}
            for row in Normalized(str(tmp_path / root / "normalize"), manifest, []).rows()
        ]
        for root in ("a", "c")
        for manifest in [manifest_of(tmp_path / root)]
    ]
    assert documents[0] == documents[1] and calm


def manifest_of(root: Path) -> Manifest:
    from datakit.storage.manifest import find_manifest

    found = find_manifest(str(root / "normalize"))
    assert found is not None
    return found


def test_reasons_quote_no_page(tmp_path: Path) -> None:
    archive(tmp_path / "in", {2: RAISE})
    run(tmp_path / "out", tmp_path / "in", 1)
    written = "".join(path.read_text(errors="replace") for path in (tmp_path / "out" / "normalize").rglob("*.json*"))
    assert "may quote" not in written and json.dumps(RAISE) not in written
