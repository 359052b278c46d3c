"""Tolerances are checked on every step, and quarantined records change the identity of everything downstream."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import datakit
from datakit.engine.observe.observer import Observer
from datakit.errors import InputError, PartialError, StepFailedError
from datakit.recipe import Recipe, Source
from tests.support.small_shelf import prose, write_lines


def test_quarantined_records_change_downstream_identities(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(number) for number in range(20)])
    with (tmp_path / "texts" / "a.jsonl").open("a") as file:
        file.write('{"text": "broken\n')
    recipe = Recipe("r", (Source("s", str(tmp_path / "texts")),))
    with pytest.raises(PartialError, match="max_quarantined"):
        datakit.run(recipe, tmp_path / "root")
    promised = datakit.plan(recipe, tmp_path / "root").steps[-1]
    result = datakit.run(recipe, tmp_path / "root", settings=["normalize.max_quarantined=1"])
    normalize, consolidate = result.steps_of("normalize")[0], result.steps_of("consolidate")[0]
    assert normalize.manifest.quarantine.records == 1
    assert normalize.manifest.identity != normalize.manifest.fingerprint
    assert (promised.settled, promised.directory == consolidate.directory) == (False, False)
    assert datakit.plan(recipe, tmp_path / "root").steps[-1].directory == consolidate.directory
    with pytest.raises(InputError, match=r"1 record in quarantine.*normalize\.max_quarantined = 0"):
        datakit.run(recipe, tmp_path / "root")
    assert datakit.run(recipe, tmp_path / "root", settings=["normalize.max_quarantined=5"]).reused


def test_limits_apply_to_a_step_another_driver_finished(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(number) for number in range(20)])
    with (tmp_path / "texts" / "a.jsonl").open("a") as file:
        file.write('{"text": "broken\n' * 30)  # enough for the task to give up and find the step done
    recipe = Recipe("r", (Source("s", str(tmp_path / "texts")),))
    root = tmp_path / "root"

    class Overtaking(Observer):
        def phase_started(self, step, phase, done, slots) -> None:
            if phase.name == "route":
                datakit.run(recipe, root, settings=["normalize.max_quarantined=30"], until="normalize")

    with pytest.raises(InputError, match=r"30 records in quarantine.*max_quarantined = 0"):
        datakit.run(recipe, root, until="normalize", observer=Overtaking())


def test_removal_limit_is_checked_but_not_in_the_identity(
    finished_run: datakit.RunResult, finished: Path, finished_copy: Path
) -> None:
    recipe, strict = finished / "shelf" / "shelf.toml", ["dedup.max_removal=0.05"]
    with pytest.raises(InputError, match=r"6\.0% of the documents of source 'letters' .* dedup\.max_removal = 0\.05"):
        datakit.run(recipe, finished_copy / "root", settings=strict)
    (dedup,) = (finished_copy / "root" / "shelf").glob("dedup-*")
    shutil.rmtree(dedup)
    with pytest.raises(StepFailedError, match=r"'letters' would lose 3 of 50"):
        datakit.run(recipe, finished_copy / "root", settings=strict)
    raised = datakit.run(recipe, finished_copy / "root", settings=["dedup.max_removal=0.06"], until="dedup")
    assert raised.steps_of("dedup")[0].manifest == finished_run.steps_of("dedup")[0].manifest
