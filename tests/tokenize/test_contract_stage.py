"""Tests of the stage that makes the contract."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from datakit.cache.contract import Special
from datakit.engine.task import Phase, Step, TaskResult
from datakit.errors import CorruptError, TokenizerError
from datakit.tokenize import stage
from datakit.tokenize.contract_stage import NAME, contract_of, plan
from datakit.validate.validation import validate
from tests.support.caches import CHOICES, clean, contract, tokenize_step, trained
from tests.support.caches import contract_of as contract_made
from tests.support.engine.inline import run_plan_inline, run_task_inline
from tests.support.partitions import contents, step


def contract_step(directory: Path, data: bytes, **choices: str) -> Step:
    """The step that makes the contract of a tokenizer file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "given.json"
    path.write_bytes(data)
    settings = {**CHOICES, "tokenizer_sha256": hashlib.sha256(data).hexdigest(), **choices}
    made = step(directory / "step", NAME, (), **settings)
    return replace(made, directory=str(directory / "step"), operations={"tokenizer_path": str(path)})


def _results(phase: Phase, made: Step) -> list[TaskResult]:
    return [run_task_inline(task, phase, made.directory) for task in phase.tasks]


def test_step_keeps_the_tokenizer_and_the_contract(tmp_path: Path) -> None:
    data = trained()
    made = contract_step(tmp_path, data)
    output, _ = run_plan_inline(plan(made), made.directory)
    assert contents(tmp_path / "step") == {"tokenizer.json": data}
    assert [(part.path, part.rows, part.bytes) for part in output.partitions] == [("tokenizer.json", 400, len(data))]
    settled = contract(tmp_path, made.parameters, operations=made.operations)
    assert contract_of(settled) == contract_made(data)
    assert contract_of(settled).eos == Special("<|endoftext|>", 0)
    assert output.details == settled.manifest.details


def test_tokenizer_other_than_planned_is_refused(tmp_path: Path) -> None:
    made = contract_step(tmp_path, trained())
    (tmp_path / "given.json").write_bytes(trained(500))
    with pytest.raises(TokenizerError, match="planned with"):
        run_plan_inline(plan(made), made.directory)


@pytest.mark.parametrize(
    ("data", "choices", "message"),
    [
        (b'{"model": 7}', {}, r"not a tokenizer\.json"),
        (trained(), {"eos": "<stop>"}, "the tokenizer has no token '<stop>'"),
        (trained(), {"add": "both"}, "no token with a usual name for bos"),
    ],
    ids=["not a tokenizer", "no such token", "no token for bos"],
)
def test_unusable_tokenizer_is_refused(tmp_path: Path, data: bytes, choices: dict[str, str], message: str) -> None:
    made = contract_step(tmp_path, data, **choices)
    with pytest.raises(TokenizerError, match=message):
        run_plan_inline(plan(made), made.directory)


def test_tokenizer_damaged_after_it_was_written_is_refused(tmp_path: Path) -> None:
    made = contract_step(tmp_path, trained())
    phases = plan(made)
    copied = _results(next(phases), made)
    (tmp_path / "step" / "tokenizer.json").write_bytes(trained(500))
    with pytest.raises(CorruptError, match="was written with"):
        _results(phases.send(copied), made)


def test_contract_and_tokenize_share_a_fork_server(tmp_path: Path) -> None:
    given = tmp_path / "tokenizer.json"
    given.write_bytes(trained())
    tokenizing = tokenize_step(tmp_path / "cache", clean(tmp_path, {"novels": ["one", "two"]}), given)
    (settled,) = tokenizing.inputs_of(NAME)
    made = replace(contract_step(tmp_path / "made", trained()), directory=settled.directory)
    phases = plan(made)
    assert phases.send(_results(next(phases), made)).preloads == next(stage.plan(tokenizing)).preloads != ()


def test_manifest_without_a_contract_is_damaged(tmp_path: Path) -> None:
    made = contract_step(tmp_path, trained())
    settled = contract(tmp_path, made.parameters, operations=made.operations)
    settled.manifest.details.clear()
    with pytest.raises(CorruptError, match="holds no contract"):
        contract_of(settled)


def test_validation_finds_another_tokenizer(tmp_path: Path) -> None:
    made = contract_step(tmp_path, trained())
    directory = contract(tmp_path, made.parameters, operations=made.operations).directory
    assert not validate(directory).findings
    (Path(directory) / "tokenizer.json").write_bytes(trained(500))
    (found,) = {one.url for one in validate(directory).findings}
    assert found == f"{directory}/tokenizer.json"
