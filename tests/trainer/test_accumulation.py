"""Several passes over a batch give the loss, gradients, metrics and next state of one pass, up to rounding."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import UsageError
from datakit.trainer import accumulation
from datakit.trainer.models import dense as dense_model
from datakit.trainer.models import grug, latent_moe, olmoe, weights
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.optimizers import adamh
from datakit.trainer.step import Trainer
from datakit.trainer.train import train
from tests.support.trainer.small_models import FAMILY, SMALL, dense
from tests.support.trainer.trainer_runs import (
    TextBytes,
    assert_same_state,
    directory_in,
    final_state,
    losses,
    saving_run,
    stopped,
)

ROWS, LENGTH, TOLERANCE = 8, 12, 2e-5  # of the largest entry of an array
# For random batches, some of which count a single token whose gradients nearly cancel. A wrong weight of a pass would
# be at least a hundred times as far off; see test_a_mean_of_means_would_be_another_loss.
RANDOM_TOLERANCE = 1e-4
SIZES: Any = {"vocabulary": SMALL.vocabulary, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_width": 8}
LATENT: Any = {"latent": 16, "experts": 8, "experts_per_token": 2, "expert_width": 24, "shared_width": 32}
FAST: Any = {"compute": "float32", "remat": "none", "moe_backend": "dense", "init_std": 0.3}
MODELS: dict[str, tuple[Any, Any]] = {
    "grug": (grug, dataclasses.replace(SMALL, layers=2, z_loss=0.1, router_z_loss=0.1)),
    "olmoe": (olmoe, dataclasses.replace(FAMILY, layers=2, z_loss=0.1, router_z_loss=0.1, balance_loss=0.5)),
    "dense": (grug, dense(SMALL, layers=1, z_loss=0.1)),
    "latent": (latent_moe, latent_moe.Config(**SIZES, **LATENT, z_loss=0.1, router_z_loss=0.1, **FAST)),
    "llama": (dense_model, dense_model.Config(**SIZES, width=48, z_loss=0.1, compute="float32", remat="none")),
    "unbalanced": (olmoe, dataclasses.replace(FAMILY, layers=2, z_loss=0.1, router_z_loss=0.1, balance_loss=0.0)),
}


@functools.cache
def trainer(name: str, microbatch: int | None, devices: int = 1) -> Trainer:
    """A trainer of one of the small models."""
    module, config = MODELS[name]
    mesh = weights.make_mesh(1, jax.devices()[:devices])
    return Trainer(module, config, adamh.Config().constants(), mesh, microbatch=microbatch)


@functools.cache
def computed(name: str, microbatch: int | None, devices: int = 1) -> Any:
    """The compiled loss, gradients and results of a step."""
    made = trainer(name, microbatch, devices)
    specs = jax.tree.map(lambda weight: weight.sharding, made.table)

    def run(params: Any, state: Any, batch: Tokens) -> Any:
        work = (made.model, made.config, params, state, batch, made.passes(batch.tokens.shape))
        total, mean, output, found = accumulation.gradients(*work, specs)
        results = {"total": total, "mean": mean, "aux": output.auxiliary, "gradients": found}
        return results, (output.state, output.metrics)

    return jax.jit(run)


@functools.cache
def parameters(name: str) -> tuple[Any, Any]:
    """Parameters and a state with router biases that matter."""
    module, config = MODELS[name]
    params = weights.initialize(module.weights(config), jax.random.key(3))
    generator = np.random.default_rng(5)
    state = jax.tree.map(lambda x: jnp.asarray(generator.normal(size=x.shape), x.dtype), module.initial_state(config))
    return params, state


def assert_close(ours: Any, theirs: Any, tolerance: float = TOLERANCE) -> None:
    """Compare two trees; the error of each array is at most this share of its largest entry, or of 0.1 if all entries
    are smaller: then they are what is left of larger terms that cancel each other.
    """
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        limit = tolerance * max(float(np.abs(other).max(initial=0.0)), 0.1)
        np.testing.assert_allclose(one, other, rtol=0, atol=limit, err_msg=jax.tree_util.keystr(path))


@st.composite
def batches(draw: st.DrawFn) -> Tokens:
    """Batches with packed documents, padding, masked tokens, and rows without any prediction."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens = generator.integers(0, SMALL.vocabulary, (ROWS, LENGTH), dtype=np.int32)
    ends = np.array(draw(st.lists(st.integers(0, LENGTH), min_size=ROWS, max_size=ROWS)))
    shares = np.array(draw(st.lists(st.sampled_from([0.0, 0.1, 0.9, 1.0]), min_size=ROWS, max_size=ROWS)))
    segments = np.cumsum(generator.random((ROWS, LENGTH)) < 0.2, axis=1) + 1
    segments = np.where(np.arange(LENGTH) < ends[:, None], segments, 0).astype(np.int32)
    mask = (generator.random((ROWS, LENGTH)) < shares[:, None]) & (segments > 0)
    return Tokens(jnp.asarray(tokens), jnp.asarray(segments), jnp.asarray(mask))


