"""A step that does not fit is refused before it runs, with settings that fit; each setting is compiled for real."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import pytest

from datakit.errors import UsageError
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.config import Run
from datakit.trainer.dry_run import dry_run
from datakit.trainer.sizes import memory
from datakit.trainer.step import Trainer
from datakit.trainer.train import train, trainer_of
from tests.support.trainer.trainer_runs import Rows, TextBytes, checkpoints_of, directory_in, small_run, tiny_run

pytestmark = pytest.mark.xdist_group("training-runs")
SHAPE = (8, 32)  # that of `TextBytes`


class Growing(TextBytes):
    """Batches with twice the rows from batch 3 on."""

    def batch(self, step: int) -> Rows:
        self.rows = 8 if step < 3 else 16
        return super().batch(step)


def run_with(**changes: Any) -> Run:
    """The smallest run, with a vocabulary whose logits dominate its memory, so that microbatches matter."""
    run = tiny_run()
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocabulary=512), **changes)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    """The trainer of this run on one device."""
    return trainer_of(run_with(), jax.devices()[:1])


@pytest.fixture(scope="module")
def needs(trainer: Trainer) -> dict[int, memory.Need]:
    """The memory that a step needs, by microbatch."""
    with jax.set_mesh(trainer.mesh):
        return {rows: memory.need(memory.compiled_with(trainer, SHAPE, False, rows)) for rows in (1, 2, 4, 8)}


def test_the_state_is_what_the_arrays_take(trainer: Trainer, needs: dict[int, memory.Need]) -> None:
    size = sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(trainer.like()))
    assert memory.state_size(trainer) == size
    batch = 8 * 32 * (4 + 4 + 1)
    assert needs[8].state == pytest.approx(size + batch, rel=0.01)
    assert needs[8].results < 10_000  # the state is donated


def test_smaller_microbatches_need_less(needs: dict[int, memory.Need]) -> None:
    assert needs[1].total < needs[2].total < needs[4].total < needs[8].total
    assert needs[1].state == needs[8].state


@pytest.mark.parametrize("rows", [4, 2, 1])
def test_the_largest_microbatch_that_fits_is_proposed(
    rows: int, trainer: Trainer, needs: dict[int, memory.Need], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trials are those of `needs`, so the search is checked without compiling again."""
    monkeypatch.setattr(memory, "compiled_with", lambda one, shape, watch, microbatch, remat: (microbatch, remat))
    monkeypatch.setattr(memory, "need", lambda trial: needs[trial[0]] if trial[1] is None else needs[8])
    (found,) = memory.proposals(trainer, needs[8], needs[rows].total, SHAPE, False, lines.append)
    assert (found.microbatch, found.need) == (rows, needs[rows])
    assert found.settings() == f"--set microbatch={rows}"
    assert lines[0].startswith("  with --set model.remat=recompute_all")
    assert memory.proposals(trainer, needs[8], needs[1].total - 1, SHAPE, False, lines.append) == []


def test_a_run_that_does_not_fit_is_refused_before_its_first_step(
    tmp_path: Path, lines: list[str], needs: dict[int, memory.Need], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, run, whole = jax.devices()[:1], run_with(), needs[8]
    monkeypatch.setattr(memory, "available", lambda: whole.total - whole.state - 500)
    with pytest.raises(UsageError, match=r"a step needs .* of .* per device: state .* work .* Use --set ") as refused:
        train(run, TextBytes(), str(tmp_path), devices=devices, say=lines.append)
    assert "To start anyway, set check_memory = false" in str(refused.value)
    assert any(line.startswith("a step needs") for line in lines)
    assert not any(line.startswith("step 1/") for line in lines)
    assert checkpoints_of(directory_in(tmp_path)) == []

    insisting = dataclasses.replace(run, check_memory=False)
    assert train(insisting, TextBytes(), str(tmp_path), devices=devices, say=lines.append).steps == run.steps
    assert any("the run goes on, because check_memory is false" in line for line in lines)


def test_a_state_that_does_not_fit_is_refused(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: memory.state_size(trainer) - 1)
    with pytest.raises(UsageError, match="the parameters, moments and averages need"):
        memory.check_state(run_with(), trainer)
    memory.check_state(run_with(check_memory=False), trainer)


def test_nothing_is_refused_where_the_memory_is_unknown(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", Path("/nowhere"))
    assert memory.available() is None
    assert memory.room(trainer) is None
    memory.check_state(run_with(), trainer)


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   80 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert memory.available() == 80 * 1024
    for limit, expected in (("max", 80 * 1024), ("50000", 40000)):
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("10000")
        assert memory.available() == expected


def test_the_memory_of_a_gpu_is_its_pool() -> None:
    class Device:
        """A GPU with 80 GB, of which JAX reserved 60."""

        process_index, platform = 0, "gpu"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 60_000_000_000, "bytes_in_use": 5}

    class Devices:
        """A mesh of one such device."""

        flat = (Device(),)

    class Mesh:
        """A mesh."""

        devices = Devices()

    class Made:
        """A trainer."""

        mesh = Mesh()

    made: Any = Made()
    assert memory.room(made, held=5) == 60_000_000_000


def test_no_microbatch_is_proposed_to_a_run_that_cannot_have_one(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a capacity, a pass over fewer rows than a block could not even be compiled."""
    model = dataclasses.replace(small_run().model, capacity_factor=1.0, capacity_rows=8, capacity_groups=2)
    monkeypatch.setattr(memory, "check_state", lambda *_: None)
    monkeypatch.setattr(memory, "room", lambda *_: 1)
    monkeypatch.setattr(memory, "_has_stronger_remat", lambda _: False)
    with pytest.raises(UsageError, match="No microbatch and no remat that the run may set makes it fit"):
        train(small_run(model=model), TextBytes(), str(tmp_path), devices=jax.devices()[:1], say=lines.append)


def test_what_was_trained_is_saved_before_a_later_step_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second half of this run has larger batches."""
    checked = list[tuple[int, int]]()

    def refuse(_run: Run, _trainer: Trainer, _compiled: object, shape: tuple[int, int], *_: object) -> None:
        checked.append(shape)
        if len(checked) == 2:
            raise UsageError("a step does not fit")

    monkeypatch.setattr(memory, "check", refuse)
    run = tiny_run(checkpoint=Checkpoints(interval_minutes=1e9))
    trainer_of(run, jax.devices()[:1]).programs.clear()
    with pytest.raises(UsageError, match="a step does not fit"):
        train(run, Growing(), str(tmp_path), devices=jax.devices()[:1], say=lambda _: None)
    assert checked == [(8, 32), (16, 32)]
    assert [one.marker.step for one in checkpoints_of(directory_in(tmp_path))] == [3]


def test_a_dry_run_proposes_no_microbatch_to_a_run_that_cannot_have_one(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    from tests.support.run_files import write_run_file

    monkeypatch.setattr(memory, "room", lambda *_: 1)
    monkeypatch.setattr(memory, "_has_stronger_remat", lambda _: False)
    changes = ["model.capacity_factor=1.0", "model.capacity_groups=2", "model.capacity_rows=1"]
    (report,) = dry_run(write_run_file(tmp_path), str(tmp_path), changes, lines.append).steps
    assert (report.fits, report.proposals) == (False, [])
