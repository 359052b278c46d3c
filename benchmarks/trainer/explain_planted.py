"""Plant 20 texts of random bytes in a small real run, and see whether `datakit explain` names them.

    python -m benchmarks.trainer.explain_planted                      # in a temporary folder: 10 minutes on two cores
    python -m benchmarks.trainer.explain_planted --root planted --json planted.json

The texts are documents and modules in the running Python's library folder, installed packages included. The pipeline
normalizes, deduplicates and tokenizes them together with the planted ones. A small mixture of experts trains for 120
steps; its mixture of texts adds the planted source from step 61 on. Then every step that holds a planted document is
explained from the checkpoint before it. The benchmark fails unless each planted document is among the first five of its
step, each replay is exact, and the raw file and position lead to the planted record. Last, the run is trained without
all 20 documents, from the checkpoint at step 60, and once more from step 0 by a fresh loader with the same exclusion:
both must end with the same bits, and no place of any batch may differ from the first run's, except the loss mask of the
planted documents.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import datakit
from datakit.loader import Loader
from datakit.pipeline.fate.origin import origins_of
from datakit.trainer.checkpoints.candidates import candidates
from datakit.trainer.checkpoints.checkpoint import restore
from datakit.trainer.commands import train_file
from datakit.trainer.config import Run
from datakit.trainer.explain.counterfactual import train_without
from datakit.trainer.explain.explain import Options, explain, open_run
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.train import train, trainer_of

PLANTED, CHARACTERS, STEPS, FIRST, TOP = 20, 150, 120, 60, 5
STDLIB = os.path.dirname(os.__file__)
RECIPE = f"""
name = "texts"
[[sources]]
name = "docs"
url = "{STDLIB}"
include = ["*.txt", "**/*.txt", "**/*.rst", "pydoc_data/topics.py"]
exclude = ["**/site-packages/**", "**/test/**", "**/tests/**", "**/ensurepip/**"]
format = "text"
[[sources]]
name = "code"
url = "{STDLIB}"
include = ["[a-h]*.py"]
format = "text"
[[sources]]
name = "planted"
url = "planted"
[dedup]
[tokenize]
tokenizer = "train"
[tokenize.train]
vocabulary = 2048
"""
RUN = f"""
name = "planted-run"
steps = {STEPS}
[model]
hidden = 64
layers = 2
heads = 4
kv_heads = 2
head_width = 16
experts = 8
experts_per_token = 2
expert_width = 64
shared_width = 64
gate_rank = 16
window = 256
compute = "float32"
remat = "none"
[optimizer]
learning_rate = 0.03
adam_learning_rate = 0.01
beta2 = 0.98
[checkpoint]
interval_minutes = 1000
keep_every = 20
[data]
sequence_length = 256
batch_size = 8
components.docs = {{ cache = "{{root}}/texts", source = "docs", packing = "split" }}
components.code = {{ cache = "{{root}}/texts", source = "code", packing = "split" }}
components.planted = {{ cache = "{{root}}/texts", source = "planted", packing = "split" }}
[[data.stages]]
weights = {{ docs = 0.5, code = 0.5 }}
[[data.stages]]
start_step = {FIRST}
weights = {{ docs = 0.48, code = 0.475, planted = 0.045 }}
"""


def quiet(_: str) -> None:
    """Discard a line."""


def plant(folder: Path) -> list[str]:
    """Write the planted texts and the recipe, and run the pipeline; return the planted lines of JSON."""
    generator = np.random.default_rng(17)
    bytes_ = [generator.integers(0, 256, CHARACTERS, dtype=np.uint8).tobytes() for _ in range(PLANTED)]
    texts = ["".join(c for c in text.decode("latin-1") if c.isprintable()) for text in bytes_]
    lines = [json.dumps({"text": text}) for text in texts]
    (folder / "planted").mkdir(exist_ok=True)
    (folder / "planted" / "bytes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "texts.toml").write_text(RECIPE)
    (folder / "run.toml").write_text(RUN)
    datakit.run(folder / "texts.toml", folder / "root", workers=2)
    return lines


def planted_steps(loader: Loader) -> dict[int, set[tuple[int, int]]]:
    """Return, for each training step with planted documents, where these are in their source."""
    found = defaultdict[int, set[tuple[int, int]]](set)
    for step in range(STEPS):
        for part in loader.places(step):
            if part.component == "planted":
                found[step + 1].add(part.document)
    return found


def explain_all(directory: str, steps: dict[int, set[tuple[int, int]]], raw: list[str]) -> list[dict[str, Any]]:
    """Explain each step; return a row per step, with the ranks of its planted documents by loss and by gradient."""
    rows = []
    for step, planted in sorted(steps.items()):
        found = explain(directory, step, options=Options(top=10_000), say=quiet)
        listed = [(rank, one) for rank, one in enumerate(found.documents, 1) if one.source == "planted"]
        by_gradient = sorted(found.documents, key=lambda one: -(one.gradient_norm or 0))
        origins = origins_of(found.documents[0].cache, [("planted", one.id) for _, one in listed], lambda *_: None)
        lines = {sum(len(line.encode()) + 1 for line in raw[:number]): line for number, line in enumerate(raw)}
        assert all(origin.position in lines for origin in origins.values()), "a raw position is not that of a record"
        rows.append(
            {
                "step": step,
                "documents": found.total,
                "planted": len(planted),
                "ids": [one.id for _, one in listed],
                "ranks": [rank for rank, _ in listed],
                "gradient_ranks": [i for i, one in enumerate(by_gradient, 1) if one.source == "planted"],
                "exact": found.kind == "replay" and found.batch_proven,
                "replayed": found.replayed,
            }
        )
        print(json.dumps({name: value for name, value in rows[-1].items() if name != "ids"}), flush=True)
    return rows


def compare_batches(one: Loader, other: Loader) -> int:
    """Return the number of loss mask entries that differ; raise AssertionError if anything else does."""
    masked = 0
    for step in range(STEPS):
        before, after = one[step], other[step]
        planted = np.zeros(before.shape, bool)
        for part in one.places(step):
            planted[part.row, part.start : part.stop] = part.component == "planted"
        assert np.array_equal(before.tokens, after.tokens)
        assert np.array_equal(before.segments, after.segments)
        assert np.array_equal(before.loss_mask & ~planted, after.loss_mask)
        masked += int(planted.sum())
    return masked


def final_state(directory: str, run: Run) -> dict[str, np.ndarray]:
    """Return every array of the newest checkpoint, by path."""
    newest = candidates([f"{directory}/checkpoints"], quiet)[0]
    arrays = jax.tree_util.tree_leaves_with_path(restore(newest, trainer_of(run).like()))
    return {jax.tree_util.keystr(path): np.asarray(array) for path, array in arrays}


def main() -> None:
    """Run the experiment, and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder to work in, which is kept; by default a temporary one")
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.root or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        figures = experiment(folder)
    print(json.dumps({name: value for name, value in figures.items() if name != "rows"}, indent=1))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


