"""The tokenizer's contract is made while the sources are normalized, and depends on the tokenizer alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import datakit
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.errors import TokenizerError
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import prose, write_lines
from tests.support.trees import tree

# A transform that passes records on only once a file with the given name and content lies below the given folder.
TRANSFORM = """
import time
from pathlib import Path

def wait(batch):
    deadline = time.monotonic() + 600
    while not any({text!r} in path.read_text() for path in Path({folder!r}).rglob({name!r})):
        if time.monotonic() > deadline:
            raise TimeoutError("nothing has happened")
        time.sleep(0.01)
    return batch
"""


def write_recipe(folder: Path, waits_for: tuple[str, str] | None = None, tokenize: str = "") -> Path:
    """Write a recipe of nine notes; normalize ends only once a file `waits_for` (name, text in it) exists."""
    write_lines(folder / "notes" / "a.jsonl", [prose(row) for row in range(9)])
    name, text = waits_for or ("notes.toml", "")
    (folder / "waiting.py").write_text(TRANSFORM.format(folder=str(folder), name=name, text=text))
    path = folder / "notes.toml"
    path.write_text(
        'name = "texts"\n[[sources]]\nname = "notes"\nurl = "notes"\n'
        'transform = "waiting:wait"\ntransform_version = 1\n'
        f'[tokenize]\ntokenizer = "bytes"\n{tokenize}\n'
    )
    return path


def test_contract_is_made_before_normalize_ends(tmp_path: Path) -> None:
    """Normalize waits for the manifest of the contract, so a run in another order would fail."""
    recipe = write_recipe(tmp_path, ("manifest.json", '"stage": "contract"'))
    result = datakit.run(recipe, tmp_path / "root", workers=2)
    (settled,), (made,) = result.steps_of("contract"), result.steps_of("tokenize")
    assert settled.manifest.inputs == []
    cache = datakit.open_cache(made.directory)
    assert cache.manifest.details["contract"] == settled.manifest.details["contract"]
    assert (Path(made.directory) / "tokenizer.json").read_bytes() == (
        Path(settled.directory) / "tokenizer.json"
    ).read_bytes()


def test_unusable_tokenizer_is_reported_before_normalize_ends(tmp_path: Path) -> None:
    """The steps that do not need it are finished, and the next run reuses them."""
    recipe = write_recipe(tmp_path, ("events.jsonl", "contract failed"), 'eos = "<stop>"')
    with pytest.raises(TokenizerError, match="the tokenizer has no token '<stop>'; its special tokens are") as failure:
        datakit.run(recipe, tmp_path / "root", workers=2)
    assert failure.value.exit_code == 2
    finished = {path.parent.name.rpartition("-")[0] for path in (tmp_path / "root").rglob("manifest.json")}
    assert finished == {"download", "normalize", "select", "consolidate"}
    result = datakit.run(recipe, tmp_path / "root", workers=2, settings=["tokenize.eos='<|endoftext|>'"])
    assert {step.stage for step in result.steps if not step.reused} == {"contract", "tokenize"}


def test_driver_killed_after_the_contract_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    recipe, root = write_recipe(tmp_path, ("go", "")), tmp_path / "root"
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", str(root), "--workers", "2"]
    driver = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: driver.poll() is not None or any(root.glob("texts/contract-*/manifest.json")))
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait(60)
    assert not any(root.glob("sources/notes/normalize-*/manifest.json"))
    (tmp_path / "go").touch()
    result = datakit.run(recipe, root, workers=2)
    (settled,) = result.steps_of("contract")
    assert settled.reused
    attempts = [line.phase for line in read_ledger(settled.directory) if isinstance(line, AttemptLine)]
    assert attempts == ["copy", "contract"]
    datakit.run(recipe, tmp_path / "other", workers=1)
    assert tree(str(root)) == tree(str(tmp_path / "other"))


def test_contract_depends_on_the_tokenizer_and_not_on_the_data(tmp_path: Path) -> None:
    recipe, root = write_recipe(tmp_path), tmp_path / "root"
    first = datakit.run(recipe, root, workers=2)
    write_lines(tmp_path / "notes" / "b.jsonl", [prose(100)])
    second = datakit.run(recipe, root, workers=2)
    assert reused(second, "contract") and not reused(second, "tokenize")
    third = datakit.run(recipe, root, workers=2, settings=["tokenize.add=none"])
    assert not reused(third, "contract") and not reused(third, "tokenize") and reused(third, "select")
    identities = [run.steps_of("tokenize")[0].manifest.identity for run in (first, second, third)]
    assert len(set(identities)) == 3


def reused(result: datakit.RunResult, stage: str) -> bool:
    (step,) = result.steps_of(stage)
    return step.reused


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
