"""The events of a lineage are valid OpenLineage events, and describe the steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from openlineage.client import event_v2, facet_v2

from datakit.lineage import read_lineage
from datakit.lineage.openlineage import Event, openlineage_events, run_id

SCHEMA = re.compile(r"https://openlineage\.io/spec/.*\.json#/\$defs/\w+")
FACETS = {
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "outputStatistics": facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
}


@pytest.fixture
def events(finished: Path) -> list[Event]:
    return list(openlineage_events(read_lineage(str(finished / "root" / "shelf"))))


def parsed(event: Event) -> event_v2.RunEvent:
    """The event as the classes of the reference client, which check names, types, times and UUIDs."""
    return event_v2.RunEvent(
        eventTime=event["eventTime"],
        producer=event["producer"],
        run=event_v2.Run(event["run"]["runId"], facets(event["run"]["facets"])),
        job=event_v2.Job(event["job"]["namespace"], event["job"]["name"], facets(event["job"]["facets"])),
        eventType=event_v2.RunState(event["eventType"]),
        inputs=[
            event_v2.InputDataset(namespace=one["namespace"], name=one["name"], facets=facets(one["facets"]))
            for one in event["inputs"]
        ],
        outputs=[
            event_v2.OutputDataset(
                namespace=one["namespace"],
                name=one["name"],
                facets=facets(one["facets"]),
                outputFacets=facets(one["outputFacets"]),
            )
            for one in event["outputs"]
        ],
    )


def facets(given: dict[str, Any]) -> dict[str, Any]:
    """Facets as the client's classes. The URLs of their schemas must be those that the client uses itself."""
    found = {}
    for name, facet in given.items():
        assert facet["_producer"] and SCHEMA.fullmatch(facet["_schemaURL"])
        if not name.startswith("datakit_"):
            fields = {key: value for key, value in facet.items() if not key.startswith("_")}
            found[name] = FACETS[name](**fields)
            assert facet["_schemaURL"].split("/")[-3:] == found[name]._get_schema().split("/")[-3:]
    return found


def test_events_are_accepted_by_the_reference_client(events: list[Event]) -> None:
    for event in events:
        parsed(event)
        UUID(event["run"]["runId"])


def test_every_step_starts_once_and_completes_once(events: list[Event], finished: Path) -> None:
    steps = [step for step in read_lineage(str(finished / "root" / "shelf")).steps if step.found]
    for kind in ("START", "COMPLETE"):
        assert [event["run"]["runId"] for event in events if event["eventType"] == kind] == [
            run_id(step.identity) for step in steps
        ]


def test_inputs_of_a_step_are_outputs_of_others(events: list[Event]) -> None:
    outputs = {(one["namespace"], one["name"]) for event in events for one in event["outputs"]}
    for event in events:
        if event["job"]["name"].endswith(".download"):
            assert [one["name"].rpartition("/")[2] for one in event["inputs"]] in (["novels"], ["letters"])
        else:
            assert {(one["namespace"], one["name"]) for one in event["inputs"]} <= outputs
