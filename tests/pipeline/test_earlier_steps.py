"""Steps of earlier versions: they stay readable and untouched, are found as predecessors, and are made again.

`fixtures/root-0.1` was written by commit 95f8bb2, before outputs lay below `data/<source>/`. `fixtures/root-0.2` was
written by commit e3bebcb, before the stage `select` existed; of its steps, only the downloads are reused.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import datakit
from datakit.engine.ledger.ledger import LedgerWriter, driver_name
from datakit.engine.observe.observer import Observer
from datakit.loader.sources.cache_source import open_source
from datakit.pipeline.earlier_steps import INPUTS, WHY, EarlierStep, find_earlier
from datakit.pipeline.graph import READS
from datakit.pipeline.lineage import StepDescription
from datakit.storage.manifest import (
    InputReference,
    Manifest,
    Quarantine,
    Totals,
    read_manifest,
    write_manifest,
)
from datakit.validate.intact import findings_of, require_intact
from tests.support.command_line import invoke
from tests.support.paths import FIXTURES
from tests.support.trees import tree


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A copy of the root with its recipe and sources."""
    return shutil.copytree(FIXTURES / "root-0.1", tmp_path / "earlier")


def step_of(root: Path, stage: str) -> str:
    """The directory of a stage's step."""
    (found,) = (root / "data" / "shelf").glob(f"{stage}-*")
    return str(found)


def test_finished_steps_stay_readable(earlier: Path) -> None:
    cache = datakit.open_cache(step_of(earlier, "tokenize"))
    assert require_intact(cache) > 0
    assert len(list(cache.documents())) == cache.documents_count == 58
    assert open_source(cache.directory, "novels").read(0, 10).tolist() == cache.read(0, 10).tolist()
    assert cache.read_loss_mask(0, cache.tokens).sum() < cache.tokens
    clean = step_of(earlier, "consolidate")
    assert sum(pq.read_table(f"{clean}/{part.path}").num_rows for part in read_manifest(clean).partitions) == 58
    described = datakit.inspect(cache.directory)
    assert isinstance(described, StepDescription)
    assert all(ancestor.found for ancestor in described.lineage)
    assert {found.state for found in datakit.status(earlier / "data")} == {"done"}


def test_steps_of_0_2_are_valid_and_those_that_changed_are_made_again(tmp_path: Path) -> None:
    root = shutil.copytree(FIXTURES / "root-0.2", tmp_path / "root")
    before = {path: value for path, value in tree(str(root / "data")).items() if not path.endswith("latest.json")}
    manifests = {str(path.parent): read_manifest(str(path.parent)) for path in root.glob("data/**/manifest.json")}
    damage = [findings_of(step, manifest) for step, manifest in manifests.items()]
    assert damage == [[]] * 13
    plan = datakit.plan(root / "recipe.toml", root / "data")
    assert {step.stage for step in plan.steps if step.state == "done"} >= {"download"}
    assert {len(step.earlier) for step in plan.steps if step.state != "done" and step.stage != "contract"} == {1}
    caches = list((root / "data" / "shelf").glob("tokenize-*"))
    assert require_intact(datakit.open_cache(str(caches[0]))) > 0
    described = datakit.inspect(root / "data" / "shelf")
    assert isinstance(described, StepDescription) and described.directory == str(caches[0])
    result = datakit.run(root / "recipe.toml", root / "data", workers=2)
    assert {path: value for path, value in tree(str(root / "data")).items() if path in before} == before
    assert result.cache is not None and require_intact(datakit.open_cache(result.cache)) > 0


def test_plan_says_what_is_made_again_and_why(earlier: Path) -> None:
    plan = datakit.plan(earlier / "recipe.toml", earlier / "data")
    assert {step.stage for step in plan.steps if step.state == "done"} == {"download"}
    made_again = [step for step in plan.steps[3:] if step.stage != "contract"]  # which earlier versions did not have
    for step in made_again:
        (found,) = step.earlier
        assert (found.finished, found.version, found.why != "") == (True, None, True)
        assert step.text_bytes is not None
        former = "consolidate" if step.stage == "select" else step.stage
        assert Path(found.directory).name.startswith(f"{former}-")
    documents = {(step.stage, step.source): step.earlier[0].documents for step in made_again}
    assert documents["normalize", "novels"] == 43
    assert documents["dedup", None] == documents["consolidate", None] == 59
    shown = invoke("plan", "recipe.toml", "--root", "data", cwd=earlier).stdout
    assert "made by an earlier version, which stay; the run makes them again from the amount of text shown" in shown
    assert shown.count("outputs now lie below data/<source>/") == 9
    assert datakit.plan(earlier / "recipe.toml", earlier / "empty").steps[-1].earlier == ()


def test_other_settings_have_no_earlier_step(earlier: Path) -> None:
    plan = datakit.plan(earlier / "recipe.toml", earlier / "data", settings=["sources.novels.sample=0.5"])
    found = {(step.stage, step.source): len(step.earlier) for step in plan.steps}
    assert (found["normalize", "novels"], found["signatures", "novels"], found["tokenize", None]) == (0, 0, 0)
    assert (found["normalize", "chats"], found["signatures", "chats"]) == (1, 1)


