"""Tar archives of samples, against Python's own tar reader and JSON parser."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize.readers import base
from datakit.normalize.readers.archives import webdataset
from datakit.normalize.readers.archives.tar_members import BLOCK, EXTENDED_BYTES
from datakit.normalize.readers.base import Chunk
from datakit.normalize.record_counts import RecordCounts
from tests.support.normalize.readers import positions, read, reasons, rows
from tests.support.normalize.sources import normalize

Members = list[tuple[str, bytes]]


def tar(members: Members, form: int = tarfile.PAX_FORMAT) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def read_tar(directory: Path, data: bytes, name: str = "in.tar", **config: Any) -> tuple[list[Chunk], RecordCounts]:
    (directory / name).write_bytes(data)
    return read(directory, name, format="webdataset", **config)


def oracle(data: bytes) -> list[dict[str, Any]]:
    """The records of an archive whose samples are all usable."""
    found: dict[str, dict[str, Any]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            folder, slash, last = info.name.rpartition("/")
            key, _, kind = last.partition(".")
            if not info.isreg() or kind.lower() not in ("txt", "json"):
                continue
            content = archive.extractfile(info).read()  # type: ignore[union-attr]
            sample = found.setdefault(folder + slash + key, {})
            if kind.lower() == "txt":
                sample["text"] = content.decode("utf-8", "replace")
            else:
                sample["json"] = json.loads(content)
    return [
        {"id": key, **({"text": sample["text"]} if "text" in sample else {})}
        | {
            f"json_{name}" if name == "id" or (name == "text" and "text" in sample) else name: value
            for name, value in sample.get("json", {}).items()
        }
        for key, sample in found.items()
    ]


keys = st.text(st.sampled_from("ab/é\n "), min_size=1, max_size=120).filter(lambda key: key[-1] not in "/ ")
objects = st.fixed_dictionaries(
    {}, optional={"id": st.integers(0, 9), "text": st.text(max_size=5), "n": st.floats(-9, 9), "[": st.text(max_size=9)}
)
samples = st.fixed_dictionaries(
    {}, optional={"txt": st.text(max_size=700), "json": objects, "jpg": st.binary(max_size=9)}
)


def content_of(value: Any, indent: int | None) -> bytes:
    """The content of a member that holds a text, bytes or an object."""
    if isinstance(value, dict):
        return json.dumps(value, indent=indent).encode()
    return value.encode() if isinstance(value, str) else value


@settings(max_examples=60, deadline=None)
@given(
    content=st.dictionaries(keys, samples, max_size=6), chunk=st.integers(1, 2000), indent=st.sampled_from([None, 1]),
    form=st.sampled_from([(tarfile.PAX_FORMAT, 1), (tarfile.GNU_FORMAT, 500), (tarfile.GNU_FORMAT, 4000)]),
)  # fmt: skip
def test_records_equal_those_of_the_standard_library(
    tmp_path_factory: pytest.TempPathFactory,
    content: dict[str, Any],
    chunk: int,
    indent: int | None,
    form: tuple[int, int],
) -> None:
    kind_of_tar, cut = form
    members = [
        (f"{key}.{kind}", content_of(value, indent))
        for key, sample in content.items()
        for kind, value in sample.items()
    ]

    def in_parts(file: Any, *_: Any, **__: Any) -> Any:
        return iter(lambda: file.read(cut), b"")

    with patch.object(base, "CHUNK_BYTES", chunk), patch.object(webdataset, "decompressed", in_parts):
        found, counts = read_tar(tmp_path_factory.mktemp("tar"), tar(members, kind_of_tar))
    expected = oracle(tar(members, kind_of_tar))
    assert [{name: value for name, value in row.items() if value is not None} for row in rows(found)] == expected
    assert not counts.quarantined
    assert counts.counters["normalize/members_ignored"] == sum("jpg" in sample for sample in content.values())
    assert positions(found) == sorted(set(positions(found)))


def test_names_are_data_and_never_paths(tmp_path: Path) -> None:
    members: Members = [("/etc/x.txt", b"a"), ("../../up.txt", b"b"), ("C:\\y.txt", b"c"), ("nul\x1b[31m.txt", b"d")]
    before = set(tmp_path.rglob("*"))
    result = normalize(tmp_path / "out", _written(tmp_path, tar(members)), format="webdataset")
    assert sorted(row["source_id"] for row in result.rows()) == ["../../up", "/etc/x", "C:\\y", "nul\x1b[31m"]
    assert {path for path in tmp_path.rglob("*") if "out" not in path.parts} - before == {tmp_path / "in.tar"}


def _written(directory: Path, data: bytes) -> Path:
    (directory / "in.tar").write_bytes(data)
    return directory / "in.tar"


def member_without_data(archive: tarfile.TarFile, name: str, kind: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    archive.addfile(info)


def test_directories_and_devices_are_passed_over(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for kind in (tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member_without_data(archive, "a.txt", kind)
    found, counts = read_tar(tmp_path, data.getvalue()[: 3 * BLOCK] + tar([("b.txt", b"b")]))
    assert (rows(found), counts.quarantined) == ([{"id": "b", "text": "b"}], [])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_text_that_is_a_link_is_not_missed(tmp_path: Path, kind: bytes) -> None:
    """GNU tar stores the second of two files that are one on the disk as a link. Other links are only counted."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member_without_data(archive, "a.txt", kind)
        member_without_data(archive, "c.jpg", kind)
    found, counts = read_tar(tmp_path, data.getvalue()[: 2 * BLOCK] + tar([("b.txt", b"b")]))
    assert rows(found) == [{"id": "b", "text": "b"}]
    assert [(place, "its .txt is a link" in why) for place, why in reasons(counts)] == [(0, True)]
    assert counts.counters["normalize/members_ignored"] == 1


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.AREGTYPE])
def test_long_name_is_not_taken_for_that_of_a_directory(tmp_path: Path, form: int, kind: bytes) -> None:
    """The header's own field holds the first 100 bytes of the name, which may end with a slash."""
    key = "folder/" * 20 + "a"
    for length in range(90, 115):
        name = f"{key[:length].rstrip('/')}/{key}.txt"
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w", format=form) as archive:
            info = tarfile.TarInfo(name)
            info.size, info.type = 1, kind
            archive.addfile(info, io.BytesIO(b"a"))
        found, counts = read_tar(tmp_path, data.getvalue())
        assert (rows(found), counts.quarantined) == ([{"id": name.removesuffix(".txt"), "text": "a"}], []), length


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([("x.txt", b"a"), ("x.txt", b"b")], "two members with the extension .txt"),
        ([("x.json", b'{"a": 1')], "its .json is unusable: not JSON"),
        ([("x.json", b"[1]")], "its .json is unusable: a JSON array"),
        ([("x.json", b'{"a":1}\n{"a":2}')], "its .json is unusable: not JSON: Extra data"),
        ([("x.json", b'{"a":1},{"a":2}')], "its .json is not one JSON value"),
        ([("x.json", b" ")], "its .json is not one JSON value"),
        ([("x.json", b'{"id": 1, "json_id": 2}')], "after `json_`"),
        ([("x.txt", b"y" * (5 << 20))], "its .txt is longer than max_document_bytes"),
    ],
)
def test_unusable_sample_costs_one_sample(tmp_path: Path, bad: Members, words: str) -> None:
    data = tar([("a.txt", b"first"), *bad, ("z.txt", b"last")])
    found, counts = read_tar(tmp_path, data, max_document_bytes=1000)
    assert [row["text"] for row in rows(found)] == ["first", "last"]
    ((place, reason),) = reasons(counts)
    assert place == 2 * BLOCK
    assert words in reason
    assert counts.counters["normalize/records_in"] == 3


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


