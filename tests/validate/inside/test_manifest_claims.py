"""The totals, sources and order of partitions are recomputed for the steps of rules and passages, too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from datakit.api import run
from datakit.validate.validation import validate
from tests.support.validate.damage import forged

RECIPE = """
name = "shelf"
[[sources]]
name = "a"
url = "a.jsonl"
[[sources]]
name = "b"
url = "b.jsonl"
[[rules]]
name = "first"
where = "document.n = 0"
[passages.lines]
unit = "line"
min_bytes = 10
[dedup]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shelf")
    for name in ("a", "b"):
        rows = [{"text": f"this line is shared\nand {name} {n} is not", "n": n} for n in range(5)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "shelf.toml").write_text(RECIPE)
    run(folder / "shelf.toml", root=folder / "root", workers=1)
    return folder / "root"


def test_intact_steps_have_no_finding(root: Path) -> None:
    assert [str(one) for one in validate(str(root)).findings] == []


@pytest.mark.parametrize("stage", ["rules", "passages"])
@pytest.mark.parametrize(
    "forgery",  # the keys of a value of the manifest, the value or what makes it of the true one, and the finding
    [
        (("totals", "rows"), lambda rows: rows + 1, "says that the total is"),
        (("partitions", 0, "source"), "b", "belongs to source 'b'"),
        (("partitions",), lambda parts: [*parts, parts[0]], "lists partitions of other sources between"),
        (("partitions",), lambda parts: [{**one, "path": one["path"].replace("00001", "00002")} for one in parts],
         "lists 1 of the 2 partitions of source"),
    ],
)  # fmt: skip
def test_forged_manifest_is_found(root: Path, tmp_path: Path, stage: str, forgery: tuple[Any, ...]) -> None:
    keys, value, difference = forgery
    copy = Path(shutil.copytree(root, tmp_path / "root"))
    forged(f"shelf/{stage}-*", *keys, value=value)(copy)
    found = [one for one in validate(str(copy)).findings if f"/{stage}-" in one.url]
    assert [one for one in found if difference in one.difference], [str(one) for one in found]
