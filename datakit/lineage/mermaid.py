"""Renders a lineage as a Mermaid flowchart, which GitHub, GitLab and many editors draw from Markdown.

    flowchart LR
      n0[("novels<br/>1 file")]
      n1["normalize novels<br/>97 rows"]
      n0 --> n1

A manifest may hold names with any characters, so labels are escaped with Mermaid's entity codes (`#34;` for a quotation
mark).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from datakit.errors import counted
from datakit.lineage.graph import Lineage, StepRecord
from datakit.lineage.sources import SourceRecord
from datakit.printable import printable

DOWNLOAD = "download"
_PLAIN = re.compile(r"[^\w .,:/@+-]")


def mermaid(lineage: Lineage) -> str:
    """Return the flowchart, one line per source, step and arrow."""
    return "\n".join(["flowchart LR", *(f"  {line}" for line in _lines(lineage))]) + "\n"


def _lines(lineage: Lineage) -> Iterator[str]:
    nodes = {step.identity: f"n{number}" for number, step in enumerate(lineage.steps)}
    sources = {source.identity: source for source in lineage.sources}
    for step in lineage.steps:
        source = sources.get(step.identity)
        yield f"{nodes[step.identity]}{_source(source) if source else _step(step)}"
    for step in lineage.steps:
        for identity in dict.fromkeys(step.inputs):
            yield f"{nodes[identity]} --> {nodes[step.identity]}"


def _source(source: SourceRecord) -> str:
    facts = [source.name, counted(source.files, "file"), source.revision or "", source.license or ""]
    return f'[("{_label(facts)}")]'


def _step(step: StepRecord) -> str:
    if not step.found:
        return f'["{_label([step.stage, "missing", step.identity[:12]])}"]'
    facts = [step.name, counted(step.rows, "row")]
    return f'["{_label([*facts, *([counted(step.tokens, "token")] if step.tokens is not None else [])])}"]'


def _label(facts: list[str]) -> str:
    """Return the facts as the lines of a label.
    >>> _label(["<b>", 'a "b"'])
    '#60;b#62;<br/>a #34;b#34;'
    """
    return "<br/>".join(_PLAIN.sub(lambda found: f"#{ord(found[0])};", printable(fact)) for fact in facts if fact)