@pytest.mark.parametrize("name", ["grug", "olmoe"])
@settings(max_examples=10, deadline=None)
@given(batch=batches(), microbatch=st.sampled_from([1, 4]))
def test_passes_do_not_change_the_result(name: str, batch: Tokens, microbatch: int) -> None:
    inputs = (*parameters(name), batch)
    whole, parts = computed(name, None)(*inputs), computed(name, microbatch)(*inputs)
    assert_close(parts, whole, RANDOM_TOLERANCE)


def batch_of(rows: int) -> Tokens:
    """A batch of uneven documents; the masks of its first rows are sparse."""
    generator = np.random.default_rng(11)
    tokens = generator.integers(0, SMALL.vocabulary, (rows, LENGTH), dtype=np.int32)
    ends = generator.integers(3, LENGTH + 1, rows)
    segments = np.where(np.arange(LENGTH) < ends[:, None], 1 + (np.arange(LENGTH) > 5), 0).astype(np.int32)
    mask = (generator.random((rows, LENGTH)) < np.linspace(0.1, 1, rows)[:, None]) & (segments > 0)
    return Tokens(jnp.asarray(tokens), jnp.asarray(segments), jnp.asarray(mask))


@pytest.mark.parametrize("name", ["grug", "olmoe"])
def test_passes_on_eight_devices_equal_one_pass_on_one_device(name: str) -> None:
    batch, (params, state) = batch_of(32), parameters(name)
    whole = computed(name, None)(params, state, batch)
    made = trainer(name, 1, 8)
    with jax.set_mesh(made.mesh):
        placed = jax.device_put(params, weights.shardings(made.table, made.mesh))
        parts = computed(name, 1, 8)(placed, state, batch)
        program = computed(name, 1, 8).lower(placed, state, batch).compile().as_text() or ""
    assert_close(parts, whole)
    assert all(
        gradient.sharding.is_equivalent_to(weight.sharding, gradient.ndim)
        for gradient, weight in zip(jax.tree.leaves(parts[0]["gradients"]), jax.tree.leaves(placed), strict=True)
    )
    assert "all-to-all" not in program  # no row moves to another device
    assert "collective-permute" not in program


def test_a_pass_takes_the_largest_even_share() -> None:
    assert accumulation.passes_of(32, 8, None) == 1
    assert accumulation.passes_of(32, 8, 100) == 1
    assert accumulation.passes_of(32, 8, 3) == 2
    assert accumulation.passes_of(24, 2, 5) == 3
    batch = batch_of(32)
    parts = accumulation.split(batch, 4)
    assert parts.tokens.shape == (4, 8, LENGTH)
    for part, array in zip(parts, batch, strict=True):
        np.testing.assert_array_equal(accumulation.joined(part), array)


@pytest.mark.parametrize("name", ["dense", "latent", "llama"])
def test_passes_do_not_change_the_result_of_other_models(name: str) -> None:
    inputs = (*parameters(name), batch_of(ROWS))
    assert_close(computed(name, 1)(*inputs), computed(name, None)(*inputs))


@pytest.mark.parametrize("name", ["grug", "olmoe"])
def test_passes_do_not_change_an_evaluation(name: str) -> None:
    batch, (params, state) = batch_of(ROWS), parameters(name)
    whole, parts = (trainer(name, size).evaluate(params, state, batch) for size in (None, 2))
    assert_close(parts, whole)


