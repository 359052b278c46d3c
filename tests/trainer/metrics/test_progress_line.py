"""The progress line shows rates over all time, including the wait for data."""

from __future__ import annotations

from datakit.trainer.metrics.progress_line import Progress


def test_rates_include_the_wait_for_data() -> None:
    lines: list[str] = []
    progress = Progress(steps=2, seconds=0.0, say=lines.append)
    row = {"train/loss": 2.0, "throughput/duration": 0.2, "throughput/mfu": 40.0, "throughput/loading_time": 0.7}
    progress.step(1, 1000, 1.0, row)
    line = "step 1/2  loss 2.0000  1.0 k tokens/s  MFU 8.0 %  0:01 left"
    assert lines == [f"{line}\n    70% of the time waiting for data"]
    calm = Progress(steps=2, seconds=0.0, say=lines.append)
    calm.step(1, 1000, 1.0, row | {"throughput/loading_time": 0.01})
    assert lines[-1] == line
    unknown = Progress(steps=2, seconds=0.0, say=lines.append)
    unknown.step(1, 1000, 1.0, row | {"throughput/mfu": None})
    assert lines[-1] == "step 1/2  loss 2.0000  1.0 k tokens/s  0:01 left\n    70% of the time waiting for data"
