"""Refuses to start a run that probably needs more space than is free on the disk of its root or of its temporary files.

The estimate for the root is that of `datakit plan`, which excludes what unfinished steps have already written
(estimate.py states the factors and how they were measured). A root in an object store is not checked. The estimate for
temporary files covers the tasks that run in parallel: their files hold the shingles of the documents that dedup
compares and, if the root is in an object store, copies of a partition's rows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from typing import NamedTuple

from datakit.engine.disk_limits import DiskLimits, DiskSpace, nearest_existing, size_text
from datakit.errors import NoSpaceError
from datakit.normalize.stage import partition_bits
from datakit.pipeline import estimate
from datakit.pipeline.graph import Graph, LocatedStep
from datakit.pipeline.planning import Remaining, remaining
from datakit.storage import urls

# bytes of shingles per byte of text: an 8-byte shingle per word of about 6 bytes, for the 15 % of the text that dedup's
# exchange holds (EXCHANGE_SHARE)
SHINGLES_SHARE = 0.2
TEMPORARY = "temporary files"


class Need(NamedTuple):
    """A folder, what it is used for, and the estimated number of bytes that this use needs."""

    folder: str
    use: str
    bytes: int


def check_disk_space(
    graph: Graph,
    done: Mapping[str, LocatedStep],
    workers: int | None,
    cluster: bool,
    failed: Collection[str] = (),
) -> None:
    """Raise NoSpaceError if a local disk lacks the space for the unfinished steps of a run.

    done: the steps located so far, by label. cluster: True if the tasks run, and write their temporary files, on other
    machines. failed: the labels of steps that have failed already.
    """
    left = remaining(graph, done, workers, failed) if urls.is_local(graph.root) else _whole_run(graph)
    needs = [Need(graph.root, "the output and what is exchanged between tasks", left.disk or 0)]
    needs = [need for need in needs if urls.is_local(need.folder)]
    if not cluster:
        needs.append(Need(tempfile.gettempdir(), TEMPORARY, temporary_bytes(graph, left, workers)))
    by_disk: dict[int, list[Need]] = {}
    for need in needs:
        by_disk.setdefault(os.stat(nearest_existing(urls.local_path(need.folder))).st_dev, []).append(need)
    for sharing in by_disk.values():
        _check_disk(sharing, graph.limits)


def _whole_run(graph: Graph) -> Remaining:
    """Return a Remaining that covers the whole run. It is used if the root is in an object store, where finding out
    which steps are done would require requests to the store.
    """
    files = [file for node in graph.nodes if node.state is not None for file in node.state.files or ()]
    return Remaining(frozenset(node.stage for node in graph.nodes), None, estimate.raw_text_bytes(files))


def temporary_bytes(graph: Graph, left: Remaining, workers: int | None) -> int:
    """Return the estimated number of bytes in the temporary files of all tasks that run in parallel."""
    text, share = left.text or 0, 0.0
    if "dedup" in left.stages:
        share = SHINGLES_SHARE
    if "normalize" in left.stages and not urls.is_local(graph.root):
        share = max(share, estimate.EXCHANGE_SHARE["normalize"])
    at_a_time = (text >> partition_bits(text)) * estimate.resources(graph.root, workers).workers
    return int(min(text, at_a_time) * share)


def _check_disk(needs: list[Need], limits: DiskLimits) -> None:
    folder, needed = needs[0].folder, sum(need.bytes for need in needs)
    free, kept = estimate.disk_free(folder), limits.free_bytes(DiskSpace.of(urls.local_path(folder)).size)
    if free is None or not needed or needed + kept <= free:
        return
    uses = [f"about {size_text(need.bytes)} in {need.folder} for {need.use}" for need in needs if need.bytes]
    advice = "choose another --root" if needs[0].use != TEMPORARY else "set TMPDIR to a larger disk"
    raise NoSpaceError(
        f"this run needs {', '.join(uses)}, but the disk has {size_text(free)} free, of which {size_text(kept)} "
        f"must stay free (limits.min_free_bytes); {advice}, free some space "
        "(`datakit gc` lists leftovers), or start the run anyway with --ignore-disk-space, since the estimate may be "
        "off by 50 %"
    )
