"""Every legal key of an object becomes documents, on disks and on S3, and no key stands for another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from xxhash import xxh3_128_hexdigest as xxh3

import datakit
from datakit.download.copy_names import HASHED, copy_names
from datakit.errors import UnreadableError
from datakit.storage import urls
from datakit.storage.manifest import read_manifest
from datakit.validate.intact import findings_of
from tests.support.normalize.sources import list_source
from tests.support.s3 import s3_root

ODD = (
    "x.txt", "a//b.txt", "/lead.txt", "../up.txt", "p/../q.txt", "./dot.txt", "p/./q.txt", "n" * 296 + ".txt",
    "k/" * 100 + "m" * 820 + ".txt", "hashed~/00.txt",
)  # fmt: skip
PLAIN = ("x.txt/z.txt", "a/b.txt", "q.txt", "p/q.txt", "é.txt", "tab\t.txt", "del\x7f.txt", "bidi\u202e.txt",
         "#h?.txt", "per%20cent.txt", "a + b.txt", "back\\slash.txt", "st*ar[1].txt")  # fmt: skip
LEFT_OUT = (".hidden.txt", "a/.git/x.txt")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A folder of S3 with an object for each key, which holds the key, and a folder for roots."""
    with s3_root() as place:
        file_system, path = urls.filesystem(place)
        for key in (*ODD, *PLAIN, *LEFT_OUT):
            file_system.pipe_file(f"{path}/source/{key}", key.encode())
        file_system.pipe_file(f"{path}/source/marker", b"a text")  # so that a folder's marker lies beside other keys
        file_system.call_s3("put_object", Bucket=path.partition("/")[0], Key=f"{path.partition('/')[2]}/source/empty/")
        yield place


def test_only_keys_that_no_file_can_have_get_other_names() -> None:
    assert set(copy_names([*ODD, *PLAIN])) == set(ODD)
    assert copy_names(["a//b.txt"]) == {"a//b.txt": f"{HASHED}/{xxh3(b'a//b.txt')}"}
    assert copy_names(["nul\0.txt"]) == {"nul\0.txt": f"{HASHED}/{xxh3(bytes('nul', 'ascii') + bytes(1) + b'.txt')}"}


def test_keys_are_listed_unchanged_and_hidden_ones_named(bucket: str) -> None:
    left_out: list[str] = []
    found = list_source(f"{bucket}/source", ["*.txt"], [], on_skipped=left_out.append)
    assert [file.path for file in found] == sorted([*ODD, *PLAIN])
    assert left_out == ["2 hidden names (.hidden.txt, a/.git/x.txt)"]


@pytest.mark.parametrize("store", ["disk", pytest.param("s3", marks=pytest.mark.soak)])
def test_every_key_becomes_one_document(bucket: str, tmp_path: Path, store: str) -> None:
    recipe = tmp_path / "keys.toml"
    recipe.write_text(
        f'name = "keys"\n[[sources]]\nname = "s"\nurl = "{bucket}/source"\ninclude = ["*.txt"]\n[normalize]\nid = ""\n'
    )
    root = str(tmp_path / "root") if store == "disk" else urls.join(bucket, "root")
    result = datakit.run(recipe, root=root, workers=2)
    download, normalize = result.steps[0], result.steps[1]
    assert [part.path for part in download.manifest.partitions] == sorted([*ODD, *PLAIN])
    assert {part.path: part.copy for part in download.manifest.partitions if part.copy} == copy_names([*ODD, *PLAIN])
    texts = sorted(
        str(text)
        for part in normalize.manifest.partitions
        for text in datakit_texts(urls.join(normalize.directory, part.path))
    )
    assert texts == sorted([*ODD, *PLAIN])
    manifest = read_manifest(download.directory)
    assert findings_of(download.directory, manifest) == []
    assert datakit.run(recipe, root=root, workers=2).reused
    assert any("hidden name" in note for note in result.notes)


def datakit_texts(url: str) -> list[str]:
    from datakit.storage.parquet import read_shard

    return read_shard(url, ["text"])["text"].to_pylist()


@pytest.mark.parametrize(
    ("key", "words"), [("folder.txt/", "ends with a slash"), ("v.txt?versionId=3.txt", r"holds '\?versionId='")]
)
def test_keys_that_the_client_cannot_read_are_refused(bucket: str, key: str, words: str) -> None:
    file_system, path = urls.filesystem(bucket)
    name, _, prefix = path.partition("/")
    file_system.call_s3("put_object", Bucket=name, Key=f"{prefix}/unreadable/{key}", Body=b"text")
    file_system.pipe_file(f"{path}/unreadable/a.txt", b"text")
    try:
        with pytest.raises(UnreadableError, match=f"{words}.* copy the object to another key, or exclude it"):
            list_source(f"{bucket}/unreadable", [], [])
        assert [file.path for file in list_source(f"{bucket}/unreadable", [], [key.rstrip("/")])] == ["a.txt"]
    finally:
        file_system.call_s3("delete_object", Bucket=name, Key=f"{prefix}/unreadable/{key}")
