"""Decides which of several ready steps gets a free slot: the one nearest to the end of the run.

Steps of the same stage are equally near to the end. Of these, the step with the longest path of estimated work to the
end of the run comes first. Because later stages come first, sources are finished one after the other: the temporary
files of a source are removed early, and its data is read again while it is still in the page cache. Because the longest
path comes first, the largest source, whose phases depend on each other, does not run alone at the end of the run while
other slots are idle. Estimates affect only the order, never the output.
"""

from __future__ import annotations

from datakit.engine.scheduler.run_loop import Priority
from datakit.pipeline.estimate import raw_text_bytes, work_seconds
from datakit.pipeline.graph import Graph, Node


def priorities(graph: Graph) -> dict[str, Priority]:
    """Return the priority of each node, by label; lower values come first. Nothing is read: the sizes are those in the
    file listings.
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
