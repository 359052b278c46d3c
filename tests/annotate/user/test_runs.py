"""A run calls a user's annotator; a document on which it fails is left out and named, and nothing else is lost."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from datakit.annotate import stage, write_tables
from datakit.annotate.user.annotator import UserAnnotator
from datakit.annotate.user.config import UserSettings
from datakit.api import plan, run
from datakit.errors import ChangedInputError, DatakitError
from datakit.pipeline.configuration.configure import configure
from datakit.pipeline.run_summary import stage_lines
from datakit.recipe import load_recipe
from datakit.storage.fingerprint import config_of
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate

TEXTS = [f"Letter {number}{'!' * (number % 5)}" for number in range(40)]
POISON = "Poison"
MODULE = """
import collections, ctypes, itertools, os, time
import datakit
import pyarrow as pa
import pyarrow.compute as pc

seen = []

def deadlock():
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # zeros are a mutex that nobody holds
    for _ in range(2):
        library.pthread_mutex_lock(mutex)

@datakit.annotator(version={version}, writes={{"bangs": pa.int32()}})
def bangs(batch, mark="!"):
    texts = batch["text"].to_pylist()
    {code}
    return pa.record_batch({{"bangs": pc.count_substring(batch["text"], mark).cast(pa.int32())}})
"""
RECIPE = """name = "shelf"
[[sources]]
name = "letters"
url = "letters.jsonl"
[annotate]
max_quarantined = {limit}
[annotate.script]
[annotate.user.quality]
function = "shelf_annotators:bangs"
"""


def recipe_with(folder: Path, code: str = "pass", limit: float = 0, version: int = 1, poison: bool = False) -> Path:
    """Write a recipe, its texts, and an annotator that runs `code` before it counts the exclamation marks."""
    texts = [*TEXTS, POISON] if poison else TEXTS
    (folder / "letters.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "shelf_annotators.py").write_text(MODULE.format(code=code, version=version))
    (folder / "shelf.toml").write_text(RECIPE.format(limit=limit))
    return folder / "shelf.toml"


def rows(directory: str, table: str) -> dict[str, Any]:
    paths = sorted(Path(directory).glob(f"data/letters/{table}/*"))
    return {row["id"]: row for path in paths for row in read_shard(str(path)).to_pylist()}


def texts_of(result: Any) -> dict[str, str]:
    (step,) = result.steps_of("normalize")
    paths = [f"{step.directory}/{part.path}" for part in step.manifest.partitions]
    return {row["id"]: row["text"] for path in paths for row in read_shard(path).to_pylist()}


def data_of(directory: str) -> dict[str, bytes]:
    data = Path(directory, "data")
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def test_attributes_are_written_beside_those_of_built_in_annotators(tmp_path: Path) -> None:
    results = [run(recipe_with(tmp_path), tmp_path / str(n), workers=n, until="annotate") for n in (1, 3)]
    first, second = (result.steps_of("annotate")[0] for result in results)
    assert data_of(first.directory) == data_of(second.directory)
    texts = texts_of(results[0])
    assert {one: row["bangs"] for one, row in rows(first.directory, "quality").items()} == {
        one: text.count("!") for one, text in texts.items()
    }
    assert len(rows(first.directory, "script")) == len(texts) == len(TEXTS)
    assert validate(str(tmp_path / "1")).findings == []


FAULTS = {
    "exit": f"if {POISON!r} in texts: os._exit(0)",
    "crash in C": f"if {POISON!r} in texts: ctypes.string_at(0)",
    "hang": f"if {POISON!r} in texts: time.sleep(1000)",
    "hang in C that holds the GIL": f"if {POISON!r} in texts: collections.deque(itertools.repeat(0), maxlen=0)",
    "hang in C without signals": f"if {POISON!r} in texts: deadlock()",
    "memory": f"while {POISON!r} in texts: seen.append(bytearray(b'x') * (64 << 20))",
    "exception": f"if {POISON!r} in texts: raise ValueError('bad ' + {POISON!r})",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_costs_one_document_which_is_named_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(stage, "HANG_SECONDS", 3.0)
    recipe = recipe_with(tmp_path, FAULTS[fault], limit=1, poison=True)
    result = run(recipe, tmp_path / "root", workers=1, until="annotate")
    (step,), texts = result.steps_of("annotate"), texts_of(result)
    (lost,) = [one for one, text in texts.items() if text == POISON]
    assert rows(step.directory, "quality").keys() == rows(step.directory, "script").keys() == texts.keys() - {lost}
    assert step.manifest.counters["annotate/quarantined"] == step.manifest.quarantine.records == 1
    (line,) = [line for line in stage_lines(result) if line.stage == "annotate"]
    assert line.dropped == {"quarantined": 1}
    (record,) = map(json.loads, Path(step.directory, "quarantine", "records.jsonl").read_text().splitlines())
    row = sorted(texts).index(lost)
    assert (record["file"], record["position"]) == ("data/letters/part-00000-of-00001.parquet", row)
    assert POISON not in json.dumps(record)
    assert validate(str(tmp_path / "root")).findings == []


@pytest.mark.parametrize("fault", ["exit", "exception"])
def test_fault_that_the_recipe_does_not_allow_names_the_document(tmp_path: Path, fault: str) -> None:
    recipe = recipe_with(tmp_path, FAULTS[fault], poison=True)
    with pytest.raises(DatakitError) as error:
        run(recipe, tmp_path / "root", workers=1, until="annotate")
    message = str(error.value)
    assert re.search(r"data/letters/part-00000-of-00001\.parquet:\d+", message), message
    assert "annotate.max_quarantined" in message
    if fault == "exception":
        assert "annotator 'quality' (shelf_annotators:bangs) failed" in message and "ValueError" in message


def test_function_that_fails_on_every_document_stops_the_run_with_its_traceback(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, "undefined_name", limit=0.5)
    with pytest.raises(DatakitError, match=r"shelf_annotators.py(.|\n)*undefined_name(.|\n)*NameError"):
        run(recipe, tmp_path / "root", workers=1, until="annotate")


@pytest.mark.parametrize("size", [1, 200, 1 << 20])
def test_the_documents_left_out_do_not_depend_on_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(write_tables, "BATCH_BYTES", size)
    code = "if any(text.endswith('7') for text in texts): raise ValueError"
    result = run(recipe_with(tmp_path, code, limit=9), tmp_path / "root", workers=1, until="annotate")
    (step,) = result.steps_of("annotate")
    kept = {text for one, text in texts_of(result).items() if one in rows(step.directory, "quality")}
    assert kept == {text for text in TEXTS if not text.endswith("7")}


NEIGHBORS = {
    "rank in the batch": "return pa.record_batch({'bangs': pa.array(range(len(texts)), pa.int32())})",
    "size of the batch": "return pa.record_batch({'bangs': pa.array([len(texts)] * len(texts), pa.int32())})",
    "state between calls": "seen.extend(texts); return pa.record_batch({'bangs': pa.array([len(seen)] * len(texts), "
    "pa.int32())})",
    "random numbers": "import random; return pa.record_batch({'bangs': pa.array([random.randrange(1 << 30) for _ in "
    "texts], pa.int32())})",
}


@pytest.mark.parametrize("kind", NEIGHBORS)
def test_output_that_depends_on_neighbors_is_refused(tmp_path: Path, kind: str) -> None:
    recipe = recipe_with(tmp_path, NEIGHBORS[kind], limit=0.5)
    pattern = r"annotator 'quality' .*the output for document [0-9a-f]{8,} depends on its neighbors"
    with pytest.raises(DatakitError, match=pattern):
        run(recipe, tmp_path / "root", workers=1, until="annotate")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("batch = batch.slice(1)", r"returned \d+ rows for \d+ documents"),
        ("return batch", "not the columns of its schema"),
        ("return None", "returned NoneType"),
        ("return pa.record_batch({'bangs': pa.array([1] * len(texts))})", "returned bangs: int64"),
    ],
)
def test_wrong_answers_are_refused(tmp_path: Path, code: str, problem: str) -> None:
    with pytest.raises(DatakitError, match=problem):
        run(recipe_with(tmp_path, code), tmp_path / "root", workers=1, until="annotate")


def test_changed_code_under_the_same_version_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    run(recipe_with(tmp_path), root, workers=1, until="annotate")
    changed = recipe_with(tmp_path, "texts.reverse()")
    message = (
        r"annotate letters: the file of annotator 'quality' \(shelf_annotators:bangs\) has changed since this step"
    )
    with pytest.raises(ChangedInputError, match=message):
        plan(changed, str(root), until="annotate")
    with pytest.raises(DatakitError, match=message):
        run(changed, root, workers=1, until="annotate")
    assert run(recipe_with(tmp_path), root, workers=1, until="annotate").reused
    again = run(recipe_with(tmp_path, "texts.reverse()", version=2), root, workers=1, until="annotate")
    assert not again.steps_of("annotate")[0].reused and again.steps_of("normalize")[0].reused


def test_parameters_reach_the_function(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path)
    recipe.write_text(recipe.read_text() + 'parameters = { mark = "t" }\n')
    result = run(recipe, tmp_path / "root", workers=1, until="annotate")
    found = rows(result.steps_of("annotate")[0].directory, "quality")
    assert {row["bangs"] for row in found.values()} == {2}


def test_file_that_changes_after_planning_is_refused_by_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the task adds the recipe's folder
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    found = configure(load_recipe(recipe_with(tmp_path)))["annotate"]["letters"]
    merged = {**found.content["annotators"]["quality"], **found.operations["paths"]["quality"], "source": "0" * 32}
    with pytest.raises(ChangedInputError, match="is not the one that was there when the run was planned"):
        UserAnnotator(config_of(merged, UserSettings))


def test_missing_column_is_named_with_the_next_step(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path)
    module = tmp_path / "shelf_annotators.py"
    module.write_text(module.read_text().replace("writes=", "reads=['text', 'url'], writes="))
    with pytest.raises(DatakitError, match=r"'quality' reads the column 'url'(.|\n)*normalize.drop"):
        run(recipe, tmp_path / "root", workers=1, until="annotate")
