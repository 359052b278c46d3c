"""A run as a fingerprinted step: what it was to reach, written before it starts; what it reached, written last.

    <root>/<name>/train-<fingerprint>/prediction.json   before the first step; never changed afterwards
                                      manifest.json     the last file; without it the run is not finished

The prediction is what the budget's power law says (see `scaling.py`) and whatever the run's `expect` names. The
manifest holds the config, the mixture, the code's version, the prediction, the outcome and the difference between the
two; a finished run is found done and never trained again.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xxhash

from datakit.storage import atomic, urls
from datakit.storage.fingerprint import SHOWN_DIGITS, short
from datakit.storage.manifest import InputReference, Manifest, Partition, Quarantine, Totals, write_manifest
from datakit.trainer import scaling
from datakit.trainer.checkpoints.checkpoint import Candidate
from datakit.trainer.config import STAGE, Run
from datakit.trainer.metrics.step_metrics import Outline, training_flops
from datakit.trainer.models import load_model

PREDICTION = "prediction.json"


def run_directory(root: str, run: Run, mixture: dict[str, Any]) -> str:
    """Where the run's files lie."""
    return urls.join(urls.absolute(root), run.name, f"{STAGE}-{short(run.fingerprint(mixture))}")


def predict(run: Run, outline: Outline) -> dict[str, Any]:
    """What the run should reach with these batches."""
    tokens = sum(batches * sequences * length for batches, sequences, length in outline)
    law = scaling.predict(training_flops(run, outline, with_head=False))
    expected = {"eval/macro_loss": law.macro_loss, "eval/macro_bpb": law.bits_per_byte} | run.expect
    return {"law": dataclasses.asdict(law), "tokens": tokens, "expected": expected, "named": sorted(run.expect)}


def write_prediction(directory: str, run: Run, outline: Outline) -> None:
    """Write it, unless an earlier start of the same run has."""
    url = urls.join(directory, PREDICTION)
    if not urls.exists(url):
        data = json.dumps(predict(run, outline), indent=1, sort_keys=True).encode() + b"\n"
        atomic.commit_bytes(data, url)


def read_prediction(directory: str) -> dict[str, Any]:
    """What the run was to reach."""
    return json.loads(urls.read_bytes(urls.join(directory, PREDICTION)))


def compare(prediction: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Each expected metric as expected, as measured (null where it was not), and the ratio of the two.

    `extrapolated` says that the law was asked beyond what it was fitted to, and the run named no value of its own.
    """
    compared = {}
    for name, expected in prediction["expected"].items():
        measured = figures.get(name)
        ratio = measured / expected if measured is not None and expected else None
        law = prediction["law"]["extrapolated"] and name not in prediction["named"]
        compared[name] = {"expected": expected, "measured": measured, "ratio": ratio, "extrapolated": law}
    return compared


def finish(
    directory: str,
    run: Run,
    mixture: dict[str, Any],
    inputs: list[InputReference],
    outcome: dict[str, Any],
    checkpoint: Candidate,
) -> None:
    """Write the manifest; the run is done."""
    files = [
        Partition(f"{checkpoint.path.name}/{name}", "checkpoint", 0, length, xxh3)
        for name, (length, xxh3) in sorted(checkpoint.marker.files.items())
    ]
    counts = checkpoint.marker.counts
    write_manifest(
        Manifest(
            stage=STAGE,
            dataset=run.name,
            fingerprint=run.fingerprint(mixture),
            identity=run.fingerprint(mixture),
            parameters=run.content(mixture),
            inputs=inputs,
            schema=[],
            partitions=files,
            totals=Totals(counts["sequences"], sum(file.bytes for file in files), tokens=counts["tokens"]),
            counters={f"{STAGE}/{name}": count for name, count in sorted(counts.items())},
            quarantine=Quarantine(0),
            details={"mixture": mixture, "code": code_version(run.kind), "origin": checkpoint.marker.origin, **outcome},
        ),
        directory,
    )


@cache
def code_version(kind: str) -> dict[str, str]:
    """The package's version, and a hash of the sources that trained: the trainer's and the model's."""
    folder = Path(__file__).parent
    model = Path(sys.modules[load_model(kind).__name__].__file__ or "")
    digest = xxhash.xxh3_128()
    for path in [*sorted(folder.rglob("*.py")), *([] if model.is_relative_to(folder) else [model])]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    try:
        number = version("datakit")
    except PackageNotFoundError:
        number = "source"
    return {"version": number, "sources": digest.hexdigest()[:SHOWN_DIGITS]}
