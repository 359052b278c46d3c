"""Computes the flow of documents through the stages, as the nodes and links of a Sankey diagram.

The nodes are the sources, the records, the documents that normalize made of them, the documents that were kept, and one
node for each reason for which records or documents were left out. Each node passes on as much as it receives, because
the counts in the manifests add up. If there are more than SHOWN + 1 sources, only the SHOWN largest ones have nodes of
their own, and the others share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datakit.errors import counted
from datakit.report.counts import SourceCounts, merged, total
from datakit.report.figures import Chart, Column, Figure, Table

SHOWN = 8
LAST = 3  # the last column: what was kept, and what was left out
ADDED = "added by transform"


class _Flow:
    """The nodes and links so far."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.links: list[dict[str, Any]] = []

    def node(self, key: str, label: str, value: int, tone: str, depth: int) -> None:
        self.nodes.append({"id": key, "label": label, "value": value, "tone": tone, "depth": depth})

    def link(self, source: str, target: str, value: int) -> None:
        if value:
            self.links.append({"source": source, "target": target, "value": value})

    def out(self, source: str, reasons: dict[str, int]) -> None:
        """Add a node, and a link from `source`, for each reason for which something was left out."""
        for why, count in reasons.items():
            self.node(f"{source}:{why}", why, count, "lost", LAST)
            self.link(source, f"{source}:{why}", count)


def flow_figure(sources: Sequence[SourceCounts]) -> Figure | None:
    """Return the figure; None if there is no source, or if the records or kept documents of any source are unknown."""
    everything = total(sources)
    if not sources or everything.records is None or everything.kept is None:
        return None
    flow = _Flow()
    _records(flow, sources, everything)
    documents = everything.documents or 0
    flow.node("documents", "Documents", documents, "accent", 2)
    flow.link("records", "documents", documents)
    flow.out("records", dict(everything.left_out))
    last = "Tokenized" if everything.tokens is not None else "Kept"
    flow.node("kept", last, everything.kept, "good", LAST)
    flow.link("documents", "kept", everything.kept)
    lost = dict(everything.removed)
    rest = documents - everything.kept - sum(lost.values())
    flow.out("documents", lost | ({"left out by tokenize": rest} if rest > 0 else {}))
    described = f"Of {counted(everything.records, 'record')}, {everything.kept:,} were kept."
    chart = Chart("flow", {"nodes": flow.nodes, "links": flow.links, "unit": "count"}, described)
    return Figure("flow", "Flow of documents", _table(flow), chart, _tokens(everything), wide=True)


def _records(flow: _Flow, sources: Sequence[SourceCounts], everything: SourceCounts) -> None:
    ordered = sorted(sources, key=lambda source: (source.sources == 1, source.records or 0), reverse=True)
    shown = ordered if len(ordered) <= SHOWN + 1 else [*ordered[:SHOWN], merged(ordered[SHOWN:])]
    for number, source in enumerate(shown):
        flow.node(f"source:{number}", source.name, source.records or 0, "second", 0)
        flow.link(f"source:{number}", "records", source.records or 0)
    if everything.added:
        flow.node(ADDED, ADDED, everything.added, "second", 0)
        flow.link(ADDED, "records", everything.added)
    flow.node("records", "Records", (everything.records or 0) + everything.added, "accent", 1)


def _tokens(everything: SourceCounts) -> str:
    if everything.tokens is None:
        return ""
    return f"The {counted(everything.kept or 0, 'document')} that were kept make {counted(everything.tokens, 'token')}."


def _table(flow: _Flow) -> Table:
    labels = {node["id"]: node["label"] for node in flow.nodes}
    rows = [(labels[link["source"]], labels[link["target"]], link["value"]) for link in flow.links]
    return Table("Flow of documents", (Column("from"), Column("to"), Column("documents", "count")), rows)