def experiment(folder: Path) -> dict[str, Any]:
    """Plant, train, explain, and train without; return the figures. Raises AssertionError if a promise is broken."""
    raw, root = plant(folder), str(folder / "root")
    directory = train_file(folder / "run.toml", root).directory
    opened = open_run(directory, root, (), quiet)
    with opened.data.loader() as loader:
        rows = explain_all(directory, planted_steps(loader), raw)
        named = {
            identity for row in rows for identity, rank in zip(row["ids"], row["ranks"], strict=True) if rank <= TOP
        }
        every = sorted({identity for row in rows for identity in row["ids"]})
        assert len(every) == PLANTED, f"only {len(every)} planted documents were trained on"
        assert all(row["exact"] for row in rows), "a replay was not exact"
        without = train_without(directory, FIRST + 1, every, root).directory
        mixture = open_run(without, root, (), quiet).data.mixture
        with Loader(mixture) as other:
            masked = compare_batches(loader, other)
        with Loader(replace(opened.data.mixture, exclusions=mixture.exclusions)) as fresh:
            again = train(opened.run, fresh, str(folder / "again"), say=quiet).directory
    states = final_state(without, opened.run), final_state(again, opened.run)
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[1]), "the two runs differ"
    loss = {name: {row["global_step"]: row["train/loss"] for row in read_metrics(place)}
            for name, place in (("with", directory), ("without", without))}  # fmt: skip
    steps = [row["step"] for row in rows]
    ranks = [rank for row in rows for rank in row["ranks"]]
    assert len(named) == PLANTED, f"{len(named)} of {PLANTED} were named in the top {TOP}"
    return {
        "directory": directory,
        "without": without,
        "planted": PLANTED,
        "named_in_top_5": len(named),
        "first": sum(rank == 1 for rank in ranks),
        "worst_rank": max(ranks),
        "worst_rank_by_gradient": max(rank for row in rows for rank in row["gradient_ranks"]),
        "steps": len(rows),
        "documents_per_step": float(np.mean([row["documents"] for row in rows])),
        "masked_places": masked,
        "mean_loss_of_these_steps": {name: float(np.mean([loss[name][step] for step in steps])) for name in loss},
        "last_loss": {name: loss[name][STEPS] for name in loss},
        "rows": rows,
    }


if __name__ == "__main__":
    main()
