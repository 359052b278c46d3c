"""Models are found by name or import path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.trainer.config import read_run_file
from datakit.trainer.models import grug, load_model, olmoe

RUN = 'name = "own"\nsteps = 1\n[model]\nhidden = 32\n'


def test_models_are_found_by_name_or_path() -> None:
    assert load_model("grug") is grug
    assert load_model("datakit.trainer.models.olmoe") is olmoe
    with pytest.raises(UsageError, match="did you mean 'grug'"):
        load_model("grugg")
    with pytest.raises(UsageError, match="cannot be imported"):
        load_model("nobody.has.this")
    with pytest.raises(UsageError, match=r"json/__init__.py does not define Config, weights, .*see models/protocol.py"):
        load_model("json")


def test_a_model_beside_the_run_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "run.toml"
    path.write_text(RUN + 'kind = "copied_grug"\n')
    with pytest.raises(UsageError, match=rf"put copied_grug.py into {tmp_path}, or give its import path"):
        read_run_file(path).run(256)
    (tmp_path / "copied_grug.py").write_text(Path(grug.__file__).read_text())
    run = read_run_file(path).run(256)
    assert run.kind == "copied_grug"
    assert type(run.model).__module__ == "copied_grug"
    assert (run.model.hidden, run.model.vocabulary) == (32, 256)
