"""Every ferry is complete, is scheduled as it says, and the ferry `smoke` passes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from datakit.api import plan
from datakit.cli.ferry.ferry_command import PARENT
from datakit.errors import UsageError
from datakit.ferries.catalog import FERRIES, SMOKE_LOSS, ferry_named
from datakit.ferries.ferry import NOT_OBSERVED, Ferry
from datakit.ferries.inputs import RECIPES, recipe_file
from datakit.ferries.stages import MEASURED, STAGES
from datakit.recipe import load_recipe
from datakit.trainer.run_file import read_run_file
from tests.support.command_line import invoke
from tests.support.ferries.tiny_ferry import sail
from tests.support.paths import REPOSITORY

WORKFLOW = REPOSITORY / ".github" / "workflows" / "ferry.yml"


@pytest.mark.parametrize("ferry", FERRIES, ids=lambda ferry: ferry.name)
def test_ferry_is_complete(ferry: Ferry) -> None:
    assert load_recipe(recipe_file(ferry.recipe) or ferry.recipe).sources
    assert set(ferry.stages) <= set(STAGES) and set(MEASURED) <= set(STAGES)
    assert {"run", "report"} <= set(ferry.stages)
    trains = {"train", "interrupt"} & set(ferry.stages)
    assert bool(trains) == (ferry.training is not None)
    if ferry.training:
        assert read_run_file(RECIPES / ferry.training.run_file).data_table
    assert ferry_named(ferry.name) is ferry


def test_workflow_runs_each_ferry_on_schedule() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    triggers = workflow[True]  # YAML reads `on` as true
    assert sorted(entry["cron"] for entry in triggers["schedule"]) == sorted(ferry.schedule for ferry in FERRIES)
    assert triggers["workflow_dispatch"]["inputs"]["ferry"]["options"] == [ferry.name for ferry in FERRIES]
    for ferry in FERRIES:
        assert f'"{ferry.schedule}" # {ferry.name}\n' in WORKFLOW.read_text()
    minutes = [job["timeout-minutes"] for job in workflow["jobs"].values()]
    assert max(ferry.timeout for ferry in FERRIES if not ferry.needs_cluster) < 60 * minutes[0]
    assert ferry_named("nightly").timeout < 60 * minutes[1]


def test_nightly_states_its_requests_and_can_be_planned(tmp_path: Path) -> None:
    nightly = ferry_named("nightly")
    assert len(nightly.requests) >= 3 and {request.observed for request in nightly.requests} == {NOT_OBSERVED}
    recipe = load_recipe(nightly.recipe)
    assert recipe.sources[0].revision and recipe.sources[0].url.startswith("hf://")
    assert [step.stage for step in plan(recipe, tmp_path, offline=True).steps] == [
        "download", "normalize", "signatures", "dedup", "select", "consolidate", "train-tokenizer",
        "contract", "tokenize",
    ]  # fmt: skip


def test_list_shows_each_ferry_with_its_requests(tmp_path: Path) -> None:
    shown = invoke("ferry", "list", cwd=tmp_path, COLUMNS="80").stdout
    assert all(ferry.name in shown and ferry.schedule in shown for ferry in FERRIES)
    assert "120 GB" in " ".join(shown.split()) and max(map(len, shown.splitlines())) <= 80
    listed = json.loads(invoke("ferry", "list", "--json", cwd=tmp_path).stdout)["ferries"]
    assert [ferry["name"] for ferry in listed] == [ferry.name for ferry in FERRIES]


def test_unknown_ferry_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'smoke'"):
        ferry_named("smok")


def test_smoke_ferry_proves_that_everything_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As README.md prints it. The limits hold for idle machines, and are not tested here."""
    monkeypatch.setattr("datakit.ferries.runner.beyond_limits", lambda *arguments: [])
    done = invoke("ferry", "run", "smoke", "--first", cwd=tmp_path)
    assert done.returncode == 0 and "failed" not in done.stderr, done.stderr
    (root,) = (tmp_path / PARENT).glob("smoke-*")
    status = json.loads((root / "ferry_run_status.json").read_bytes())
    record = json.loads((root / "ferry_record.json").read_bytes())
    assert status["outcome"] == record["outcome"] == "no baseline" and status["root"] == str(root)
    assert Path(status["page"]).parent == root / "report" and Path(status["page"]).is_file()
    assert 0 < record["figures"]["train/loss"] < SMOKE_LOSS < math.log(8192)
    assert {"run/normalize", "run/tokenize", "train", "validate"} <= {part["name"] for part in record["parts"]}
    (log,) = root.glob("logs/*-validate-training.out")
    checks = {check["check"]: check["compared"] for check in json.loads(log.read_bytes())["steps"][0]["checks"]}
    assert checks["batches"], "the last logged batch was made again"
    assert str(root / "ferry_record.json") in done.stdout and status["page"] in done.stdout


@pytest.mark.soak
def test_skewed_ferry_passes_at_a_small_scale(tmp_path: Path) -> None:
    first, second = (sail(ferry_named("skewed"), tmp_path / "ferries", scale=0.01) for _ in range(2))
    assert first.record.outcome == "no baseline"
    assert second.record.outcome == "passed" and second.record.compared_steps == len(second.record.steps)


@pytest.mark.soak
def test_canary_is_stopped_and_resumes(tmp_path: Path) -> None:
    ended = sail(ferry_named("train-canary"), tmp_path / "ferries")
    assert ended.record.outcome == "no baseline"
    assert [part.name for part in ended.record.parts if "/" not in part.name] == [
        "run", "validate", "interrupt", "resume", "validate-training",
    ]  # fmt: skip
