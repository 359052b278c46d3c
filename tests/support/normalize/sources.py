"""Runs download and normalize on a source in this process, and checks what normalize promises of its output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from datakit.download import stage as download_stage
from datakit.download.listing import listed, listing_digest, source_base
from datakit.download.source_file import SourceFile
from datakit.engine.task import Output, Plan, Step, StepInput, TaskResult
from datakit.normalize import stage as normalize_stage
from datakit.normalize.origins import lists_of_duplicates, origins_path
from datakit.storage import urls
from datakit.storage.manifest import Manifest, StepFile
from datakit.storage.parquet import read_shard
from tests.support.engine.inline import finish_inline, run_plan_inline, run_task_inline

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
        files = lists_of_duplicates(self.manifest)
        return [row for file in files for row in read_shard(urls.join(self.directory, file)).to_pylist()]

    def origins(self) -> list[dict[str, Any]]:
        """The rows of the origins of all partitions, each with the path of its file."""
        listed, *files = (read_shard(urls.join(self.directory, file.path)) for file in self._origins_files())
        paths = [*listed["path"].to_pylist(), None]
        rows = [row for table in files for row in table.to_pylist()]
        return [{**row, "path": paths[-1 if row["file"] is None else row["file"]]} for row in rows]

    def _origins_files(self) -> list[StepFile]:
        names = [origins_path(urls.name(part.path)) for part in self.manifest.partitions]
        listed = {file.path: file for file in self.manifest.files}
        return [listed[path] for path in (origins_path(), *names)]

    def file_counts(self) -> dict[str, tuple[int, int, int]]:
        """(records, documents, bytes of text) of each file."""
        table = read_shard(urls.join(self.directory, origins_path()))
        return {row["path"]: (row["records"], row["documents"], row["text_bytes"]) for row in table.to_pylist()}

    def quarantined(self) -> list[tuple[str, int]]:
        """(file, position) of each quarantined record."""
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


def write_lines(path: Path, *records: Any) -> None:
    """Write records as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records))


def list_source(
    url: str, include: Sequence[str], exclude: Sequence[str], *rest: Any, **options: Any
) -> list[SourceFile]:
    """The files of a source; the parameters are those of `listed`."""
    return listed(url, include, exclude, *rest, **options).files


def download_step(url: str, directory: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Step:
    """A download step, ready to be planned."""
    files = list_source(url, include, exclude)
    operations = {"base": source_base(url), "files": [asdict(file) for file in files]}
    return Step("download", SOURCE, directory, "0" * 32, {"listing": listing_digest(files)}, (), operations)


def run_download(step: Step) -> Output:
    """Run a download step in this process."""
    return run_plan_inline(download_stage.plan(step), step.directory)[0]


def download(root: Path | str, url: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> StepInput:
    """A finished download step."""
    step = download_step(url, urls.join(str(root), "download"), include, exclude)
    output, results = run_plan_inline(download_stage.plan(step), step.directory)
    return StepInput("download", SOURCE, step.directory, finish_inline(step, output, results))


def normalize_step(root: Path | str, url: str, **config: Any) -> Step:
    """A normalize step, ready to be planned."""
    upstream = download(root, url)
    base = download_stage.files_base(source_base(url), upstream.directory)
    files = list_source(url, (), ())
    listed = {file.path: (file.size, file.mtime_ns, file.checksum) for file in files if file.mtime_ns is not None}
    operations = {"base": base, "listed": listed}
    parameters = {"source": SOURCE, **config}
    return Step("normalize", SOURCE, urls.join(str(root), "normalize"), "1" * 32, parameters, (upstream,), operations)


def normalize(root: Path | str, url: Path | str, backwards: bool = False, **config: Any) -> Normalized:
    """Normalize a source. backwards: run the tasks of each phase last to first."""
    step = normalize_step(root, str(url), **config)
    plan = normalize_stage.plan(step)
    output, results = run_backwards(plan, step.directory) if backwards else run_plan_inline(plan, step.directory)
    return Normalized(step.directory, finish_inline(step, output, results), results)


def run_backwards(plan: Plan, directory: str) -> tuple[Output, list[TaskResult]]:
    """Run a plan's tasks last to first, and return results in the order of the tasks, as the driver does."""
    everything: list[TaskResult] = []
    try:
        phase = next(plan)
        while True:
            results = [run_task_inline(task, phase, directory) for task in reversed(phase.tasks)][::-1]
            everything += results
            phase = plan.send(results)
    except StopIteration as stop:
        return stop.value, everything


def check_contract(result: Normalized) -> None:
    """Assert what every normalized source promises."""
    manifest, table = result.manifest, result.table()
    origins, duplicates = result.origins(), result.duplicates()
    assert all(before["id"] <= after["id"] for before, after in pairwise(origins))
    assert len(origins) == result["records_out"] + result["duplicates"]
    for file in manifest.files:
        stored = urls.read_bytes(urls.join(result.directory, file.path))
        assert (file.bytes, file.xxh3) == (len(stored), xxhash.xxh3_128_hexdigest(stored))
    ids, texts = table.column("id").to_pylist(), table.column("text").to_pylist()
    assert table.schema.names[:4] == ["id", "text", "source", "source_id"]
    assert table.schema.types[:4] == [pa.string(), pa.large_string(), pa.string(), pa.string()]
    assert ids == [xxhash.xxh3_128_hexdigest(text.encode()) for text in texts]
    assert all(before < after for before, after in pairwise(ids)), "ids must ascend strictly"
    assert [row["id"] for row in origins if row["kept"]] == ids
    assert [row["id"] for row in origins if not row["kept"]] == [row["id"] for row in duplicates]
    count = len(manifest.partitions)
    assert count & (count - 1) == 0
    for number, part in enumerate(manifest.partitions):
        assert part.path == f"data/{SOURCE}/part-{number:05d}-of-{count:05d}.parquet"
        rows = pq.read_table(f"{result.directory}/{part.path}")
        stored = rows.column("id").to_pylist()
        assert [int(document[:8], 16) * count >> 32 for document in stored] == [number] * len(stored)
        assert (part.first_id, part.last_id) == ((stored[0], stored[-1]) if stored else (None, None))
        assert part.rows == len(stored)
        assert part.text_bytes == sum(len(text.encode()) for text in rows.column("text").to_pylist())
    removed = ("missing", "blank", "duplicates", "where_dropped", "sample_dropped", "transform_dropped", "quarantined")
    left = result["records_in"] + result["transform_added"] - sum(result[name] for name in removed)
    assert left == result["records_out"] == manifest.totals.rows == len(ids)
