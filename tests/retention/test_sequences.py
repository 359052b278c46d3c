"""Random sequences of runs, changed recipes, pins, training runs and `datakit gc`, on two hosts, with kills in between.

The model reads a root's records by itself. It requires that no step that anything needs is ever removed, that no
process loses a step on which it relies, that every removed step is whole in the trash, and that `datakit gc` leaves
nothing that is not needed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datakit.leases.lease_files import EXPIRED_SECONDS
from tests.support.retention.tiny_hosts import (
    DATASETS,
    DONE,
    KILLED,
    REFUSED,
    Action,
    World,
    collect,
    execute,
    expire,
    latest,
)
from tests.support.retention.tiny_roots import is_whole, steps_of, trashed

ROUNDS = 8


def needed(root: str, pins: set[str]) -> set[str]:
    """Return the steps that records, pins and training runs need, with all steps that these were made from."""
    found = set(pins)
    for dataset in DATASETS:
        if Path(root, dataset, "latest.json").exists():
            record = latest(root, dataset)
            found |= {f"{dataset}/{record[name]['directory']}" for name in ("step", "cache")}
        else:
            found |= {step for step in steps_of(root) if step.startswith(f"{dataset}/")}
    for path in Path(root).glob("model*/train-*/caches.json"):
        record = json.loads(path.read_text())
        found |= {record[place][0].removeprefix("../../") for place in record if place != "format"}
    return with_inputs(root, found)


def with_inputs(root: str, steps: set[str]) -> set[str]:
    """Return these steps and all from which they were made."""
    found, pending = set[str](), [*steps]
    while pending:
        step = pending.pop()
        if step not in found:
            found.add(step)
            inputs = json.loads(Path(root, step, "manifest.json").read_text())["inputs"]
            pending += [os.path.normpath(f"{step}/{entry['path']}").removesuffix("/manifest.json") for entry in inputs]
    return found


def leased(root: str) -> set[str]:
    """Return the finished steps that the leases of killed processes name, without leases that have expired."""
    live = [
        path for path in Path(root).glob(".leases/use-*.json") if time.time() - path.stat().st_mtime < EXPIRED_SECONDS
    ]
    return {step for path in live for step in json.loads(path.read_text())["steps"]} & steps_of(root)


def check(world: World, held: set[str]) -> None:
    """held: the steps in leases that did not expire during the last round."""
    for step in needed(world.root, world.pins) | with_inputs(world.root, held):
        assert is_whole(world.root, step), f"{step} is needed, but was removed"


def note_pins(world: World, actions: list[Action], codes: list[int]) -> None:
    """Keep in mind which pins the user was told of. A killed command has pinned or unpinned its step, or not."""
    for action, code in zip(actions, codes, strict=True):
        if action.kind == "unpin":
            world.pins.discard(action.what)
        elif action.kind == "pin" and code == DONE:
            world.pins.add(action.what)


def all_pins(root: str) -> set[str]:
    """Return the pinned steps that exist, including those of killed commands."""
    pins = {json.loads(path.read_text())["step"] for path in Path(root).glob(".pins/*.json")}
    return {step for step in pins if Path(root, step, "manifest.json").exists()}


def play(folder: Path, seed: int) -> None:
    """Play one sequence."""
    world = World(str(folder), random.Random(seed))
    made = set[str]()
    for _ in range(ROUNDS):
        if world.random.random() < 0.5:
            world.change_recipe()
        if world.random.random() < 0.3:
            expire(world.root)
            held = set[str]()
        else:
            held = leased(world.root)
        actions = [world.action() for _ in range(world.random.choice((1, 2, 2)))]
        codes = execute(world, actions)
        assert set(codes) <= {DONE, KILLED, REFUSED}, [action.kind for action in actions]
        note_pins(world, actions, codes)
        check(world, held)
        made |= steps_of(world.root)
        assert made <= steps_of(world.root) | trashed(world.root), (
            "a finished step is neither in place nor in the trash"
        )
    expire(world.root)
    collect(world.root)
    assert steps_of(world.root) == needed(world.root, all_pins(world.root))
    begun = {str(path.parent.parent) for path in folder.glob("*/*/ledger/x")}
    assert all(Path(step, "manifest.json").exists() for step in begun), "unfinished steps are removed"


def test_other_children_of_this_process_are_not_waited_for(tmp_path: Path) -> None:
    world = World(str(tmp_path / "root"), random.Random(0))
    other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert execute(world, [Action("run", "poems", lambda: None)]) == [DONE]
    assert other.wait() == 7


@pytest.mark.parametrize("seed", range(10))
def test_gc_keeps_what_is_needed_and_frees_the_rest(tmp_path: Path, seed: int) -> None:
    play(tmp_path / "root", seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 210))
def test_gc_keeps_what_is_needed_in_many_sequences(tmp_path: Path, seed: int) -> None:
    play(tmp_path / "root", seed)
