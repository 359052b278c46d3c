"""In the flow of documents, what comes into a node is what leaves it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from datakit.report.counts import SourceCounts, source_counts
from datakit.report.flow import SHOWN, flow_figure
from datakit.report.subject import subject_of


def chart(sources: list[SourceCounts]) -> tuple[dict[str, int], Counter[str], Counter[str]]:
    """The values of the nodes, and what comes into each node and leaves it."""
    figure = flow_figure(sources)
    assert figure is not None and figure.chart is not None
    into, out = Counter[str](), Counter[str]()
    for link in figure.chart.data["links"]:
        into[link["target"]] += link["value"]
        out[link["source"]] += link["value"]
    return {node["id"]: node["value"] for node in figure.chart.data["nodes"]}, into, out


def test_nodes_pass_on_what_they_receive(finished: Path) -> None:
    nodes, into, out = chart(source_counts(subject_of(str(finished / "root" / "shelf"))))
    for name in ("records", "documents"):
        assert into[name] == out[name] == nodes[name]
    assert into["kept"] == nodes["kept"]


def test_small_sources_share_a_node() -> None:
    sources = [SourceCounts(f"s{number}", 10 + number, 0, Counter(blank=1), 9 + number, kept=9 + number, tokens=1)
               for number in range(30)]  # fmt: skip
    nodes, into, out = chart(sources)
    assert len([name for name in nodes if name.startswith("source:")]) == SHOWN + 1
    assert into["records"] == sum(10 + number for number in range(30))
    assert out["records"] == into["records"]


def test_dataset_without_counts_of_records_has_no_flow() -> None:
    assert flow_figure([SourceCounts("only-tokens", kept=4, tokens=9)]) is None
