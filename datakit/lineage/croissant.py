"""Renders a dataset of documents as a Croissant file (MLCommons' JSON-LD description of datasets for machine learning).

The file describes the step that holds the documents: the consolidate step of the lineage or, if there is none, its
only normalize step, unless some of the normalized documents have left. The paths in the file are relative to the
directory above the step's, which is the dataset's (or the source's). The file belongs there, because `datakit validate`
reports every file in a step's directory that the step's manifest does not list. Each source is a record set with all
columns of its partitions. Columns of types that Croissant's readers cannot load, such as structs, are named in the
record set's description instead.

Croissant requires the SHA-256 of every listed file, but a step may have thousands of files, and its manifest holds
their xxh3-128 instead. Therefore patterns stand for the partitions, and the only file that is listed, with its SHA-256,
is the manifest. In a publication, which has no manifest of a step, it is the file that describes the lineage, and the
paths are relative to the publication.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from datakit.errors import UsageError
from datakit.lineage.graph import Lineage, StepRecord
from datakit.pipeline.columns import columns_by_source
from datakit.storage import urls
from datakit.storage.manifest import FILE_NAME, Column, data_path, manifest_url, read_manifest

CONFORMS = "http://mlcommons.org/croissant/1.0"
HOLDERS = ("consolidate", "normalize")  # the stages whose output is documents, the last stage first
MANIFEST = "manifest"
LIST = re.compile(r"(?:large_)?list<\w+: (.*)>")
TYPES = {  # the start of an Arrow type -> Croissant's type
    "string": "sc:Text",
    "large_string": "sc:Text",
    "binary": "sc:Text",
    "large_binary": "sc:Text",
    "bool": "sc:Boolean",
    "int": "sc:Integer",
    "uint": "sc:Integer",
    "float": "sc:Float",
    "double": "sc:Float",
    "half": "sc:Float",
    "date": "sc:Date",
    "timestamp": "sc:DateTime",
}
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def croissant(lineage: Lineage, published: tuple[str, bytes] | None = None) -> dict[str, Any]:
    """Return the Croissant description. published: the name and the content of the file that describes the lineage in a
    publication; None if the description is for the dataset's directory.

    Raises UsageError if the lineage has no step that holds the documents: none at all, or several normalized sources,
    or normalized documents that have left, and no step that consolidates them.
    """
    step = documents_step(lineage)
    manifest = read_manifest(step.directory)
    sources = list(dict.fromkeys(part.source for part in manifest.partitions))
    found = {source.name: source for source in lineage.sources if source.name in sources}
    licenses = list(dict.fromkeys(source.license for source in found.values() if source.license))
    columns = columns_by_source(step.directory, manifest)
    folder = "" if published else f"{urls.name(step.directory)}/"
    listed = _lineage_file(*published) if published else _manifest_file(step.directory)
    described: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS,
        "name": step.dataset,
        "description": f"{step.dataset}: {step.rows:,} documents, made by datakit's stage {step.stage}.",
        "sameAs": f"urn:datakit:{step.identity}",
        "url": f"urn:datakit:{step.dataset}",
        "distribution": [listed, *(_file_set(source, folder) for source in sources)],
        "recordSet": [_record_set(source, columns[source]) for source in sources],
    }
    described |= {"license": licenses} if licenses else {}
    described |= {"isBasedOn": [source.url for source in found.values() if source.url]}
    if step.finished is not None and published is None:
        described["datePublished"] = datetime.fromtimestamp(step.finished, UTC).date().isoformat()
    return described


def documents_step(lineage: Lineage) -> StepRecord:
    """Return the step of a lineage that holds the documents. Raises UsageError if there is none, as for `croissant`."""
    for stage in HOLDERS:
        steps = [step for step in lineage.steps if step.stage == stage and step.found]
        if stage == "normalize" and steps and any(map(_removes, lineage.steps)):
            raise UsageError(
                f"no step behind {lineage.directory} holds the documents that stay, and only these: a consolidate step "
                "would; give its directory or that of its dataset (it is missing if the recipe has `[consolidate] "
                "write = false`)"
            )
        if len(steps) == 1:
            return steps[0]
        if steps:
            break
    raise UsageError(
        f"{lineage.directory} has no single step that holds documents; give the directory of a consolidate step or of "
        "a normalize step"
    )


def _removes(step: StepRecord) -> bool:
    """Return True if a step lists documents that leave the dataset, or if this cannot be read."""
    return step.stage == "select" and (step.rows > 0 or not step.found)


def _manifest_file(directory: str) -> dict[str, Any]:
    data = urls.read_bytes(manifest_url(directory))
    return {
        "@type": "cr:FileObject",
        "@id": MANIFEST,
        "name": FILE_NAME,
        "description": "Every file of the dataset with its size and xxh3-128, every parameter, and the inputs.",
        "contentUrl": f"{urls.name(directory)}/{FILE_NAME}",
        "contentSize": f"{len(data)} B",
        "encodingFormat": "application/json",
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _lineage_file(name: str, data: bytes) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": "lineage",
        "name": name,
        "description": "Every source and step from which the dataset was made, with parameters and counts.",
        "contentUrl": name,
        "contentSize": f"{len(data)} B",
        "encodingFormat": "application/json",
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _file_set(source: str, folder: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": f"files-{source}",
        "name": f"files-{source}",
        "description": f"The partitions of the source {source}; a manifest beside them holds their hashes.",
        "encodingFormat": "application/x-parquet",
        "includes": f"{folder}{data_path(source, 'part-*.parquet')}",
    }


def _record_set(source: str, columns: Sequence[Column]) -> dict[str, Any]:
    kinds = {column: _kind(column.type) for column in columns}
    others = ", ".join(f"{column.name} ({column.type})" for column, kind in kinds.items() if kind is None)
    more = f" The files also have columns that Croissant cannot describe: {others}." if others else ""
    return {
        "@type": "cr:RecordSet",
        "@id": source,
        "name": source,
        "description": f"One record per document of the source {source}.{more}",
        "field": [_field(source, column, kind) for column, kind in kinds.items() if kind is not None],
    }


def _kind(type_name: str) -> str | None:
    """Return Croissant's type for an Arrow type or, if that is a list, for its elements; None if there is none."""
    found = LIST.fullmatch(type_name)
    inner = found[1] if found else type_name
    return next((name for start, name in TYPES.items() if inner.startswith(start)), None)


def _field(source: str, column: Column, kind: str) -> dict[str, Any]:
    repeated = {"repeated": True} if LIST.fullmatch(column.type) else {}
    return {
        "@type": "cr:Field",
        "@id": f"{source}/{column.name}",
        "name": column.name,
        "dataType": kind,
        **repeated,
        "source": {"fileSet": {"@id": f"files-{source}"}, "extract": {"column": column.name}},
    }
