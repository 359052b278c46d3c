"""A step's documents are those it was trained on; toxic ones stand out; a replay is exact, or says that it is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.errors import CheckpointError, CorruptError, UsageError
from datakit.trainer import train as loop
from datakit.trainer.explain.batch_documents import batch_documents
from datakit.trainer.explain.explain import Options, explain, open_run
from datakit.trainer.explain.scores import gradient_norms, losses_of
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.resume import begin
from tests.support.trainer.trainer_runs import silent

pytest.importorskip("pyarrow")
from tests.support.explain.planted import STEPS, TOXIC

pytestmark = pytest.mark.xdist_group("explain")  # one worker trains the run for all of them


def test_toxic_documents_are_at_the_top_of_their_steps(run: str) -> None:
    opened, named = open_run(run, "./data", (), silent), set[str]()
    with opened.data.loader() as loader:
        for step in range(STEPS):
            count = len({part.document for part in loader.places(step) if part.component == "toxic"})
            if not count:
                continue
            found = explain(run, step + 1, options=Options(top=count), say=silent)
            assert (found.kind, found.why_estimate, found.batch_proven) == ("replay", (), True)
            assert found.replayed_loss == found.logged_loss is not None
            assert {one.source for one in found.documents} == {"toxic"}
            named |= {one.id for one in found.documents}
    assert len(named) == TOXIC


def test_a_document_s_gradient_is_that_of_a_batch_in_which_only_it_counts(run: str) -> None:
    opened = open_run(run, "./data", (), silent)
    trainer = loop.trainer_of(opened.run)
    with opened.data.loader() as loader, jax.set_mesh(trainer.mesh):
        state = begin(opened.run, opened.place, trainer, loader, silent).state
        batch, documents = loader[STEPS - 1], batch_documents(loader, STEPS - 1)
        scores = losses_of(trainer, state, batch, documents)
        norms = gradient_norms(trainer, state, batch, documents, lambda *_: None)

        @jax.jit
        def total(params: object, chosen: jax.Array) -> jax.Array:
            tokens = Tokens(jnp.asarray(batch.tokens), jnp.asarray(batch.segments), chosen)
            output = trainer.model.apply(params, state["model"], tokens, trainer.config)
            return jnp.sum(output.losses * output.weights)

        for document, score, norm in list(zip(documents, scores, norms, strict=True))[:3]:
            chosen = jnp.asarray(document.mask(*batch.shape))
            value, gradient = jax.jit(jax.value_and_grad(total))(state["params"], chosen)
            assert float(value) == pytest.approx((score.loss or 0) * score.predicted, rel=1e-5)
            squares = sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(gradient))
            assert norm == pytest.approx(squares**0.5, rel=1e-4)
    assert sum(score.excess for score in scores) == pytest.approx(0, abs=1e-3)
    assert sum(document.tokens for document in documents) == np.count_nonzero(batch.segments)


def test_shortcuts_are_labelled_as_estimates(run: str) -> None:
    quick = explain(run, 8, options=Options(estimate=True, gradients=False), say=silent)
    assert (quick.kind, quick.replayed, quick.replayed_loss, quick.from_step) == ("estimate", 0, None, 8)
    assert quick.why_estimate == (
        "the weights are those of step 8, after this step; nothing was replayed",
        "no gradient was computed, only losses",
    )
    assert {one.gradient_norm for one in quick.documents} == {None}


def test_a_replay_that_differs_from_the_log_is_labelled_as_an_estimate(copied: Path) -> None:
    rewrite(copied, 6, {"train/loss": 1.25})
    found = explain(copied, 7, options=Options(gradients=False, top=1), say=silent)
    assert found.kind == "estimate"
    assert "the replay is not exact: at step 6" in found.why_estimate[1]
    assert "the log has 1.25" in found.why_estimate[1]


def test_a_batch_that_was_not_trained_on_is_refused(copied: Path) -> None:
    rewrite(copied, 7, {"data/batch_xxh3": "0" * 16})
    with pytest.raises(CorruptError, match=r"the batch of step 7 has the digest .*, but the run logged 0000"):
        explain(copied, 7, say=silent)


def test_without_a_checkpoint_the_run_is_repeated_from_its_start(copied: Path, lines: list[str]) -> None:
    shutil.rmtree(copied / "checkpoints")
    found = explain(copied, 3, options=Options(top=1), say=lines.append)
    assert (found.kind, found.from_checkpoint, found.replayed) == ("replay", "the start of the run", 2)
    assert "set checkpoint.keep_every" in lines[0]
    with pytest.raises(CheckpointError, match="has no checkpoint, so nothing can be estimated"):
        explain(copied, 3, options=Options(estimate=True), say=silent)


@pytest.mark.parametrize("step", [0, STEPS + 1])
def test_a_step_that_was_not_trained_is_refused(run: str, step: int) -> None:
    with pytest.raises(UsageError, match=f"has not trained this step \\(its log ends at step {STEPS}\\)"):
        explain(run, step, say=silent)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "--top is 0"),
        ({"by": "size"}, "--by is 'size'"),
        ({"by": "gradient", "gradients": False}, "needs gradients"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**options)  # pyright: ignore[reportArgumentType]


def rewrite(directory: Path, step: int, changes: dict[str, object]) -> None:
    """Change a step's row of metrics."""
    path = directory / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [row | (changes if row["global_step"] == step else {}) for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in changed))
