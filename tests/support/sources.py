"""Runs download and normalize on a source, alone: what their tests start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from datakit.download import stage as download_stage
from datakit.download.listing import list_source, listing_digest, source_base
from datakit.engine.inline import run_plan_inline, run_task_inline
from datakit.engine.scheduler.finish import Tally, finish_step
from datakit.engine.task import Output, Plan, Step, StepInput, TaskResult
from datakit.normalize import stage as normalize_stage
from datakit.storage import urls
from datakit.storage.manifest import Manifest
from datakit.storage.parquet import read_shard

SOURCE = "shelf"


@dataclass(frozen=True)
class Normalized:
    """A finished normalize step."""

    directory: str
    manifest: Manifest
    results: list[TaskResult]

    def table(self) -> pa.Table:
        """All documents, in the order of the partitions."""
        return pa.concat_tables([read_shard(urls.join(self.directory, part.path)) for part in self.manifest.partitions])

    def rows(self) -> list[dict[str, Any]]:
        """All documents as dictionaries."""
        return self.table().to_pylist()

    def duplicates(self) -> list[dict[str, Any]]:
        """The rows of `duplicates/`."""
        files = self.manifest.details["duplicates"]
        return [row for file in files for row in read_shard(urls.join(self.directory, file["path"])).to_pylist()]

    def quarantined(self) -> list[tuple[str, int]]:
        """(file, position) of each record that was left out."""
        return sorted((record.file, record.position) for result in self.results for record in result.quarantined)

    def files(self) -> dict[str, bytes]:
        """Every file of the step but its manifest."""
        return {
            info.path: urls.read_bytes(info.url)
            for info in urls.listing(self.directory)
            if info.path != "manifest.json" and not info.path.startswith("exchange/")
        }

    def __getitem__(self, counter: str) -> int:
        return self.manifest.counters[f"normalize/{counter}"]


def download(root: Path | str, url: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> StepInput:
    """A finished download step."""
    files, base = list_source(url, include, exclude), source_base(url)
    directory = urls.join(str(root), "download")
    operations = {"base": base, "files": [asdict(file) for file in files]}
    step = Step("download", SOURCE, directory, "0" * 32, {"listing": listing_digest(files)}, (), operations)
    output, results = run_plan_inline(download_stage.plan(step), directory)
    return StepInput("download", SOURCE, directory, finish_step(step, output, Tally.of(results)))


def normalize_step(root: Path | str, url: str, **config: Any) -> Step:
    """A normalize step that is ready to be planned."""
    upstream = download(root, url)
    base = download_stage.files_base(source_base(url), upstream.directory)
    files = list_source(url, (), ())
    listed = {file.path: (file.size, file.mtime_ns, file.checksum) for file in files if file.mtime_ns is not None}
    operations = {"base": base, "listed": listed}
    parameters = {"source": SOURCE, **config}
    return Step("normalize", SOURCE, urls.join(str(root), "normalize"), "1" * 32, parameters, (upstream,), operations)


def normalize(root: Path | str, url: Path | str, backwards: bool = False, **config: Any) -> Normalized:
    """Normalize a source; `backwards` runs the tasks of each phase last first."""
    step = normalize_step(root, str(url), **config)
    plan = normalize_stage.plan(step)
    output, results = run_backwards(plan, step.directory) if backwards else run_plan_inline(plan, step.directory)
    return Normalized(step.directory, finish_step(step, output, Tally.of(results)), results)


def run_backwards(plan: Plan, directory: str) -> tuple[Output, list[TaskResult]]:
    """A plan whose tasks run last first; results are handed back in the order of the tasks, as the driver does."""
    everything: list[TaskResult] = []
    try:
        phase = next(plan)
        while True:
            results = [run_task_inline(task, phase, directory) for task in reversed(phase.tasks)][::-1]
            everything += results
            phase = plan.send(results)
    except StopIteration as stop:
        return stop.value, everything
