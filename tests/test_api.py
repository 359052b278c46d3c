"""The Python API: importing costs nothing, results are typed, errors form one tree."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import datakit
from datakit.engine.executor import Verdict
from datakit.engine.observe.observer import Observer
from datakit.errors import InputError, NoInputError, RecipeError
from datakit.pipeline.lineage import StepDescription
from datakit.recipe import Recipe, Source
from tests.support.paths import REPOSITORY


def test_public_names_exist_and_importing_loads_nothing() -> None:
    for name in datakit.__all__:
        assert getattr(datakit, name) is not None
    assert set(datakit.__all__) <= set(dir(datakit))
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        datakit.rnu  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    script = "import sys, datakit; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert not {"numpy", "pyarrow", "msgspec", "cyclopts", "numba", "fsspec"} & set(loaded.stdout.split())
    assert (resources.files(datakit) / "py.typed").is_file()
    assert (resources.files(datakit) / "catalog" / "demo.toml").is_file()


def test_run_returns_a_cache_to_read(finished_run: datakit.RunResult) -> None:
    assert finished_run.cache is not None
    cache = datakit.open_cache(finished_run.cache)
    (tokenize,) = finished_run.steps_of("tokenize")
    assert cache.tokens == tokenize.manifest.totals.tokens
    assert len(cache.read(0, 16)) == 16
    assert not finished_run.reused
    labels = [step.label for step in finished_run.steps]
    assert labels[:3] == ["download novels", "download letters", "normalize novels"]


def test_printed_results_are_a_few_lines(finished_run: datakit.RunResult, finished: Path) -> None:
    shown = str(finished_run)
    assert len(shown.splitlines()) <= 6
    assert shown.startswith("shelf: 12 steps, done in ")
    assert f"cache:     {finished_run.cache}" in shown
    assert "kept" in shown and "Manifest" not in shown
    assert "<table>" in finished_run._repr_html_() and "tokenize" in finished_run._repr_html_()
    assert finished_run.cache is not None
    plan = datakit.plan(finished / "shelf" / "shelf.toml", finished / "root")
    for value in (*finished_run.steps, plan, *datakit.status(finished / "root"), datakit.inspect(finished_run.cache)):
        assert len(repr(value)) < 1000


def test_plan_status_and_inspect_describe_the_run(finished_run: datakit.RunResult, finished: Path) -> None:
    assert {step.state for step in datakit.plan(finished / "shelf" / "shelf.toml", finished / "root").steps} == {"done"}
    states = {step.directory: step.state for step in datakit.status(finished / "root")}
    assert all(states[step.directory] == "done" for step in finished_run.steps)
    assert finished_run.cache is not None
    found = datakit.inspect(finished_run.cache)
    assert isinstance(found, StepDescription)
    assert found.tokens == datakit.open_cache(finished_run.cache).tokens
    raw = datakit.inspect(finished / "shelf" / "letters")
    assert not isinstance(raw, StepDescription)
    assert raw.groups[0].text == "body"


def test_errors_form_one_tree(tmp_path: Path) -> None:
    with pytest.raises(RecipeError):
        datakit.run("dmeo")
    with pytest.raises(NoInputError):
        datakit.run(Recipe("r", (Source("s", str(tmp_path / "absent")),)), tmp_path / "root")
    with pytest.raises(InputError):
        datakit.status(tmp_path)
    with pytest.raises(datakit.DatakitError):
        datakit.inspect(tmp_path / "absent")
    assert not (tmp_path / "root").exists()


def test_observer_sees_every_step_and_attempt(shelf: Path, tmp_path: Path) -> None:
    class Notes(Observer):
        def __init__(self) -> None:
            self.steps: list[str] = []
            self.verdicts: set[Verdict] = set()

        def step_ended(self, step, manifest, reused) -> None:
            self.steps.append(f"{step.stage} {step.dataset}")

        def attempt_ended(self, outcome, verdict) -> None:
            self.verdicts.add(verdict)

    notes = Notes()
    result = datakit.run(shelf, tmp_path / "root", until="normalize", observer=notes)
    stages = ("download", "normalize")
    assert sorted(notes.steps) == [f"{stage} {source}" for stage in stages for source in ("letters", "novels")]
    for source in ("letters", "novels"):  # sources run at the same time
        assert notes.steps.index(f"download {source}") < notes.steps.index(f"normalize {source}")
    assert notes.verdicts == {Verdict.DONE}
    assert result.log is not None
    assert Path(result.log).exists()
