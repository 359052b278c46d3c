"""Steps near the end of the run come first; within a stage, the sources with the most text come first."""

from __future__ import annotations

from pathlib import Path

from datakit.pipeline.estimates.priorities import priorities
from datakit.pipeline.graph import build
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.recipe import load_recipe
from tests.support.small_shelf import prose, write_lines

SIZES = {"small": 3, "large": 90, "middle": 20}


def test_later_stages_come_first_then_larger_sources(tmp_path: Path) -> None:
    sources = "".join(f'[[sources]]\nname = "{name}"\nurl = "{name}"\n' for name in SIZES)
    for name, count in SIZES.items():
        write_lines(tmp_path / name / "a.jsonl", [prose(row) for row in range(count)])
    (tmp_path / "r.toml").write_text(f'name = "r"\n{sources}[dedup]\n[tokenize]\ntokenizer = "bytes"\n')
    graph = build(load_recipe(tmp_path / "r.toml"), str(tmp_path / "root"), ListingOptions())
    ranks = priorities(graph)
    assert len(set(ranks.values())) == len(graph.nodes)
    found = [label for label in sorted(ranks, key=lambda label: ranks[label]) if " " in label]
    by_size = sorted(SIZES, key=lambda name: -SIZES[name])
    assert found == [f"{stage} {name}" for stage in ("signatures", "normalize", "download") for name in by_size]
    for node in graph.nodes:
        assert all(ranks[node.label] < ranks[above.label] for above in node.upstream)
