"""Builds a step's row of metrics from the step's results, computes rates, FLOPs and MFU, and reports norm alarms and
changes of the mixture's stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datakit.trainer.config import Run
from datakit.trainer.device_feed import Placed, stage_at
from datakit.trainer.metrics.spikes import Spikes
from datakit.trainer.metrics.trackers import flatten, peak_flops
from datakit.trainer.models import load_model
from datakit.trainer.norms import alarms
from datakit.trainer.step import Trainer

Outline = Sequence[tuple[int, int, int]]  # (batches, sequences per batch, length), as returned by `BatchSource.outline`
PARTS = ("loss", "cross_entropy_loss", "aux_loss_weighted")
NORM = "params_norm/"


def training_flops(run: Run, outline: Outline, with_head: bool = True) -> float:
    """Return the training FLOPs of batches, padding included: 3 x the forward FLOPs (Kaplan et al. 2020, sec. 2.1)."""
    per_token = load_model(run.kind).flops_per_token
    return sum(
        3 * per_token(run.model, length, with_head=with_head) * batches * sequences * length
        for batches, sequences, length in outline
    )


@dataclass
class StepMetrics:
    """Builds a run's rows of metrics. `norms`: the norm of each group of weights at the run's start. `counts`: numbers
    of sequences and tokens trained on so far. `flops`: training FLOPs so far.
    """

    run: Run
    trainer: Trainer
    mixture: dict[str, Any]
    norms: dict[str, float]
    counts: dict[str, int]
    flops: float
    stage: tuple[int, dict[str, float]] | None  # (index, weights) of the last logged stage of the mixture
    spikes: Spikes
    directory: str  # of the run, to be named in messages
    say: Callable[[str], None]
    _alarmed: set[str] = field(default_factory=set)

    def row(self, step: int, results: Any, placed: Placed, seconds: dict[str, float]) -> dict[str, Any]:
        """Return the row of metrics after `step` steps; `seconds` has the keys "duration" and "loading_time"."""
        self.counts["sequences"] += placed.sequences
        self.counts["tokens"] += placed.tokens
        row = {f"train/{name}": float(results[name]) for name in PARTS}
        row |= flatten("train", results["model"]) | flatten("optim", results["optim"])
        if step % self.run.log.histograms_every and step != self.run.steps:
            row = {name: value for name, value in row.items() if not isinstance(value, list)}
        for name, value in results.get("watch", {}).items():
            kind, _, weight = name.partition("/norm/")
            row |= flatten(f"{kind}/norm", {weight: value})
        row |= {name: counts.tolist() for name, counts in results.get("histograms", {}).items()}
        row |= self._rates(placed, seconds["duration"]) | {"run_progress": step / self.run.steps}
        row |= {f"throughput/{name}": value for name, value in seconds.items()}
        row |= {"data/batch_xxh3": placed.digest, "data/batch_rows": placed.rows, "log/every": self.run.log.every}
        return (
            row
            | self._changed_stage()
            | self._alarms(step, results["optim"])
            | self._spike(step, float(results["loss"]))
        )

    def _rates(self, placed: Placed, duration: float) -> dict[str, Any]:
        """Return the rates and totals under throughput/, which docs/metrics.md explains."""
        sequences, length = placed.sequences, placed.batch.tokens.shape[1]
        flops = training_flops(self.run, [(1, sequences, length)])
        self.flops += flops
        per_token, rate = flops / (sequences * length), flops / duration
        device, devices = self.trainer.mesh.devices.flat[0].device_kind, self.trainer.mesh.size
        row = {
            "examples_per_second": sequences / duration,
            "tokens_per_second": placed.tokens / duration,
            "total_tokens": self.counts["tokens"],
            "gflops_per_second": rate / 1e9,
            "total_gflops": self.flops / 1e9,
            "flops_per_token_analytic": per_token,
            "flops_per_example_analytic": per_token * length,
            "flops_per_example": per_token * length,
            "device_kind": device,
        }
        peak = self.run.peak_flops or peak_flops(device)
        if peak is not None:
            row |= {"theoretical_flops_per_device": peak, "theoretical_flops": peak * devices}
            row["mfu"] = 100 * rate / (peak * devices)
        return {f"throughput/{name}": value for name, value in row.items()}

    def _changed_stage(self) -> dict[str, Any]:
        stage = stage_at(self.mixture, self.counts["sequences"] - 1)
        if stage is None or stage == self.stage:
            return {}
        self.stage = stage
        return {"mixture/stage": stage[0], **{f"mixture/weight/{name}": share for name, share in stage[1].items()}}

    def _alarms(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        norms = {name.removeprefix(NORM): float(value) for name, value in metrics.items() if name.startswith(NORM)}
        fixed = {name for name in norms if self.run.optimizer.keeps_norm(name)}
        found = alarms(norms, self.norms, self.run.norm_band, fixed)
        for name in sorted(set(found) - self._alarmed):
            self.say(f"alarm: at step {step:,} the norm of {name} is {found[name]:.3g} times its first value")
        self._alarmed = set(found)
        return {f"alarm/{name}": ratio for name, ratio in found.items()}

    def _spike(self, step: int, loss: float) -> dict[str, float]:
        median = self.spikes.check(step, loss)
        if median is None:
            return {}
        self.say(
            f"alarm: at step {step:,} the loss is {loss:.4f}, but the median of the steps before is {median:.4f}; "
            f"datakit explain {self.directory} --step {step} names the documents"
        )
        return {"alarm/loss": loss / median}
