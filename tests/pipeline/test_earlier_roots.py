"""Roots written by earlier versions: finished steps stay readable and untouched, and a run makes them again.

`fixtures/root-0.1` was written by commit 95f8bb2, before outputs lay below `data/<source>/`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import datakit
from datakit.engine.observe.observer import Observer
from datakit.loader.sources.cache_source import open_source
from datakit.pipeline.lineage import StepDescription
from datakit.storage.manifest import read_manifest
from datakit.validate.token_cache import require_intact
from tests.support.command_line import invoke
from tests.support.paths import FIXTURES
from tests.support.trees import tree


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A copy of the root with its recipe and sources."""
    return shutil.copytree(FIXTURES / "root-0.1", tmp_path / "earlier")


def step(root: Path, stage: str) -> str:
    """The directory of a stage's step."""
    (found,) = (root / "data" / "shelf").glob(f"{stage}-*")
    return str(found)


def test_finished_steps_stay_readable(earlier: Path) -> None:
    cache = datakit.open_cache(step(earlier, "tokenize"))
    assert require_intact(cache) > 0
    assert len(list(cache.documents())) == cache.documents_count == 58
    assert open_source(cache.directory, "novels").read(0, 10).tolist() == cache.read(0, 10).tolist()
    assert cache.read_loss_mask(0, cache.tokens).sum() < cache.tokens
    clean = step(earlier, "consolidate")
    assert sum(pq.read_table(f"{clean}/{part.path}").num_rows for part in read_manifest(clean).partitions) == 58
    described = datakit.inspect(cache.directory)
    assert isinstance(described, StepDescription)
    assert all(ancestor.found for ancestor in described.lineage)
    assert {found.state for found in datakit.status(earlier / "data")} == {"done"}


def test_plan_says_what_is_made_again_and_why(earlier: Path) -> None:
    plan = datakit.plan(earlier / "recipe.toml", earlier / "data")
    assert {step.stage for step in plan.steps if step.state == "done"} == {"download"}
    for step in plan.steps[3:]:
        (found,) = step.earlier
        assert (found.finished, found.version, found.why != "") == (True, None, True)
        assert step.text_bytes is not None
        assert Path(found.directory).name.startswith(f"{step.stage}-")
    documents = {(step.stage, step.source): step.earlier[0].documents for step in plan.steps[3:]}
    assert documents["normalize", "novels"] == 43
    assert documents["dedup", None] == documents["consolidate", None] == 59
    shown = invoke("plan", "recipe.toml", "--root", "data", cwd=earlier).stdout
    assert "made by an earlier version; the run makes them again from this much text" in shown
    assert shown.count("outputs lie below data/<source>/") == 9
    assert datakit.plan(earlier / "recipe.toml", earlier / "empty").steps[-1].earlier == ()


def test_other_settings_have_no_earlier_step(earlier: Path) -> None:
    plan = datakit.plan(earlier / "recipe.toml", earlier / "data", settings=["sources.novels.sample=0.5"])
    found = {(step.stage, step.source): len(step.earlier) for step in plan.steps}
    assert (found["normalize", "novels"], found["signatures", "novels"], found["tokenize", None]) == (0, 0, 0)
    assert (found["normalize", "chats"], found["signatures", "chats"]) == (1, 1)


def test_step_that_an_earlier_version_began_is_made_anew(earlier: Path) -> None:
    half_done = Path(step(earlier, "tokenize"))
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
    old, new = read_manifest(step(FIXTURES / "root-0.1", "consolidate")), result.steps[-1].manifest
    assert [(part.source, part.rows, part.first_id) for part in new.partitions] == [
        (part.source, part.rows, part.first_id) for part in old.partitions
    ]
