"""Lets processes on two "hosts" use one root at the same time, and kills them anywhere.

A `World` holds what the user would know: the recipes. Each action is executed by a process of its own, with the code
that the commands use, at random speed. An audit hook counts everything that the process does with files; at a random
one of these, the process may be killed. The steps are tiny, but their manifests, leases, pins and moves are real.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from datakit.errors import NotFoundError, RetentionError, UsageError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import EXPIRED_SECONDS, USE
from datakit.retention.collection import remove_garbage
from datakit.retention.pinning import pin_step, unpin_step
from datakit.storage.manifest import is_finished
from tests.support.retention.tiny_roots import (
    age,
    is_whole,
    set_latest,
    step_path,
    steps_of,
    write_step,
    write_training_run,
)

DATASETS, SOURCES = ("poems", "plays"), ("web", "books")
WATCHED = ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.listdir", "os.scandir", "os.truncate")
PAUSE_SECONDS = 0.004
DONE, KILLED, REFUSED = 0, -signal.SIGKILL, 3


@dataclass(frozen=True)
class Recipe:
    """A dataset's settings: one key for each source, and one for the dataset's own stages."""

    sources: tuple[str, ...]
    own: str


@dataclass
class World:
    """A root, the recipes of its datasets, and the pins that were confirmed."""

    root: str
    random: random.Random
    recipes: dict[str, Recipe] = field(default_factory=dict)
    pins: set[str] = field(default_factory=set)
    runs: int = 0

    def __post_init__(self) -> None:
        Path(self.root).mkdir()
        self.recipes = {dataset: Recipe(("0", "0"), "0") for dataset in DATASETS}

    def change_recipe(self) -> None:
        """Change one setting of one recipe."""
        dataset = self.random.choice(DATASETS)
        recipe, key = self.recipes[dataset], str(self.random.randrange(3))
        change = self.random.randrange(3)
        sources = tuple(key if place == change else old for place, old in enumerate(recipe.sources))
        self.recipes[dataset] = Recipe(sources, key if change == 2 else recipe.own)

    def action(self) -> Action:
        """Choose what one host does next."""
        kind = self.random.choices(("run", "pin", "unpin", "train", "gc"), (5, 2, 1, 2, 5))[0]
        if kind == "run":
            dataset = self.random.choice(DATASETS)
            return Action(kind, dataset, lambda: run(self.root, dataset, self.recipes[dataset]))
        if kind == "train":
            self.runs += 1
            name, dataset = f"model{self.runs}", self.random.choice(DATASETS)
            return Action(kind, name, lambda: train(self.root, name, dataset))
        steps = sorted(self.pins if kind == "unpin" else steps_of(self.root))
        if kind == "gc" or not steps:
            return Action("gc", "", lambda: collect(self.root))
        step = self.random.choice(steps)
        if kind == "unpin":
            return Action(kind, step, lambda: unpin(self.root, step))
        return Action(kind, step, lambda: pin(self.root, step))


@dataclass(frozen=True)
class Action:
    """Something that one host does. what: the dataset, the training run or the step that it is done with."""

    kind: str
    what: str
    call: Callable[[], None]


def recipe_steps(dataset: str, recipe: Recipe) -> list[tuple[str, list[str]]]:
    """Return the path and the inputs of each step of a recipe, in the order in which they are made."""
    steps, texts = list[tuple[str, list[str]]](), list[str]()
    for source, key in zip(SOURCES, recipe.sources, strict=True):
        download = step_path(f"sources/{source}", "download", "0")
        texts.append(step_path(f"sources/{source}", "normalize", key))
        steps += [(download, []), (texts[-1], [download])]
    key = f"{recipe.sources} {recipe.own}"
    dedup, cache = step_path(dataset, "dedup", key), step_path(dataset, "tokenize", key)
    return [*steps, (dedup, texts), (cache, [*texts, dedup])]


def run(root: str, dataset: str, recipe: Recipe) -> None:
    """Do with tiny steps what `pipeline.running.run` does, in the same order; check that nothing vanishes."""
    steps = recipe_steps(dataset, recipe)
    with Lease(root, USE, f"datakit run {dataset}") as lease:
        lease.hold([f"{root}/{path}" for path, _ in steps])
        for path, inputs in steps:
            lease.hold([f"{root}/{path}"])
            if not is_finished(f"{root}/{path}"):
                lease.begin()
                require_whole(root, inputs)
                write_step(root, path, inputs)
        require_whole(root, [path for path, _ in steps])
        lease.require()
        set_latest(root, steps[-1][0])


def train(root: str, name: str, dataset: str) -> None:
    """Do what a training run does before its first step: find the cache, hold it, and record it."""
    try:
        cache = f"{dataset}/{latest(root, dataset)['cache']['directory']}"
    except FileNotFoundError:
        return
    with Lease(root, USE, "datakit train") as lease:
        lease.hold_finished([f"{root}/{cache}"])
        write_training_run(root, name, [cache])
        require_whole(root, [cache])


def pin(root: str, step: str) -> None:
    """Pin a step, unless it is pinned or was removed."""
    pin_step(f"{root}/{step}", "a test", lambda text: None)


def unpin(root: str, step: str) -> None:
    """Remove a pin."""
    unpin_step(f"{root}/{step}")


def collect(root: str) -> None:
    """Remove everything that is not needed."""
    remove_garbage(root, 0.0, unreachable=True)


def require_whole(root: str, paths: Collection[str]) -> None:
    """Raise AssertionError if a step on which a process relies is not there."""
    gone = [path for path in paths if not is_whole(root, path)]
    assert not gone, f"removed during use: {gone}"


def latest(root: str, dataset: str) -> dict[str, dict[str, str]]:
    """Return what is recorded for a dataset."""
    return json.loads(Path(root, dataset, "latest.json").read_text())


def execute(world: World, actions: list[Action]) -> list[int]:
    """Execute actions at the same time, and kill some of them. Return how each ended."""
    fates = [(world.random.randrange(1, 120) if world.random.random() < 0.4 else None, world.random.random())
             for _ in actions]  # fmt: skip
    children = [_start(action, *fate) for action, fate in zip(actions, fates, strict=True)]
    codes = dict[int, int]()
    while len(codes) < len(children):
        child, code = _next_end([one for one in children if one not in codes])
        codes[child] = code
        left = [action for action, other in zip(actions, children, strict=True) if other not in codes]
        if code == KILLED and not any(action.kind == "gc" for action in left):
            expire(world.root, "collect")  # the other process need not wait for as long as it really takes
    return [codes[child] for child in children]


def _next_end(children: list[int]) -> tuple[int, int]:
    """Wait until one of these processes ends; return its id and exit code. Other children of this process, such as
    those of a fork server, are left to those who wait for them.
    """
    while True:
        for child in children:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return child, os.waitstatus_to_exitcode(status)
        time.sleep(PAUSE_SECONDS / 4)


def expire(root: str, kind: str = "") -> None:
    """Let the leases of processes that have been killed expire."""
    age(root, ".leases", EXPIRED_SECONDS, kind)


def _start(action: Action, last: int | None, seed: float) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _disturb(last, random.Random(seed))
        action.call()
    except (RetentionError, UsageError, NotFoundError) as error:
        refused = REFUSED if _is_expected(action, error) else 1
        _leave(refused, "" if refused == REFUSED else traceback.format_exc())
    except BaseException:  # noqa: BLE001 - the parent process reports it
        _leave(1, traceback.format_exc())
    _leave(DONE, "")
    return 0


def _is_expected(action: Action, error: Exception) -> bool:
    """Return True for an error that tells the user what another host did."""
    texts = {
        "gc": "wait for it to end",
        "pin": "is pinned already|was removed before it was pinned|is neither|is not finished",
        "unpin": "is not pinned",
        "train": "was removed while this command started|holds no finished",
    }
    return any(text in str(error) for text in texts.get(action.kind, "\0").split("|"))


def _leave(code: int, message: str) -> None:
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(code)


def _disturb(last: int | None, chance: random.Random) -> None:
    """Make this process pause at some of its file operations, and kill it at the one with the number `last`."""
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event not in WATCHED:
            return
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        if chance.random() < 0.15:
            time.sleep(chance.random() * PAUSE_SECONDS)

    sys.addaudithook(hook)
