"""The flowchart has a node for every step and an arrow for every input, and escapes names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from datakit.lineage import read_lineage
from datakit.lineage.mermaid import mermaid


def test_flowchart_has_all_steps_and_inputs(finished: Path) -> None:
    lineage = read_lineage(str(finished / "root" / "shelf"))
    first, *lines = mermaid(lineage).splitlines()
    assert first == "flowchart LR"
    arrows = [line.split(" --> ") for line in lines if "-->" in line]
    nodes = [line for line in lines if "-->" not in line]
    assert len(nodes) == len(lineage.steps)
    assert len(arrows) == sum(len(step.inputs) for step in lineage.steps)


def test_names_cannot_leave_their_labels(finished: Path) -> None:
    lineage = read_lineage(str(finished / "root" / "shelf"))
    odd = replace(lineage.steps[1], name='x"] --> n0; click n0 "javascript:alert(1)"')
    text = mermaid(replace(lineage, steps=(lineage.steps[0], odd)))
    label = next(line for line in text.splitlines() if "alert" in line)
    assert re.fullmatch(r'  n1\["[^"\[\]<>]*<br/>[^"\[\]<>]*"\]', label)
