"""Plans the phase of annotate that asks model servers: one task for each partition, which runs before the attributes
are written. What the servers have answered is hashed, so that the step's identity covers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from datakit.annotate.model_server.config import API
from datakit.engine.task import Phase, Preload, StepInput, Task, TaskResult, Tolerance
from datakit.storage.fingerprint import canonical_json

ANSWERS = "answers"  # the operation parameter that holds the folder of all answers, relative to the step's directory
MODULE = "datakit.annotate.model_server.ask"
HANG_SECONDS = 300.0  # the task reports every second while it waits
MEMORY_BYTES = 768 << 20


def servers_of(settings: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings of those annotators that ask a model server, by name."""
    return {name: values for name, values in settings.items() if API in values}


def ask_phase(
    servers: Mapping[str, dict[str, Any]], answers: str, source: StepInput, here: str, tolerance: Tolerance
) -> Phase:
    """Return the phase. servers: all settings of each server, by name. answers: see ANSWERS. here: the path from the
    step's directory to the normalized partitions.
    """
    tasks = tuple(
        Task(
            key=f"{number:05d}",
            function=f"{MODULE}:ask_partition",
            arguments={"documents": f"{here}/{partition.path}", "file": partition.path},
            input_bytes=partition.text_bytes or partition.bytes,
        )
        for number, partition in enumerate(source.manifest.partitions)
    )
    return Phase(
        "ask", tasks, {"servers": dict(servers), ANSWERS: answers}, (Preload(MODULE),),
        memory_bytes=MEMORY_BYTES, memory_per_input_byte=1.0, hang_seconds=HANG_SECONDS, batches=False,
        tolerance=tolerance,
    )  # fmt: skip


def answers_of(result: TaskResult) -> dict[str, Any]:
    """Return what the task that writes the attributes of a partition needs to know: the files of answers, by server,
    and the rows of the documents without an answer.
    """
    found = {name: file.path for name, file in zip(sorted(result.details["digests"]), result.outputs, strict=True)}
    rows = [row for one in result.quarantined for row in range(one.position, one.position + one.records)]
    return {"answers": found, "unanswered": rows}


def hash_of(results: Sequence[TaskResult]) -> str:
    """Return the hash of all answers of a step."""
    return xxhash.xxh3_128_hexdigest(canonical_json([result.details["digests"] for result in results]))
