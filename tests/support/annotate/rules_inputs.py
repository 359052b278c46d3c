"""Makes the inputs of the stage rules: normalized sources with tables of attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from datakit.annotate.annotator import SPANS
from datakit.engine.task import StepInput
from datakit.storage import urls
from datakit.storage.fingerprint import fingerprint
from datakit.storage.manifest import Manifest, Partition, Quarantine, table_path, totals_of
from datakit.storage.parquet import ShardWriter, read_shard

SCHEMAS = {
    "quality": pa.schema([("id", pa.string()), ("score", pa.float64()), ("words", pa.int32())]),
    "personal": pa.schema([("id", pa.string()), pa.field("spans", SPANS)]),
}


def annotated(root: Path, documents: StepInput, rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> StepInput:
    """An annotate step of a source, as annotate writes it. rows: for each annotator in SCHEMAS and each document (by
    its text), the attributes.
    """
    source, partitions = str(documents.source), []
    for part in documents.manifest.partitions:
        table = read_shard(urls.join(documents.directory, part.path), ["id", "text"])
        texts = dict(zip(table["text"].to_pylist(), table["id"].to_pylist(), strict=True))
        for name, facts in rows.items():
            found = [{"id": texts[text], **facts[text]} for text in texts if text in facts]
            path = table_path(source, name, urls.name(part.path))
            with ShardWriter(str(root / path), SCHEMAS[name]) as writer:
                writer.write(pa.Table.from_pylist(found, SCHEMAS[name]))
            partitions.append(Partition(path, source, writer.info.rows, writer.info.bytes, writer.info.xxh3))
    mark = fingerprint("annotate", 1, {"directory": root.name}, [])
    manifest = Manifest(
        "annotate", source, mark, mark, {}, [], [], partitions, totals_of(partitions), {}, Quarantine(0),
        {"tables": sorted(rows)},
    )  # fmt: skip
    return StepInput("annotate", source, str(root), manifest)


def listed(directory: Path, source: str) -> list[dict[str, Any]]:
    """The rows of all lists of a source, in order."""
    files: Sequence[Path] = sorted((directory / "data" / source).glob("*"))
    return [row for path in files for row in read_shard(str(path)).to_pylist()]
