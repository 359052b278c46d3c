"""Tests of the stage that makes the contract."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datakit.cache.contract import Special
from datakit.engine.task import Phase, Preload, Step, TaskResult
from datakit.errors import CorruptError, TokenizerError
from datakit.pipeline.configuration.configure import configure
from datakit.recipe import load_recipe
from datakit.tokenize import stage
from datakit.tokenize.contract_stage import LOSS_MASKS, NAME, contract_of, plan
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


ARRAYS = Preload("datakit.cache.zarr_arrays", "datakit.cache.zarr_arrays:prepare")


@pytest.mark.parametrize(
    ("choices", "loss_masks"),
    [
        ({}, False),
        ({"formats": {"novels": "text"}, "loss_mask": "mask"}, False),
        ({"formats": {"novels": "tokens"}}, False),
        ({"formats": {"novels": "tokens"}, "loss_mask": "mask"}, True),
        ({"formats": {"novels": "chat"}}, True),
    ],
    ids=["default", "text", "tokens", "masked tokens", "chat"],
)
def test_contract_and_tokenize_share_a_fork_server(tmp_path: Path, choices: dict[str, Any], loss_masks: bool) -> None:
    """The server imports TensorStore if loss masks will be written."""
    given = tmp_path / "tokenizer.json"
    given.write_bytes(trained())
    tokenizing = tokenize_step(tmp_path / "cache", clean(tmp_path, {"novels": ["one", "two"]}), given, **choices)
    (settled,) = tokenizing.inputs_of(NAME)
    made = replace(contract_step(tmp_path / "made", trained()), directory=settled.directory)
    made = replace(made, operations=made.operations | ({LOSS_MASKS: True} if loss_masks else {}))
    phases = plan(made)
    preloads = phases.send(_results(next(phases), made)).preloads
    assert preloads == next(stage.plan(tokenizing)).preloads != ()
    assert (ARRAYS in preloads) == loss_masks


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_recipe_tells_the_contract_about_loss_masks(tmp_path: Path, kind: str) -> None:
    recipe = tmp_path / "shelf.toml"
    recipe.write_text(
        'name = "shelf"\n[[sources]]\nname = "novels"\nurl = "novels.jsonl"\n'
        f'[tokenize]\ntokenizer = "bytes"\nformats = {{ novels = "{kind}" }}\n'
    )
    found = configure(load_recipe(recipe))[NAME][None]
    assert found.operations == ({LOSS_MASKS: True} if kind == "chat" else {})


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
