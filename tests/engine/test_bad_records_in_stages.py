"""In every stage that processes documents, one that crashes a library is named and can be skipped."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datakit.cache.reader import open_cache
from datakit.consolidate import stage as consolidate_stage
from datakit.dedup.minhash import signatures_stage
from datakit.engine.scheduler.finish import read_quarantine
from datakit.errors import PartialError
from datakit.normalize import stage as normalize_stage
from datakit.storage.manifest import Manifest
from datakit.tokenize import stage as tokenize_stage
from tests.support.caches import clean, tokenize_step, trained
from tests.support.engine.runs import run_step_of
from tests.support.faults.poisoned import ENCODE, HASH, LOOP, PARSE, SIGN, WRITE, poisoned
from tests.support.normalize.sources import normalize_step
from tests.support.partitions import documents, identity, normalized, step, words

TEXTS = words(1, 60)


def lines(path: Path, texts: list[str]) -> list[int]:
    """Write a JSON Lines file of texts; return the offset of each."""
    found, position = [], 0
    with path.open("wb") as file:
        for text in texts:
            line = json.dumps({"text": text}).encode() + b"\n"
            file.write(line)
            found.append(position)
            position += len(line)
    return found


def normalize(tmp_path: Path, source: Path, allowed: int, name: str = "n", **config: object) -> Manifest:
    made = normalize_step(tmp_path / name, str(source), **config)
    made = replace(made, operations={**made.operations, "max_quarantined": allowed})
    return run_step_of(made, poisoned(normalize_stage.plan(made)))


@pytest.mark.parametrize("pill", [PARSE, HASH, LOOP])
def test_normalize_names_a_line_by_its_offset(tmp_path: Path, pill: str) -> None:
    texts = [*TEXTS[:30], f"one {pill} two", *TEXTS[30:]]
    position = lines(tmp_path / "in.jsonl", texts)[30]
    if pill == PARSE:  # one is enough: it takes as many deaths as the run that skips the record
        with pytest.raises(PartialError, match=rf"record in\.jsonl:{position} caused the failure"):
            normalize(tmp_path, tmp_path / "in.jsonl", 0)
    manifest = normalize(tmp_path, tmp_path / "in.jsonl", 1)
    (skipped,) = read_quarantine(str(tmp_path / "n" / "normalize"))
    assert (skipped.file, skipped.position) == ("in.jsonl", position)
    assert skipped.reason == ("hang" if pill == LOOP else "crash")
    assert manifest.counters["normalize/quarantined"] == 1
    assert manifest.counters["normalize/records_in"] == 61 == manifest.totals.rows + 1


def test_unreadable_and_killing_records_share_one_limit(tmp_path: Path) -> None:
    lines(tmp_path / "in.jsonl", [*TEXTS[:5], f"x {HASH}", *TEXTS[5:9]])
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write("not json\n")
    with pytest.raises(PartialError, match="2 records cannot be used, but max_quarantined allows 1"):
        normalize(tmp_path, tmp_path / "in.jsonl", 1)
    assert normalize(tmp_path, tmp_path / "in.jsonl", 2).quarantine.records == 2


def test_normalize_names_files_rows_and_csv_records(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate([*TEXTS[:9], f"x {HASH} y"]):
        (tmp_path / "texts" / f"{number}.txt").write_text(text)
    assert normalize(tmp_path, tmp_path / "texts", 1, "files").totals.rows == 9
    (skipped,) = read_quarantine(str(tmp_path / "files" / "normalize"))
    assert (skipped.file, skipped.position) == ("9.txt", 0)
    texts = [*TEXTS[:20], f"x {HASH} y", *TEXTS[20:]]
    pq.write_table(documents("s", texts).select(["text"]), tmp_path / "in.parquet")
    row = documents("s", texts)["text"].to_pylist().index(f"x {HASH} y")
    normalize(tmp_path, tmp_path / "in.parquet", 1, "table")
    (skipped,) = read_quarantine(str(tmp_path / "table" / "normalize"))
    assert (skipped.file, skipped.position) == ("in.parquet", row)
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], ["one\ntwo"], [f"x {PARSE} y"], ["three"]])
    assert normalize(tmp_path, tmp_path / "in.csv", 1, "csv").totals.rows == 2
    (skipped,) = read_quarantine(str(tmp_path / "csv" / "normalize"))
    assert (skipped.file, skipped.position) == ("in.csv", len('text\r\n"one\ntwo"\r\n'))


def test_skipped_record_leaves_no_trace_in_output(tmp_path: Path) -> None:
    lines(tmp_path / "in.jsonl", [*TEXTS[:30], f"one {PARSE}", *TEXTS[30:], f"two {HASH}"])
    normalize(tmp_path, tmp_path / "in.jsonl", 2, "poisoned")
    (tmp_path / "calm").mkdir()
    lines(tmp_path / "calm" / "in.jsonl", TEXTS)
    normalize(tmp_path, tmp_path / "calm" / "in.jsonl", 0, "calm-out")
    data = [tmp_path / name / "normalize" / "data" for name in ("poisoned", "calm-out")]  # origins/ has positions
    ours, others = ([path.read_bytes() for path in sorted(folder.rglob("part-*.parquet"))] for folder in data)
    assert ours and ours == others


def test_document_without_signature_is_kept(tmp_path: Path) -> None:
    texts = [*TEXTS, f"a {SIGN} b c d e f g h"]
    (source,) = [normalized(tmp_path / "n", "novels", texts)]
    made = step(tmp_path / "out", "signatures", [source], max_quarantined=1)
    manifest = run_step_of(made, poisoned(signatures_stage.plan(made)))
    table = pq.read_table(tmp_path / "out" / manifest.partitions[0].path)
    assert manifest.totals.rows == 61
    (row,) = [index for index, skipped in enumerate(table["skipped"].to_pylist()) if skipped == "quarantined"]
    assert table["id"][row].as_py() == identity(texts[-1])
    assert read_quarantine(str(tmp_path / "out"))[0].position == row
    assert manifest.counters["signatures/quarantined"] == 1


def test_consolidate_and_tokenize_skip_by_partition_and_row(tmp_path: Path) -> None:
    texts = [*TEXTS, f"x {WRITE} y", f"x {ENCODE} y"]
    place = {text: row for row, text in enumerate(documents("novels", texts)["text"].to_pylist())}
    source = clean(tmp_path / "clean", {"novels": texts}, leaving={"novels": {identity(texts[0]): ["exact"]}})
    made = step(tmp_path / "out", "consolidate", source, max_quarantined=1)
    manifest = run_step_of(made, poisoned(consolidate_stage.plan(made)))
    (skipped,) = read_quarantine(made.directory)
    assert (skipped.file, skipped.position) == (manifest.partitions[0].path, place[f"x {WRITE} y"])
    assert manifest.counters["consolidate/dropped_quarantined"] == 1 and manifest.totals.rows == 60
    (tmp_path / "tokenizer.json").write_bytes(trained())
    made = tokenize_step(tmp_path / "cache", source, tmp_path / "tokenizer.json")
    with pytest.raises(PartialError, match=rf":{place[f'x {ENCODE} y']} caused the failure"):
        run_step_of(made, poisoned(tokenize_stage.plan(made)))
    made = replace(made, operations={**made.operations, "max_quarantined": 0.05})
    manifest = run_step_of(made, poisoned(tokenize_stage.plan(made)))
    assert manifest.counters["tokenize/quarantined"] == 1
    assert manifest.counters["tokenize/documents"] == 60
    cache = open_cache(made.directory)
    assert {document.id for document in cache.documents()} == {
        identity(text) for text in texts[1:] if ENCODE not in text
    }
