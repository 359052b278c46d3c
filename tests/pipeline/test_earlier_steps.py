"""Predecessors of a step: same stage, equal shared parameters, earlier format version, inputs that are made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datakit.engine.ledger.ledger import LedgerWriter, driver_name
from datakit.pipeline.earlier_steps import INPUTS, WHY, EarlierStep, find_earlier
from datakit.pipeline.graph import READS
from datakit.storage.manifest import InputReference, Manifest, Quarantine, Totals, write_manifest


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