def test_a_mean_of_means_would_be_another_loss() -> None:
    """The batch of these tests tells a right mean from a wrong one."""
    batch, (params, state) = batch_of(ROWS), parameters("dense")
    losses, counted, _ = trainer("dense", None).evaluate(params, state, batch)
    rows = np.sum(losses * counted, axis=1) / np.maximum(np.sum(counted, axis=1), 1)
    total = computed("dense", 1)(params, state, batch)[0]["mean"]
    assert abs(float(np.mean(rows)) - float(total)) > 100 * RANDOM_TOLERANCE


def products(name: str, microbatch: int | None) -> int:
    """The number of matrix products in the compiled step; each loop's body counts once."""
    batch, (params, state) = batch_of(ROWS), parameters(name)
    text = computed(name, microbatch).lower(params, state, batch).compile().as_text() or ""
    return text.count(" dot(") + text.count('custom_call_target="__onednn$matmul"')


def test_only_a_balance_loss_costs_another_forward_pass() -> None:
    assert products("grug", 2) == products("grug", None)
    assert products("olmoe", 2) > products("olmoe", None) == products("unbalanced", 2)


def test_a_model_without_parts_is_refused() -> None:
    class Plain:
        """A model that only has the required functions."""

        apply = staticmethod(grug.apply)

    with pytest.raises(UsageError, match="'mine' does not define apply_part and conclude"):
        accumulation.check_model(Plain, "mine")
    accumulation.check_model(olmoe, "olmoe")


@pytest.mark.parametrize(
    ("microbatch", "batches", "line"),
    [
        (None, [8], None),
        (3, [8], None),
        (4, [4, 8, 16], None),  # it divides the batches of a later stage
        (4, [8], "microbatch = 4 has no effect: a device has only 4 rows of a batch; set a smaller number, or remove"),
        (9, [2], "microbatch = 9 has no effect: a device has only 1 row of a batch; remove it"),
    ],
)
def test_a_microbatch_without_effect_is_named(microbatch: int | None, batches: list[int], line: str | None) -> None:
    found = accumulation.lines_without_effect(microbatch, batches, devices=2)
    assert found == [] if line is None else found[0].startswith(line)
    rows = {accumulation.passes_of(rows, 2, microbatch) for rows in batches}
    assert bool(found) == (microbatch is not None and rows == {1})


@pytest.mark.xdist_group("training-runs")
def test_a_run_and_a_dry_run_say_so(tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    from datakit.trainer import dry_run
    from tests.support.run_files import write_run_file

    said = "microbatch = {} has no effect: a device has only {} of a batch"
    for microbatch in (2, 4):
        stopped(saving_run(microbatch=microbatch), tmp_path / str(microbatch), 0, lines.append)
    assert [line.partition(";")[0] for line in lines if "no effect" in line] == [said.format(4, "4 rows")]
    lines.clear()
    monkeypatch.setattr(dry_run, "_report", lambda *_: None)  # nothing has to be compiled here
    dry_run.dry_run(write_run_file(tmp_path), str(tmp_path), ["microbatch=9"], lines.append)
    assert any(line.startswith("microbatch = 9 has no effect: a device has only") for line in lines)


@pytest.mark.xdist_group("training-runs")
def test_a_run_in_passes_resumes_bit_by_bit_and_may_change_the_passes(
    tmp_path: Path, finished: str, lines: list[str]
) -> None:
    run = saving_run(microbatch=2)
    whole = train(run, TextBytes(), str(tmp_path / "whole"), say=lines.append).directory
    stopped(run, tmp_path / "parts", 7)
    train(run, TextBytes(), str(tmp_path / "parts"))
    assert_same_state(final_state(directory_in(tmp_path / "parts"), run), final_state(whole, run))
    assert any(line.endswith("8 sequences of 32 tokens, in 2 microbatches of 4 sequences") for line in lines)
    np.testing.assert_allclose(losses(whole), losses(finished), rtol=1e-4)

    stopped(saving_run(), tmp_path / "changed", 7)
    changed = train(run, TextBytes(), str(tmp_path / "changed"), say=lines.append)
    assert changed.resumed_from == 6
    np.testing.assert_allclose(losses(changed.directory), losses(finished), rtol=1e-4)
