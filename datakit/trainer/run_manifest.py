"""Names a run's directory, predicts the run's metrics before the run starts, compares the predictions with the measured
metrics, and writes the manifest that marks the run as finished. `docs/trainer.md` lists the files in a run's directory.

The prediction holds all values that the run file sets in `expect`. Where the scaling law applies, the prediction also
holds the values that the law gives for the run's compute budget, unless `expect` overrides them. The prediction is
written before the first step and never changed. A run that has a manifest is never repeated.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xxhash

from datakit.errors import NotFoundError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import SHOWN_DIGITS, short
from datakit.storage.manifest import InputReference, Manifest, Partition, Quarantine, Totals, write_manifest
from datakit.trainer import models, optimizers
from datakit.trainer.checkpoints.candidates import Candidate, Say
from datakit.trainer.config import STAGE, VERSION, Run
from datakit.trainer.metrics.step_metrics import Outline, training_flops
from datakit.trainer.models.protocol import operation_settings
from datakit.trainer.sizes import scaling

PREDICTION = "prediction.json"


@dataclass(frozen=True)
class RunPlace:
    """A run's fingerprint, and the directory that holds its files."""

    fingerprint: str
    directory: str


def run_place(root: str, run: Run, mixture: dict[str, Any]) -> RunPlace:
    """Return the fingerprint and directory of a run under `root`; `mixture` is the loader's description of the data."""
    fingerprint = run.fingerprint(mixture)
    return RunPlace(fingerprint, urls.join(urls.absolute(root), run.name, f"{STAGE}-{short(fingerprint)}"))


def root_of(place: RunPlace) -> str:
    """Return the root of a run's directory."""
    return urls.parent(urls.parent(place.directory))


def predict(run: Run, outline: Outline) -> dict[str, Any]:
    """Predict the metrics that the run will reach if it trains on the batches described by `outline`."""
    tokens = sum(batches * sequences * length for batches, sequences, length in outline)
    law = scaling.predict(training_flops(run, outline, with_head=False))
    # The law applies only to a Grug model with the vocabulary size of the fit, and only to budgets in the fitted range.
    applies = run.kind == "grug" and run.model.vocabulary == scaling.APRIL.vocabulary and not law.extrapolated
    by_law = {"eval/macro_loss": law.macro_loss, "eval/macro_bpb": law.bits_per_byte} if applies else {}
    return {
        "law": dataclasses.asdict(law) | {"applies": applies},
        "tokens": tokens,
        "expected": by_law | run.expect,
        "named": sorted(run.expect),
    }


def prediction_of(directory: str, run: Run, outline: Outline, say: Say, write: bool) -> dict[str, Any]:
    """Return the saved prediction of the run. If there is none, or if its file is damaged, make a new one. If `write`
    is true, move a damaged file aside, with a warning, and save the new prediction.
    """
    path = Path(urls.local_path(directory), PREDICTION)
    try:
        found = json.loads(urls.read_bytes(str(path)))
        if isinstance(found, dict) and found.keys() >= {"law", "expected", "named"}:
            return found
        problem = "keys are missing"
    except NotFoundError:
        problem = None
    except (ValueError, RecursionError) as error:
        problem = f"{error}"
    prediction = predict(run, outline)
    if write and problem is not None:
        aside = path.with_suffix(".set-aside.json")
        path.replace(aside)
        say(f"warning: {path} cannot be read ({problem}); moved to {aside.name}, and a new prediction is made")
    if write:
        atomic.commit_bytes(json.dumps(prediction, indent=1, sort_keys=True).encode() + b"\n", str(path))
    return prediction


def compare(prediction: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each expected metric, the expected value, the measured value (None if missing), the ratio of the
    measured value to the expected value, and `law`, which is True if the expected value comes from the scaling law.
    """
    compared = {}
    for name, expected in prediction["expected"].items():
        measured = metrics.get(name)
        ratio = measured / expected if measured is not None and expected else None
        law = name not in prediction["named"]
        compared[name] = {"expected": expected, "measured": measured, "ratio": ratio, "law": law}
    return compared


def finish(
    place: RunPlace,
    run: Run,
    mixture: dict[str, Any],
    inputs: list[InputReference],
    outcome: dict[str, Any],
    checkpoint: Candidate,
) -> None:
    """Write the manifest, which marks the run as finished."""
    files = [
        Partition(f"{checkpoint.path.name}/{name}", "checkpoint", 0, length, xxh3)
        for name, (length, xxh3) in sorted(checkpoint.marker.files.items())
    ]
    counts = checkpoint.marker.counts
    write_manifest(
        Manifest(
            stage=STAGE,
            dataset=run.name,
            fingerprint=place.fingerprint,
            identity=place.fingerprint,
            parameters=run.content(mixture),
            inputs=inputs,
            schema=[],
            partitions=files,
            totals=Totals(counts["sequences"], sum(file.bytes for file in files), tokens=counts["tokens"]),
            counters={f"{STAGE}/{name}": count for name, count in sorted(counts.items())},
            quarantine=Quarantine(0),
            version=VERSION,
            details={
                "mixture": mixture,
                "operation": operation_settings(run.model),
                "code": code_version(run.kind, type(run.optimizer)),
                "origin": checkpoint.marker.origin,
                **outcome,
            },
        ),
        place.directory,
    )


@cache
def code_version(kind: str, optimizer: type) -> dict[str, str]:
    """Return the version of the package, and a hash of the source files of the trainer, the model and the optimizer."""
    digest = xxhash.xxh3_128()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(json.dumps([models.identity(kind), optimizers.identity(optimizer)]).encode())
    try:
        number = version("datakit")
    except PackageNotFoundError:
        number = "source"
    return {"version": number, "sources": digest.hexdigest()[:SHOWN_DIGITS]}
