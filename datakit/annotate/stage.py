"""Implements stage `annotate`: runs annotators over a source's normalized documents, in one pass over the text, and
writes one table of attributes per annotator and partition. A step has one source, so adding a source annotates no other
source again. The text is not changed.

    data/<source>/<annotator>/part-00017-of-00106.parquet    the attributes of the normalized partition of that name

A table starts with the column `id`; the other columns are those of the annotator. A dense table has one row for each
document of the partition, a sparse table one for each document with an attribute that is neither null nor empty. Rows
are in the order of the partition, so ids ascend.

A document whose annotation kills its worker is found, listed and left out: it has no row in any table. So a rule must
say what follows from a missing attribute. If annotators ask model servers, a phase of its own first gets and stores the
answers (`model_server/ask.py`); the tables are then written from them.

Cost: reading and decompressing the text once, and the annotators' own cost.
Memory: one row group of the partition, and one row group of each table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pyarrow as pa

from datakit.annotate.input_files import with_paths
from datakit.annotate.model_server.phase import ANSWERS, answers_of, ask_phase, hash_of, servers_of
from datakit.annotate.tables import TABLES, Table, annotator_of, built_in_settings
from datakit.engine.quarantine import MAX_QUARANTINED, check_limit
from datakit.engine.task import Output, Phase, Plan, Preload, Step, Task, TaskResult, tolerance_of
from datakit.storage import urls
from datakit.storage.manifest import Partition
from datakit.toml_config import key

NAME = "annotate"
FORMAT_VERSION = 1
ID = pa.schema([pa.field("id", pa.string(), nullable=False)])
MODEL = "model"  # the setting of an annotator that holds the path of its model
MODELS = "models"  # the operation parameter that holds these paths, by annotator
PATHS = "paths"  # the operation parameter that holds all other settings that are not in the fingerprint, by annotator
FILE_COUNTS = "file_counts"  # the detail of a task's result with what annotators counted in their own files
HANG_SECONDS = 120.0  # an annotator reports nothing while it works on a batch
SLOW_HANG_SECONDS = 3600.0  # the same, for models that take up to a second per document
MODEL_MEMORY = 4  # bytes per byte of the file of a model that each task loads


@dataclass(frozen=True)
class Config:
    """The settings of annotate that are not those of an annotator."""

    max_quarantined: Annotated[int | float, MAX_QUARANTINED] = field(default=0, kw_only=True)
    quarantine: Annotated[
        tuple[str, ...],
        key('Documents, as "data/source/partition:row", that may be left out in addition to `max_quarantined`.',
            ["data/novels/part-00003.parquet:17"]),
    ] = field(default=(), kw_only=True)  # fmt: skip

    def __post_init__(self) -> None:
        check_limit(self.max_quarantined)


def plan(step: Step) -> Plan:
    """Plan one task per partition, which writes the partition's tables.

    step.operations["models"]: the path of each annotator's model whose sha256 is among the annotator's settings.
    step.operations["paths"]: the other settings that are not part of the fingerprint, by annotator. If annotators ask
    model servers, the servers are asked first. step.operations["answers"]: the folder of their answers.
    """
    (source,) = step.inputs_of("normalize")
    chosen = with_files(step.parameters["annotators"], step.operations)
    servers, paths = servers_of(chosen), step.operations.get(PATHS, {})
    here = urls.relative(source.directory, step.directory)
    asked: Sequence[TaskResult] = ()
    if servers:
        configured = with_paths(servers, {name: values for name, values in paths.items() if name in servers})
        asked = yield ask_phase(configured, step.operations[ANSWERS], source, here, tolerance_of(step))
    tasks = tuple(
        Task(
            key=f"{number:05d}",
            function="datakit.annotate.write_tables:annotate_partition",
            arguments={"documents": f"{here}/{partition.path}", "file": partition.path, "source": partition.source}
            | (answers_of(asked[number]) if servers else {}),
            input_bytes=partition.text_bytes or partition.bytes,
        )
        for number, partition in enumerate(source.manifest.partitions)
    )
    slow = [name for name, about in _built_in(chosen).items() if about.loaded_by_tasks]
    results = yield Phase(
        "annotate", tasks, {"annotators": chosen}, preloads(chosen),
        memory_bytes=(512 << 20) + sum(_model_memory(chosen[name]) for name in slow), memory_per_input_byte=1.0,
        hang_seconds=SLOW_HANG_SECONDS if slow else HANG_SECONDS, tolerance=tolerance_of(step),
    )  # fmt: skip
    partitions = [
        Partition(file.path, part.source, file.rows, file.bytes, file.xxh3)
        for result, part in zip(results, source.manifest.partitions, strict=True)
        for file in result.outputs
    ]
    return Output(
        sorted(partitions, key=lambda one: one.path), ID, counters=_file_counts(results),
        details={"tables": sorted(chosen)},
        model_answers=hash_of(asked) if servers else "",
    )  # fmt: skip


def _file_counts(results: Sequence[TaskResult]) -> dict[str, int]:
    """Return what annotators counted in their own files. All tasks count the same, except those of
    earlier versions, which count nothing.
    """
    return next((result.details[FILE_COUNTS] for result in results if FILE_COUNTS in result.details), {})


def with_files(settings: Mapping[str, dict[str, Any]], operations: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of annotators, by name, with the paths that are not in the fingerprint, except the settings
    with which model servers are asked. operations: the operation parameters of the stage.
    """
    models: dict[str, str] = operations.get(MODELS, {})
    chosen = {name: values | ({MODEL: models[name]} if name in models else {}) for name, values in settings.items()}
    servers, paths = servers_of(chosen), operations.get(PATHS, {})
    return with_paths(chosen, {name: values for name, values in paths.items() if name not in servers})


