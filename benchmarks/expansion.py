"""Prints, for each phase of a whole run, how many bytes its tasks write per byte of their input, at most.

`limits.max_expansion` must be far above the largest ratio of honest data. The sources hold the same real texts in
several formats, many small files, and two extreme but honest cases: rows of a few bytes beside constant columns, and
one-line records that repeat. The input of the first phase counts as it is stored, as it does for the limit.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

import datakit
from datakit.engine.ledger.ledger import AttemptLine, PhaseLine, read_ledger
from datakit.recipe import parse_recipe
from tests.support.data import data_dir, texts_of

TEXTS = ("novels-en.jsonl.gz", "peps.jsonl.zst", "code-datatrove.jsonl.zst")
CONSTANT = {"url": "https://example.org/a/prefix/that/repeats/in/every/row", "note": "x" * 100, "language": "en"}


def write_sources(folder: Path) -> list[str]:
    """Write the sources below a folder, and return their names."""
    texts = [text for name in TEXTS for text in texts_of(data_dir() / "text" / name)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    short = [{"text": str(number), **CONSTANT} for number in range(200_000)]
    logs = (f"2026-01-01T00:00:{number % 60:02d} host sshd[{number % 100}]: ok" for number in range(300_000))
    packed = zstandard.ZstdCompressor(level=19).compress
    files = {
        "plain/a.jsonl": lines,
        "zstd/a.jsonl.zst": packed(lines),
        "repeated/a.jsonl.zst": packed("".join(json.dumps({"text": text}) + "\n" for text in logs).encode()),
        **{f"small/{number:05d}.txt": text.encode() for number, text in enumerate(texts[:2000])},
    }
    for name, rows in (("parquet", [{"text": text} for text in texts]), ("constant", short)):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), sink, compression="zstd", compression_level=19)
        files[f"{name}/a.parquet"] = sink.getvalue().to_pybytes()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return list(dict.fromkeys(name.partition("/")[0] for name in files))


def ratios(directory: str, stored: int | None) -> dict[str, float]:
    """Return the largest ratio of each phase of a step. stored: the size of the first phase's input, if known."""
    sizes: dict[str, dict[str, int]] = {}
    written, found = Counter[str](), dict[str, float]()
    for line in read_ledger(directory):
        if isinstance(line, PhaseLine):
            sizes[line.phase] = dict(zip(line.keys, line.input_bytes, strict=True))
        elif isinstance(line, AttemptLine):
            written[line.phase] += line.written
            if size := sizes[line.phase][line.key]:  # a few tasks only combine what others found
                found[line.phase] = max(found.get(line.phase, 0), line.written / size)
    return {**found, "route": written["route"] / stored} if stored else found


def main() -> None:
    """Run the pipeline, and print a line per phase."""
    with tempfile.TemporaryDirectory() as place:
        names = write_sources(Path(place))
        sources = [{"name": name, "url": f"{place}/{name}"} for name in names]
        table = {"name": "all", "sources": sources, "dedup": {"max_removal": 1.0}, "tokenize": {"tokenizer": "bytes"}}
        result = datakit.run(parse_recipe(table, "benchmark", Path(place)), root=f"{place}/root")
        for step in result.steps:
            files = Path(place, step.source or "").rglob("*") if step.stage == "normalize" else ()
            stored = sum(file.stat().st_size for file in files if file.is_file())
            for phase, ratio in ratios(step.directory, stored).items():
                print(f"{step.label:25} {phase:12} {ratio:10,.2f}")


if __name__ == "__main__":
    main()
