"""Writes a small real dataset for tests: parts of the standard library as three sources in three formats."""

from __future__ import annotations

import gzip
import json
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

STDLIB = Path(sysconfig.get_paths()["stdlib"])


def texts(pattern: str, most: int) -> list[tuple[str, str]]:
    """(name, text) of the first `most` matching files of the standard library, by name."""
    paths = sorted(STDLIB.glob(pattern))[:most]
    return [(str(path.relative_to(STDLIB)), path.read_text(encoding="utf-8", errors="replace")) for path in paths]


def write_shelf(folder: Path, sources: int = 3) -> Path:
    """Write sources with exact and near duplicates, and a recipe; return the recipe's path."""
    folder.mkdir(parents=True, exist_ok=True)
    modules = texts("*.py", 60)
    mixed = [(f"copy/{name}", text) for name, text in modules[:5]]
    mixed += [(f"edited/{name}", text + "\n# one more line at the end of it\n") for name, text in modules[20:30]]
    mixed += texts("json/*.py", 10) + texts("email/*.py", 20)
    if not (folder / "mixed.jsonl").exists():
        _write_files(folder, modules, mixed)
    tables = [
        '[[sources]]\nname = "modules"\nurl = "modules.jsonl.gz"\n',
        '[[sources]]\nname = "pages"\nurl = "pages.parquet"\ntext = "body"\nid = "name"\n',
        '[[sources]]\nname = "mixed"\nurl = "mixed.jsonl"\n',
    ]
    recipe = folder / f"shelf-{sources}.toml"
    head = 'name = "shelf"\n\n'
    tail = '\n[dedup]\nmax_removal = 1.0\n\n[tokenize]\ntokenizer = "train"\n\n[tokenize.train]\nvocabulary = 1000\n'
    recipe.write_text(head + "\n".join(tables[:sources]) + tail)
    return recipe


def _write_files(folder: Path, modules: list[tuple[str, str]], mixed: list[tuple[str, str]]) -> None:
    with gzip.open(folder / "modules.jsonl.gz", "wt", encoding="utf-8") as file:
        for name, text in modules:
            file.write(json.dumps({"id": name, "text": text, "lines": text.count("\n")}) + "\n")
    ids, bodies = zip(*texts("encodings/cp*.py", 30), strict=True)
    pq.write_table(pa.table({"name": list(ids), "body": list(bodies)}), folder / "pages.parquet", row_group_size=7)
    with open(folder / "mixed.jsonl", "w", encoding="utf-8") as file:
        for name, text in mixed:
            file.write(json.dumps({"id": name, "text": text}) + "\n")
