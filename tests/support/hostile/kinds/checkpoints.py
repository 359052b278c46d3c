"""Checkpoints and the other files of a training run, as a stranger could have left them: the run is resumed, or goes
back to an older checkpoint, or is refused.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.hostile.case import OPENED, Case, Limits, Place, refused
from tests.support.hostile.kinds.columnar import Marked, Planted
from tests.support.processes import fake_devices

UNSAFE = "\x1b]0;owned\x07\u202e"
MOST = Limits(memory=3 << 30, written=256 << 20, seconds=400.0)
TRAIN = ("train", "data/run.toml", "--root", "data")
PLOT = ("train", "plot", "data")
Change = Callable[[Path, Place], object]


def altered(change: Change) -> Callable[[Place], None]:
    """Return a function that copies a finished training run, makes it unfinished, and changes its newest checkpoint."""

    def build(place: Place) -> None:
        shutil.copytree(place.trained(), place.work, dirs_exist_ok=True)
        (run,) = (place.work / "data").glob("*/train-*")
        (run / "manifest.json").unlink()
        change(sorted(run.glob("checkpoints/step-*"))[-1], place)

    return build


def marker(**changes: Any) -> Change:
    """Return a change of the marker's fields."""

    def change(checkpoint: Path, place: Place) -> None:
        file = checkpoint / "commit.json"
        found = json.loads(file.read_bytes())
        made = {key: value(found[key], place) if callable(value) else value for key, value in changes.items()}
        file.write_text(json.dumps(found | made))

    return change


def content(name: str, data: bytes) -> Change:
    """Return a change of a file's content."""

    def change(checkpoint: Path, place: Place) -> None:
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_bytes(data)

    return change


def special(name: str, make: Change) -> Change:
    """Return a change that replaces a file by something else."""

    def change(checkpoint: Path, place: Place) -> None:
        (checkpoint / name).unlink()
        make(checkpoint / name, place)

    return change


def folder(name: str) -> Change:
    """Return a change that copies the newest checkpoint to another name."""
    return lambda checkpoint, place: shutil.copytree(checkpoint, checkpoint.with_name(name))


def pickles(checkpoint: Path, place: Place) -> None:
    """Leave pickles where other programs would load them."""
    data = pickle.dumps([Marked(str(place.ran / "loaded")), Planted()])
    for name in ("state/checkpoint.pkl", "state/_sharding", "aggregate", "model.pt"):
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_bytes(data)


def rows(*lines: bytes) -> Change:
    """Return a change that adds lines to the run's metrics."""

    def change(checkpoint: Path, place: Place) -> None:
        with (checkpoint.parents[1] / "metrics.jsonl").open("ab") as file:
            file.writelines(line + b"\n" for line in lines)

    return change


def beside(name: str, data: bytes) -> Change:
    """Return a change of a file in the run's directory."""
    return lambda checkpoint, place: (checkpoint.parents[1] / name).write_bytes(data)


def names_module(checkpoint: Path, place: Place) -> None:
    """Name a module wherever the metadata of the arrays has a string."""
    for path in (path for path in (checkpoint / "state").rglob("*METADATA") if path.is_file()):
        path.write_text(path.read_text().replace('"jax', f'"{OPENED}'))


UP = {"../../../../../outside/secret.jsonl": [52, "0" * 32]}
CHANGES: dict[str, tuple[Change, str]] = {
    "marker-empty": (content("commit.json", b""), "ignored"),
    "marker-nested-deep": (content("commit.json", b"[" * 100_000), "ignored"),
    "marker-with-a-path-up": (marker(files=lambda found, place: found | UP), "ignored"),
    "marker-with-unsafe-names": (marker(files=lambda found, place: found | {UNSAFE: [1, "0"]}), "ignored"),
    "marker-step-2^62": (marker(step=1 << 62), ""),
    "marker-negative-step": (marker(step=-5), ""),
    "marker-of-another-run": (marker(run=UNSAFE), ""),
    "marker-is-a-pipe": (special("commit.json", lambda path, place: os.mkfifo(path)), "a named pipe"),
    "marker-is-a-device": (special("commit.json", lambda path, place: path.symlink_to("/dev/zero")), "a device"),
    "step-of-18-digits": (folder("step-999999999999999999"), ""),
    "with-pickles": (pickles, ""),
    "metadata-names-a-module": (names_module, "damaged"),
    "metrics-nested-deep": (rows(b"[" * 100_000, b'{"step": 1e400}'), ""),
    "caches-nested-deep": (beside("caches.json", b"[" * 100_000), ""),
}
CASES = (
    *(
        Case(f"checkpoint-{name}", altered(change), refused(*filter(None, (said,)), code=(0, 1, 2)), words=TRAIN,
             limits=MOST, alters=True, environment=fake_devices(1))
        for name, (change, said) in CHANGES.items()
    ),
    Case("checkpoint-plot-of-unsafe-metrics", altered(rows(json.dumps({"step": 7, UNSAFE: UNSAFE}).encode())),
         refused(code=(0, 1, 2)), words=PLOT, alters=True, limits=MOST),
)  # fmt: skip
