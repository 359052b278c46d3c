"""Models are found by name, import path or file, and a fingerprint names the code that ran."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datakit.errors import UsageError
from datakit.trainer.config import Run
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.models import KIND, grug, identity, load_model, olmoe
from datakit.trainer.run_file import read_run_file
from datakit.trainer.sizes.run_file import toml
from datakit.trainer.train import train
from tests.support.trainer.small_models import MODELS
from tests.support.trainer.trainer_runs import BYTES, TextBytes, silent

RUN = 'name = "own"\nsteps = 1\n[model]\nhidden = 32\n'
GRUG = Path(grug.__file__).read_text()


def run_with(folder: Path, kind: str) -> Run:
    """The run of a run file in `folder`."""
    path = folder / "run.toml"
    path.write_text(f'{RUN}kind = "{kind}"\n')
    return read_run_file(path).run(256)


def test_models_are_found_by_name_or_import_path() -> None:
    assert load_model("grug") is grug
    assert load_model("datakit.trainer.models.olmoe") is olmoe
    with pytest.raises(UsageError, match="did you mean 'grug'"):
        load_model("grugg")
    for name in ("nobody.has.this", "", ".mine", "a b"):
        with pytest.raises(UsageError, match=f"no model '{name}'.*give the path of its file"):
            load_model(name)
    with pytest.raises(UsageError, match=r"json/__init__.py does not define Config, weights, .*see models/protocol.py"):
        load_model("json")


def test_the_error_for_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`kind` is relative to the current folder"):
        load_model("gone.py")
    with pytest.raises(UsageError, match="`kind` is relative to the run file"):
        load_model("gone.py", tmp_path)


@pytest.mark.parametrize("kind", ["mine.py", "parts/mine.py"])
def test_a_model_file_is_found_from_the_run_file(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{kind} cannot be read: No such file .* `kind` is relative to the run file"):
        run_with(tmp_path, kind)
    (tmp_path / kind).parent.mkdir(exist_ok=True)
    (tmp_path / kind).write_text(GRUG)
    before, modules = [*sys.path], {*sys.modules}
    run = run_with(tmp_path, kind)
    assert (run.model.hidden, run.model.vocabulary) == (32, 256)
    assert isinstance(run.model, load_model(run.kind).Config)
    assert sys.path == before
    assert not {"mine", "parts"} & {*sys.modules}
    assert all(name.startswith("datakit_model_") for name in {*sys.modules} - modules)


def test_the_source_of_a_file_is_in_the_fingerprint_and_its_folder_is_not(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "mine.py").write_text(GRUG)
    run, moved = run_with(first, "mine.py"), run_with(second, "mine.py")
    assert run.fingerprint({}) == moved.fingerprint({})
    assert run.content({})["kind"] == "mine.py"
    (first / "mine.py").write_text(GRUG + "# changed\n")
    assert run.fingerprint({}) == moved.fingerprint({})  # this process has loaded the file as it was
    changed = run_with(first, "mine.py")
    assert changed.fingerprint({}) != moved.fingerprint({})
    assert changed.content({}) == moved.content({}) | identity(changed.kind)


def test_what_a_package_s_model_was_is_in_the_fingerprint_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_model_of_mine.py").write_text(GRUG)
    monkeypatch.syspath_prepend(str(tmp_path))
    named = identity("a_model_of_mine")
    assert named["kind"] == "a_model_of_mine"
    (tmp_path / "elsewhere.py").write_text(GRUG)
    assert identity(str(tmp_path / "elsewhere.py")) == named | {"kind": "elsewhere.py"}
    assert identity("grug") == {"kind": "grug"}


def test_a_file_that_is_no_model_says_why(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import a_file_beside_it\n")
    with pytest.raises(UsageError, match=r"mine.py: No module named 'a_file_beside_it'. .* keep the model in one file"):
        load_model(str(path))
    path.write_text("Config = int\n")
    with pytest.raises(UsageError, match=r"mine.py does not define weights, .*see models/protocol.py"):
        load_model(str(path))
    path.write_text("\n1 / 0\n")
    with pytest.raises(UsageError, match=r"mine.py, line 2: ZeroDivisionError: division by zero"):
        load_model(str(path))
    assert not [name for name in sys.modules if getattr(sys.modules[name], "__file__", None) == str(path)]
    path.write_text(GRUG)
    with pytest.raises(UsageError, match=r'write kind = "mine\.py" for the file beside the run file'):
        run_with(tmp_path, "mine")


def trained(folder: Path, kind: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of two steps of a run file in `folder`, with these settings of the model."""
    path = folder / "run.toml"
    lines = [f"{key} = {toml(value)}" for key, value in ({"kind": kind} | settings).items() if value is not None]
    path.write_text("\n".join(['name = "own"', "steps = 2", 'compilation_cache = ""', "[model]", *lines]))
    run = read_run_file(path).run(BYTES)
    assert type(run.model).__module__.startswith("datakit_model_") == (kind == "copy.py")
    return read_metrics(train(run, TextBytes(), str(folder / f"root of {kind}"), say=silent).directory)


@pytest.mark.parametrize("name", KIND.built_in)
def test_a_copy_of_every_model_trains_as_the_model_does(name: str, tmp_path: Path) -> None:
    """Each model is a file to copy: beside a run file, a copy computes what the model computes."""
    model = load_model(name)
    (tmp_path / "copy.py").write_text(Path(model.__file__).read_text())
    config = next(config for module, config in MODELS.values() if module is model)
    settings = dataclasses.asdict(dataclasses.replace(config, layers=1, vocabulary=BYTES))
    ours, theirs = (trained(tmp_path, kind, settings) for kind in ("copy.py", name))
    assert [row["train/loss"] for row in ours] == [row["train/loss"] for row in theirs]
    assert [row.keys() for row in ours] == [row.keys() for row in theirs]
    assert len(ours) == 2
    assert all(np.isfinite(row["train/loss"]) for row in ours)