SOUND = tar([("a.txt", b"first"), ("b.txt", b"second"), ("b.json", b"{}")])


@pytest.mark.parametrize(
    ("data", "kept", "last"),
    [
        (flipped(SOUND, 4 * BLOCK), ["first"], "damaged header at byte 2048; what follows is lost"),
        (SOUND[: 6 * BLOCK], ["first"], "the archive ends without its end mark, so members may be missing"),
        (SOUND[: 5 * BLOCK + 1], ["first"], "the archive ends inside a member"),
        (SOUND + SOUND, ["first", "second"], "data follows the end mark of the archive; it is not read"),
        (b"", [], "the archive ends without its end mark, so members may be missing"),
    ],
    ids=["header", "no-end", "cut", "two-archives", "empty"],
)
def test_damaged_archive_is_never_read_silently(tmp_path: Path, data: bytes, kept: list[str], last: str) -> None:
    found, counts = read_tar(tmp_path, data)
    assert [row["text"] for row in rows(found)] == kept
    assert reasons(counts)[-1][1] == last
    assert counts.counters["normalize/records_in"] == len(kept) + len(counts.quarantined)


def test_extended_header_does_not_fill_the_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.txt")
    info.type, info.size = tarfile.XHDTYPE, EXTENDED_BYTES + 1
    _, counts = read_tar(tmp_path, info.tobuf(tarfile.GNU_FORMAT) + bytes(100 * BLOCK))
    assert [reason for _, reason in reasons(counts)] == ["an extended header of 1048577 bytes; what follows is lost"]


def test_damaged_compressed_archive_yields_nothing_of_the_damaged_stream(tmp_path: Path) -> None:
    good = gzip.compress(tar([("a.txt", b"first")]), mtime=0)
    (tmp_path / "in.tar.gz").write_bytes(flipped(good, len(good) - 6))
    with pytest.raises(Exception, match="1 quarantined"):
        normalize(tmp_path / "out", tmp_path / "in.tar.gz", format="webdataset", max_quarantined=9)
    for name in ("ok.tar.gz", "ok.tgz"):
        (tmp_path / name).write_bytes(good)
        result = normalize(tmp_path / name[3:], tmp_path / name, format="webdataset")
        assert [row["text"] for row in result.rows()] == ["first"]
