"""Decides which of several steps that are ready gets a free slot: that nearest to the end of the run.

Steps of the same stage are equally near; of these, the one with the longest path of work to the end of the run comes
first. Taking later stages first finishes one source after the other: its temporary files go early, and it is read again
while it is still in the page cache. Taking the longest path first keeps the phases of the largest source, which depend
on each other, from being the last thing that runs, on one slot. Estimates only decide the order, never the output.
"""

from __future__ import annotations

from datakit.engine.scheduler.run_loop import Priority
from datakit.pipeline.estimate import raw_text_bytes, work_seconds
from datakit.pipeline.graph import Graph, Node


def priorities(graph: Graph) -> dict[str, Priority]:
    """Return the priority of each node, by label; lower values come first. Reads nothing: the sizes are those of the
    listed files.
    """
    below: dict[str, list[Node]] = {node.label: [] for node in graph.nodes}
    for node in graph.nodes:
        for above in node.upstream:
            below[above.label].append(node)
    text = text_bytes(graph)
    steps, path = dict[str, int](), dict[str, float]()
    for node in reversed(graph.nodes):
        after = [one.label for one in below[node.label]]
        steps[node.label] = 1 + max((steps[label] for label in after), default=0)
        path[node.label] = work_seconds(node.stage, text[node.label]) + max((path[one] for one in after), default=0.0)
    return {node.label: (steps[node.label], -path[node.label], index) for index, node in enumerate(graph.nodes)}


def text_bytes(graph: Graph) -> dict[str, int]:
    """Return an estimate, from the listed files, of the number of bytes of text that each node processes, by label."""
    sources = {node.dataset: raw_text_bytes(node.state.files or ()) for node in graph.nodes if node.state is not None}
    return {node.label: sources[node.dataset] if node.source else sum(sources.values()) for node in graph.nodes}
