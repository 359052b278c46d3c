"""A run without some documents goes on from a checkpoint, and ends bit for bit as one that never trained on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from datakit.errors import LoaderError, UsageError
from datakit.loader import Exclusion, Loader
from datakit.storage.manifest import read_manifest
from datakit.trainer import train as loop
from datakit.trainer.commands import train_file
from datakit.trainer.explain.counterfactual import train_without
from datakit.trainer.explain.explain import Options, explain, open_run
from datakit.trainer.metrics.json_lines import read_metrics
from tests.support.trainer.trainer_runs import assert_same_state, final_state, losses, silent

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.xdist_group("explain")
STEP = 10  # after the checkpoint of step 8


@pytest.fixture(scope="module")
def excluded(run: str) -> list[str]:
    """The three documents that raise the loss of the step the most."""
    return [one.id for one in explain(run, STEP, options=Options(top=3, gradients=False), say=silent).documents]


@pytest.fixture(scope="module")
def without(run: str, excluded: list[str]) -> str:
    """The directory of the finished run without these documents."""
    return train_without(run, STEP, excluded, say=silent).directory


def test_it_equals_a_run_of_a_fresh_loader_with_the_same_exclusion(
    run: str, without: str, excluded: list[str], tmp_path: Path
) -> None:
    opened = open_run(run, "./data", (), silent)
    mixture = replace(opened.data.mixture, exclusions=[Exclusion(excluded, STEP - 1)])
    with Loader(mixture) as loader:
        fresh = loop.train(opened.run, loader, str(tmp_path), say=silent).directory
    assert_same_state(final_state(without, opened.run), final_state(fresh, opened.run))
    assert losses(without) == losses(fresh)[8:]
    assert losses(without)[0] == losses(run)[8]
    assert losses(without)[1] != losses(run)[9]
    digests = [[row["data/batch_xxh3"] for row in read_metrics(one)] for one in (without, fresh)]
    assert digests[0] == digests[1][8:]


def test_the_record_says_what_was_excluded_and_where_it_started(run: str, without: str, excluded: list[str]) -> None:
    manifest = read_manifest(without)
    assert manifest.details["mixture"]["exclusions"] == [[STEP - 1, sorted(excluded)]]
    assert manifest.details["origin"]["step"] == 8
    assert manifest.parameters["resume_from"] == f"{{root}}/{'/'.join(Path(run).parts[-2:])}/checkpoints/step-000000008"
    record = json.loads((Path(without) / "run.json").read_text())
    assert record["data"]["exclusions"] == [{"start_step": STEP - 1, "documents": sorted(excluded)}]
    assert record["run"]["resume_from"] == manifest.parameters["resume_from"]
    shown = explain(without, STEP, options=Options(top=99, gradients=False), say=silent).documents
    assert {one.id for one in shown if one.excluded} == set(excluded)
    assert all((one.predicted == 0) == one.excluded for one in shown if one.tokens > 1)


def test_the_same_command_goes_on_with_the_same_run(
    run: str, without: str, excluded: list[str], lines: list[str]
) -> None:
    again = train_without(run, STEP, excluded[::-1], say=lines.append)
    assert again.directory == without
    assert lines[0] == f"the run without these documents has begun: {without}"
    assert train_file(without, say=silent).directory == without


def test_unknown_documents_and_steps_are_refused(run: str) -> None:
    with pytest.raises(LoaderError, match="no component's cache holds document " + "ab" * 16):
        train_without(run, STEP, ["ab" * 16], say=silent)
    with pytest.raises(UsageError, match="has not trained this step"):
        train_without(run, 99, ["ab" * 16], say=silent)
