"""Every suite has columns, the page shows the table as it is, and a recipe can name a suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datakit.annotate.contamination.suites import suites
from datakit.pipeline.configuration.configure import configure
from datakit.recipe import parse_recipe
from tests.support.paths import REPOSITORY


def content_of(folder: Path, **settings: Any) -> dict[str, Any]:
    """The settings of the set that enter the fingerprint."""
    (folder / "items.jsonl").write_text(json.dumps({"ctx": "a", "endings": ["b"]}) + "\n")
    sets = {"mine": {"path": str(folder / "items.jsonl"), **settings}}
    document = {"name": "x", "sources": [{"name": "a", "url": "/x"}], "annotate": {"contamination": {"sets": sets}}}
    found = configure(parse_recipe(document, "example", folder))["annotate"]["a"]
    return found.content["annotators"]["contamination"]["sets"]["mine"]


def test_page_lists_every_suite() -> None:
    page = (REPOSITORY / "docs" / "annotate" / "contamination.md").read_text()
    rows = [
        f"| `{name}` | {', '.join(f'`{column}`' for column in suite.columns)} | {suite.hub} |"
        for name, suite in suites().items()
    ]
    assert "\n".join(rows) in page
    assert list(suites()) == sorted(suites())


def test_suite_stands_for_its_columns_and_is_not_part_of_the_fingerprint(tmp_path: Path) -> None:
    named = content_of(tmp_path, suite="hellaswag")
    assert named == content_of(tmp_path, columns=["ctx", "endings"])
    assert named.keys() == {"columns", "sha256"} and tuple(named["columns"]) == ("ctx", "endings")