def test_step_that_an_earlier_version_began_is_made_anew(earlier: Path) -> None:
    half_done = Path(step_of(earlier, "tokenize"))
    (half_done / "manifest.json").unlink()
    before, said = tree(str(half_done)), []
    (earlier / "novels.toml").write_text(
        'name = "shelf"\n[[sources]]\nname = "novels"\nurl = "novels"\n[tokenize]\ntokenizer = "bytes"\n'
    )

    class Notes(Observer):
        def note(self, text: str) -> None:
            said.append(text)

    result = datakit.run(earlier / "novels.toml", earlier / "data", observer=Notes())
    assert result.cache not in (None, str(half_done))
    assert [text for text in said if text.startswith("tokenize: ")] == [
        f"tokenize: {half_done.name} was begun by an earlier version\n"
        "  It cannot be continued, so the step starts anew; `datakit gc` lists it."
    ]
    assert tree(str(half_done)) == before
    shown = invoke("plan", "recipe.toml", "--root", "data", cwd=earlier).stdout
    assert f"{half_done} was begun by an earlier version" in shown
    assert datakit.run(earlier / "novels.toml", earlier / "data", observer=Notes()).reused


def test_run_makes_all_steps_but_downloads_again_and_keeps_the_old_ones(earlier: Path) -> None:
    before = tree(str(earlier / "data"))
    result = datakit.run(earlier / "recipe.toml", earlier / "data", until="consolidate", workers=2)
    assert {step.stage for step in result.steps if step.reused} == {"download"}
    assert {path: value for path, value in tree(str(earlier / "data")).items() if path in before} == before
    old, new = read_manifest(step_of(FIXTURES / "root-0.1", "consolidate")), result.steps[-1].manifest
    assert [(part.source, part.rows, part.first_id) for part in new.partitions] == [
        (part.source, part.rows, part.first_id) for part in old.partitions
    ]


def finished(home: Path, stage: str, version: int | None, digits: str, **parameters: Any) -> str:
    """Write the manifest of a finished step that read the input `above`; return its directory."""
    directory = f"{home}/{stage}-{digits * 12}"
    inputs = [InputReference("consolidate", "../manifest.json", "above")]
    counters = {f"{stage}/documents": 7}
    write_manifest(
        Manifest(stage, "d", "f", digits * 32, parameters, inputs, [], [], Totals(5, 9), counters, Quarantine(0),
                 version=version),
        directory,
    )  # fmt: skip
    return directory


def begun(home: Path, stage: str, version: int | None, digits: str) -> str:
    """Begin a step; return its directory."""
    directory = f"{home}/{stage}-{digits * 12}"
    ledger = LedgerWriter(directory, driver_name(), version)
    ledger.start()
    ledger.close()
    return directory


def found(home: Path, stage: str = "tokenize", version: int = 4, **lists: list[str]) -> list[EarlierStep]:
    parameters = {"add": "eos", "new": 1}
    given = {"inputs": ["above"], "remade": [], **lists}
    return find_earlier(f"{home}/{stage}-{'0' * 12}", stage, version, parameters, **given)


def test_every_raised_format_version_has_a_reason() -> None:
    for module in READS:
        assert module.FORMAT_VERSION == 1 or (module.NAME, module.FORMAT_VERSION) in WHY


@pytest.mark.parametrize("version", [None, 3])
def test_finished_step_of_an_earlier_version_is_found(tmp_path: Path, version: int | None) -> None:
    directory = finished(tmp_path, "tokenize", version, "a", add="eos", gone=2)
    (step,) = found(tmp_path)
    assert (step.directory, step.finished, step.version, step.documents) == (directory, True, version, 7)
    assert step.why == WHY["tokenize", 4]


def test_step_whose_inputs_are_made_again_is_found(tmp_path: Path) -> None:
    finished(tmp_path, "train-tokenizer", 1, "a", add="eos")
    assert found(tmp_path, "train-tokenizer", 1) == []
    (step,) = found(tmp_path, "train-tokenizer", 1, inputs=["below"], remade=["above"])
    assert step.why == INPUTS


def test_steps_with_other_parameters_inputs_stages_or_the_same_version_are_not_found(tmp_path: Path) -> None:
    finished(tmp_path, "tokenize", 3, "a", add="none")
    finished(tmp_path, "tokenize", 4, "b", add="eos")
    finished(tmp_path, "consolidate", 1, "c", add="eos")
    assert found(tmp_path) == []
    finished(tmp_path, "tokenize", 3, "d", add="eos")
    assert found(tmp_path, inputs=["other"]) == []
    assert len(found(tmp_path)) == 1


def test_unfinished_step_is_found_if_an_earlier_version_began_it(tmp_path: Path) -> None:
    begun(tmp_path, "tokenize", 4, "a")
    Path(tmp_path, f"tokenize-{'b' * 12}", "ledger").mkdir(parents=True)
    assert found(tmp_path) == []
    places = [begun(tmp_path, "tokenize", version, digits) for version, digits in ((None, "c"), (3, "d"))]
    assert [(step.directory, step.finished) for step in found(tmp_path)] == [(place, False) for place in places]
    begun(tmp_path, "tokenize", 4, "d")
    assert [step.directory for step in found(tmp_path)] == places[:1], "this version can continue it"
