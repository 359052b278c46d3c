"""Spans that a recipe edits reach the token cache and the consolidated dataset, byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datakit.api import run
from datakit.cache.reader import open_cache
from datakit.pipeline.run_summary import RunResult
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate
from tests.support.partitions import identity

TEXTS = [
    *(f"Brief {n} von Ada. 日本語 an ada{n}@mail.example.net und 1{n}.20.30.40; 🦉 Ende." for n in range(10, 60)),
    *(f"Nothing to see here {n}" for n in range(20)),
    "one@mail.example.net",
    "😀two@mail.example.net two@mail.example.net😀",
    "plain @ text",
]
TABLES = """
[annotate.personal]
[select.edits.mail]
spans = "personal.spans"
kinds = ["email", "email_reserved"]
action = "mask"
replacement = "<ÉMAIL>"
[select.edits.address]
spans = "personal.spans"
kinds = ["ipv4", "ipv4_reserved"]
action = "cut"
"""


def recipe_with(folder: Path, tables: str, sources: dict[str, list[str]] | None = None) -> Path:
    """Write a recipe with these tables and the texts of its sources."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ['name = "shelf"']
    for name, texts in (sources or {"letters": TEXTS}).items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        lines.append(f'[[sources]]\nname = "{name}"\nurl = "{name}.jsonl"')
    path = folder / "shelf.toml"
    path.write_text("\n".join([*lines, tables, '[consolidate]\n[tokenize]\ntokenizer = "bytes"\n']))
    return path


def reference(text: str, spans: list[dict[str, Any]]) -> str:
    """Edit a text as TABLES demand, in plain Python: spans that overlap are one stretch, and cut beats mask."""
    verbs = {"email": "mask", "email_reserved": "mask", "ipv4": "cut", "ipv4_reserved": "cut"}
    stretches: list[list[Any]] = []
    for span in sorted(spans, key=lambda one: (one["start"], one["stop"])):
        verb = verbs.get(span["kind"])
        if verb is None:
            continue
        if stretches and span["start"] < stretches[-1][1]:
            stretches[-1][1] = max(stretches[-1][1], span["stop"])
            stretches[-1][2] = "cut" if "cut" in (verb, stretches[-1][2]) else "mask"
        else:
            stretches.append([span["start"], span["stop"], verb])
    data = text.encode()
    for start, stop, verb in reversed(stretches):
        data = data[:start] + ("<ÉMAIL>".encode() if verb == "mask" else b"") + data[stop:]
    return data.decode()


def rows(directory: str, pattern: str) -> dict[str, dict[str, Any]]:
    """Return the rows of all Parquet files of a step, by id."""
    return {
        row["id"]: row for path in sorted(Path(directory).glob(pattern)) for row in read_shard(str(path)).to_pylist()
    }


def expected(result: RunResult) -> dict[str, str]:
    """Return the text that each document should have, by id."""
    (normalized,), (annotated,) = result.steps_of("normalize"), result.steps_of("annotate")
    spans = rows(annotated.directory, "data/letters/personal/*")
    return {
        name: reference(row["text"], spans[name]["spans"] if name in spans else [])
        for name, row in rows(normalized.directory, "data/*/*").items()
    }


def encoded(result: RunResult) -> dict[str, str]:
    """Return the text of each document in the token cache, decoded from its tokens."""
    assert result.cache is not None
    return {
        document.id: bytes(token for token in document.tokens.tolist() if token < 256).decode()
        for document in open_cache(result.cache)
    }


def test_edited_texts_reach_the_cache_and_the_dataset(tmp_path: Path) -> None:
    result = run(recipe_with(tmp_path, TABLES), root=tmp_path / "root", workers=2)
    wanted = expected(result)
    assert len(wanted) == len(set(TEXTS))
    assert sum("<ÉMAIL>" in text for text in wanted.values()) >= 50
    assert encoded(result) == wanted
    (consolidated,) = result.steps_of("consolidate")
    found = rows(consolidated.directory, "data/*/*.parquet")
    assert {name: row["text"] for name, row in found.items()} == wanted
    for name, row in found.items():
        assert row["edited_id"] == (identity(row["text"]) if identity(row["text"]) != name else None)
    report = validate(str(tmp_path / "root"))
    assert [str(finding) for finding in report.findings] == []
