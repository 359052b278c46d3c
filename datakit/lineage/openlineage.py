"""Renders a lineage as OpenLineage events: one START and one COMPLETE event per step, which tools such as Marquez read.

A step is a run of the job `<dataset>.<stage>` in the namespace `datakit`. Its run id is derived from the step's
identity (a UUID of version 5), so the same step always has the same run id. A step's output is a dataset named by its
directory; the sources are the inputs of the downloads. The time of COMPLETE is when the step's manifest was written,
and that of START is when its first driver began; a step without a ledger has the former time in both events. datakit's
own facets are named `datakit_...`, as the specification requires of facets that it does not define.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from datakit.lineage.graph import Lineage, StepRecord
from datakit.lineage.sources import SourceRecord
from datakit.storage import urls

SPECIFICATION = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
FACETS = "https://openlineage.io/spec/facets"
NAMESPACE = "datakit"
RUN_IDS = uuid.uuid5(uuid.NAMESPACE_URL, "datakit/step")
_AUTHORITY = re.compile(r"([a-z][a-z0-9+.-]*://[^/]*)/?(.*)", re.DOTALL)

Event = dict[str, Any]


def openlineage_events(lineage: Lineage) -> Iterator[Event]:
    """Yield the events of all steps that were found, upstream steps first."""
    sources = {source.identity: source for source in lineage.sources}
    for step in lineage.steps:
        if step.found:
            inputs = [_source(sources[step.identity])] if step.identity in sources else []
            inputs += [_dataset(lineage.step(identity)) for identity in dict.fromkeys(step.inputs)]
            yield _event("START", step, step.started or step.finished or 0.0, inputs)
            yield _event("COMPLETE", step, step.finished or step.started or 0.0, inputs)


def run_id(identity: str) -> str:
    """Return the run id of the step with this identity."""
    return str(uuid.uuid5(RUN_IDS, identity))


def _event(kind: str, step: StepRecord, moment: float, inputs: list[Event]) -> Event:
    parameters = _facet(None, identity=step.identity, fingerprint=step.fingerprint, parameters=dict(step.parameters),
                        counters=dict(step.counters), versions=[dict(entry) for entry in step.versions])  # fmt: skip
    engine = _facet("1-1-1/ProcessingEngineRunFacet.json", name="datakit", version=_version(step))
    job_type = _facet("2-0-3/JobTypeJobFacet.json", processingType="BATCH", integration="DATAKIT", jobType="STEP")
    return {
        "eventType": kind,
        "eventTime": datetime.fromtimestamp(moment, UTC).isoformat(),
        "run": {"runId": run_id(step.identity), "facets": {"processing_engine": engine, "datakit_step": parameters}},
        "job": {"namespace": NAMESPACE, "name": f"{step.dataset}.{step.stage}", "facets": {"jobType": job_type}},
        "inputs": inputs,
        "outputs": [{**_dataset(step), "outputFacets": {"outputStatistics": _statistics(step)}}],
        "producer": _producer(),
        "schemaURL": f"{SPECIFICATION}#/$defs/RunEvent",
    }


def _dataset(step: StepRecord) -> Event:
    place, name = _place(step.directory)
    facets = {}
    if step.found:
        facets["version"] = _facet("1-0-1/DatasetVersionDatasetFacet.json", datasetVersion=step.identity)
        columns = [{"name": column.name, "type": column.type} for column in step.columns]
        facets["schema"] = _facet("1-1-1/SchemaDatasetFacet.json", fields=columns)
    return {"namespace": place, "name": name, "facets": facets}


def _source(source: SourceRecord) -> Event:
    place, name = _place(source.url) if source.url else (NAMESPACE, f"source/{source.name}")
    facts = {"name": source.name, "revision": source.revision, "license": source.license, "files": source.files}
    return {"namespace": place, "name": name, "facets": {"datakit_source": _facet(None, **facts, bytes=source.bytes)}}


def _statistics(step: StepRecord) -> Event:
    return _facet("1-0-2/OutputStatisticsOutputDatasetFacet.json", rowCount=step.rows, size=step.bytes,
                  fileCount=step.files)  # fmt: skip


def _place(url: str) -> tuple[str, str]:
    """Split a URL into a namespace and a name, by OpenLineage's rules for names of datasets.

    >>> _place("s3://bucket/data/a"), _place("/data/a")
    (('s3://bucket', 'data/a'), ('file', '/data/a'))
    """
    found = _AUTHORITY.fullmatch(url)
    return (found[1], found[2] or "/") if found else ("file", urls.local_path(url))


def _facet(schema: str | None, /, **facts: Any) -> Event:
    """Return a facet. schema: the file of its schema; None for one of datakit's own facets, whose schema is
    OpenLineage's `BaseFacet`.
    """
    url = f"{FACETS}/{schema}#/$defs/{_kind(schema)}" if schema else f"{SPECIFICATION}#/$defs/BaseFacet"
    return {"_producer": _producer(), "_schemaURL": url, **facts}


def _kind(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".json")


def _version(step: StepRecord) -> str:
    return step.versions[-1].get("datakit", "unknown") if step.versions else "unknown"


def _producer() -> str:
    """Return the URI that identifies this program in each event and each facet."""
    try:
        return f"urn:datakit:{version('datakit')}"
    except PackageNotFoundError:
        return "urn:datakit:source"
