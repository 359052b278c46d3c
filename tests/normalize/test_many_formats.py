"""A run over sources of many formats writes the same bytes with one worker and with four."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import datakit
from tests.support.normalize.sources import write_lines
from tests.support.small_shelf import prose

DOCUMENTS = 30
QUARANTINE = "quarantine/records.jsonl"
RECIPE = """
name = "formats"

[[sources]]
name = "array"
url = "in/array"

[[sources]]
name = "enveloped"
url = "in/enveloped.json"
format = "json-array"

[[sources]]
name = "wiki"
url = "in/wiki"
format = "mediawiki"
where = "namespace = 0"

[[sources]]
name = "samples"
url = "in/samples"
format = "webdataset"

[[sources]]
name = "dolma"
url = "in/dolma"
format = "dolma"
where = "quality > 0.5"

[normalize]
max_quarantined = 5

[tokenize]
tokenizer = "bytes"
"""

POISON = """
import os


def poison(table):
    if any("DEADLY" in (text or "") for text in table["text"].to_pylist()):
        os._exit(9)
    return table
"""


def page(number: int) -> str:
    return (
        f"<page><title>{number}</title><ns>{number % 2}</ns><id>{number + 1}</id><revision><id>{number + 1}</id>"
        f"<timestamp>2024-01-01T00:00:00Z</timestamp><text>{prose(500 + number)}</text></revision></page>\n"
    )


def write_sources(folder: Path) -> None:
    """Two files per source, each with a record that cannot be used."""
    for part in range(2):
        numbers = range(part * DOCUMENTS, (part + 1) * DOCUMENTS)
        records = [{"id": f"r{number}", "text": prose(number)} for number in numbers]
        (folder / "array").mkdir(parents=True, exist_ok=True)
        (folder / "array" / f"{part}.json").write_text(json.dumps([*records, 5], indent=part))
        (folder / "enveloped.json").write_text(json.dumps({"version": 1, "data": records}))
        (folder / "wiki").mkdir(exist_ok=True)
        dump = "<mediawiki>\n" + "".join(map(page, numbers)) + "<page></page></mediawiki>\n"
        (folder / "wiki" / f"{part}.xml.bz2").write_bytes(bz2.compress(dump.encode()))
        (folder / "samples").mkdir(exist_ok=True)
        with tarfile.open(folder / "samples" / f"{part}.tar", "w") as archive:
            for number in numbers:
                for kind, data in (("txt", prose(900 + number)), ("json", json.dumps({"n": number})), ("cls", "1")):
                    info = tarfile.TarInfo(f"{number:04d}.{kind}")
                    info.size = len(data.encode())
                    archive.addfile(info, io.BytesIO(data.encode()))
        write_lines(folder / "dolma" / "documents" / f"{part}.jsonl", *records)
        attributes = [{"id": f"r{number}", "attributes": {"quality": number / 59}} for number in numbers]
        write_lines(folder / "dolma" / "attributes" / "q" / f"{part}.jsonl", *attributes)


def digests(root: Path) -> dict[str, str]:
    """The hash of each file of the normalize steps, except those that tell how the work went."""
    found = [path for path in root.rglob("*") if path.is_file() and path.parts[-2].startswith("normalize-")]
    found += [*root.glob("sources/*/normalize-*/data/**/*.parquet"), *root.glob("sources/*/normalize-*/origins/*")]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_formats_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    write_sources(tmp_path / "in")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    rows = {}
    for workers in (1, 4):
        result = datakit.run(str(tmp_path / "recipe.toml"), str(tmp_path / f"root{workers}"), workers=workers)
        cache = datakit.open_cache(str(result.cache))
        rows[workers] = sum(1 for _ in cache.documents())
    found = digests(tmp_path / "root1")
    assert found == digests(tmp_path / "root4")
    assert len(found) >= 5 * 4, "the manifest, a partition and two files of origins for each source"
    assert rows[1] == rows[4] > 3 * DOCUMENTS


def test_record_that_kills_its_process_costs_one_record(tmp_path: Path) -> None:
    """In every format, the record is found and listed with its place."""
    write_sources(tmp_path / "in")
    (tmp_path / "poison.py").write_text(POISON)
    (tmp_path / "recipe.toml").write_text(re.sub("where = .*", "", RECIPE))
    deadly, places = prose(5), dict[str, int]()
    for name in ("array/0.json", "enveloped.json"):
        place = tmp_path / "in" / name
        place.write_text(place.read_text().replace(deadly, "DEADLY"))
    page_text, sample_text = prose(504), prose(905)
    dump = bz2.decompress((tmp_path / "in/wiki/0.xml.bz2").read_bytes()).replace(page_text.encode(), b"DEADLY")
    (tmp_path / "in/wiki/0.xml.bz2").write_bytes(bz2.compress(dump))
    places["wiki"] = dump.rindex(b"<page>", 0, dump.index(b"DEADLY"))
    tar = tmp_path / "in/samples/0.tar"
    data = tar.read_bytes()
    tar.write_bytes(data.replace(sample_text.encode(), b"DEADLY".ljust(len(sample_text))))
    places["samples"] = data.index(b"0005.txt")
    array = (tmp_path / "in/array/0.json").read_bytes()
    places["array"] = array.rindex(b"{", 0, array.index(b"DEADLY"))
    settings = ['normalize.transform="poison:poison"', "normalize.transform_version=1"]
    result = datakit.run(
        str(tmp_path / "recipe.toml"), str(tmp_path / "root"), workers=2, settings=settings, until="normalize"
    )
    found = {step.source: step for step in result.steps_of("normalize")}
    for source, place in places.items():
        listed = [json.loads(line) for line in Path(found[source].directory, QUARANTINE).read_text().splitlines()]
        assert [one["position"] for one in listed if "crash" in one["reason"]] == [place], (source, listed)