def _model_memory(settings: dict[str, Any]) -> int:
    """Return the memory that a task needs for the model in these settings. A missing file is reported by the task."""
    path = settings[MODEL]
    return MODEL_MEMORY * os.path.getsize(path) if os.path.isfile(path) else 0


def _built_in(chosen: Mapping[str, dict[str, Any]]) -> dict[str, Table]:
    """Return the built-in annotators among these, by the name of the table of attributes."""
    found = {name: annotator_of(name, values) for name, values in chosen.items()}
    return {name: TABLES[one] for name, one in found.items() if one is not None}


def preloads(chosen: dict[str, dict[str, Any]]) -> tuple[Preload, ...]:
    """Return the preloads with which a fork server loads the models and kernels of the chosen annotators. It does not
    load functions of the user, which may start threads; the tasks do.
    """
    kernels = any(about.kernels for about in _built_in(chosen).values())
    module = "datakit.annotate.write_tables"
    return (Preload(module, f"{module}:load", (built_in_settings(chosen),), kernels),)


def code_of(operations: dict[str, Any]) -> str:
    """Return the hashes of the files of the user's annotators, as `name=hash` separated by spaces, for the ledger."""
    found = {name: values["source"] for name, values in operations.get(PATHS, {}).items() if values.get("source")}
    return " ".join(f"{name}={value}" for name, value in sorted(found.items()))


def changed_message(content: dict[str, Any], code: str, recorded: str, made: str) -> str:
    """Return why a step refuses annotators whose files have changed. code, recorded: their hashes now and then, as
    `code_of` returns them. made: when the step was made, for the message.
    """
    before = set(recorded.split())
    names = [name for name, _, _ in (one.partition("=") for one in code.split() if one not in before)]
    files = ", ".join(f"{name!r} ({content['annotators'][name]['function']})" for name in names)
    version = content["annotators"][names[0]]["version"] if names else 1
    return (
        f"the file of annotator {files} has changed since {made}, but its version has not; if the change affects an "
        f"attribute, raise the version (now {version}), so that the attributes are made again; otherwise, restore the "
        "file, or raise the version all the same"
    )
