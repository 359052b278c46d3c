"""A model that is missing or is another file is refused before any stage runs, and a good one is hashed once."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from datakit.api import plan, run
from datakit.download.hashes import SETTLED_NS
from datakit.errors import RefusedError, RefusedInputsError
from tests.support.annotate.fasttext_files import Spec, write

OTHER = "0" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with texts and with a model that has not changed lately."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"the text {n}"}) + "\n" for n in range(5)))
    model = tmp_path / "model.bin"
    model.write_bytes(write(Spec()).data)
    settle(model)
    return tmp_path


def settle(path: Path) -> None:
    """Wait until the file's hash may be stored: its time of change cannot be set."""
    old = time.time_ns() - 10 * SETTLED_NS
    os.utime(path, ns=(old, old))
    time.sleep(max(0.0, (path.stat().st_ctime_ns + SETTLED_NS - time.time_ns()) / 1e9) + 0.05)


def recipe(folder: Path, sha256: str, model: str = "model.bin", more: str = "") -> Path:
    path = folder / "r.toml"
    path.write_text(
        f'name = "shelf"\n[[sources]]\nname = "a"\nurl = "a.jsonl"\n[annotate.classifier_fasttext]\n'
        f'model = "{model}"\nsha256 = "{sha256}"\nlabels = ["en"]\n{more}'
    )
    return path


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("command", [plan, run])
def test_model_with_another_sha256_is_refused_before_any_stage(folder: Path, command: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        command(recipe(folder, OTHER), folder / "root")
    message = str(caught.value)
    for part in ("r.toml, [annotate.classifier_fasttext]", str(folder / "model.bin"), OTHER,
                 sha256_of(folder / "model.bin"), "change `sha256` if this file is the right one"):  # fmt: skip
        assert part in message
    assert not list((folder / "root").glob("sources/*/*")) and caught.value.exit_code == 2


@pytest.mark.parametrize("command", [plan, run])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gone.bin", rf"gone.bin does not exist \(expected sha256 {OTHER}\); restore it, or change `model`"),
        (".", "cannot be read: Is a directory"),
        ("s3://bucket/model.bin", "is not a file on this machine; copy it to a local path"),
    ],
)
def test_model_that_is_no_file_is_refused(folder: Path, command: Any, model: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        command(recipe(folder, OTHER, model), folder / "root")


def test_all_wrong_models_are_reported_together(folder: Path) -> None:
    more = f'[annotate.classifier_linear]\nmodel = "gone.linear"\nsha256 = "{OTHER}"\n'
    with pytest.raises(RefusedInputsError) as caught:
        plan(recipe(folder, OTHER, more=more), folder / "root")
    assert len(caught.value.messages) == 2


def test_stages_before_annotate_need_no_model(folder: Path) -> None:
    assert run(recipe(folder, OTHER), folder / "root", until="normalize").steps_of("normalize")


def test_finished_steps_need_no_model(folder: Path) -> None:
    path = recipe(folder, sha256_of(folder / "model.bin"))
    first = run(path, folder / "root", until="annotate", workers=1)
    (folder / "model.bin").unlink()
    again = run(path, folder / "root", until="annotate", workers=1)
    assert [step.directory for step in again.steps] == [step.directory for step in first.steps]
    assert any("model.bin does not exist" in note and "not needed now" in note for note in again.notes)
    assert any("not needed now" in note for note in plan(path, folder / "root", until="annotate").notes)


def test_unchanged_model_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan stores nothing; a run stores the hash; both use it, until the file changes."""
    hashed, real = list[str](), hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: (hashed.append(kind), real(file, kind))[1])
    model = folder / "model.bin"
    path = recipe(folder, sha256_of(model))
    plan(path, folder / "root")
    plan(path, folder / "root")
    assert hashed == ["sha256"] * 2
    run(path, folder / "root", until="annotate", workers=1)
    plan(path, folder / "root")
    run(path, folder / "root", until="annotate", workers=1)
    assert hashed == ["sha256"] * 3
    data, times = model.read_bytes(), model.stat()
    model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(RefusedError, match="is expected; use the file with the expected sha256"):
        plan(recipe(folder, sha256_of(model)[::-1]), folder / "root")
    assert hashed == ["sha256"] * 4
