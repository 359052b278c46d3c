"""A manifest is canonical JSON, whatever its number of partitions, and reads back equal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import CorruptError, NewerFormatError
from datakit.storage import manifest as manifests
from datakit.storage import urls
from datakit.storage.manifest import Manifest, Partition, Quarantine, StepFile, sealed, totals_of

numbers = st.integers(0, 2**62)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
paths = text.filter(urls.is_below)
partitions = st.lists(
    st.builds(Partition, paths, text, numbers, numbers, text, tokens=st.none() | numbers, first_id=st.none() | text)
)


def made(parts: list[Partition], name: str = "d") -> Manifest:
    """Make a manifest with these partitions, and with similar text in other fields."""
    parameters = {"partitions": [], "share": 1e-05, name: '\n "partitions": []'}
    totals = totals_of(parts)
    files = [StepFile(part.path, part.bytes, part.xxh3, part.rows) for part in parts[1:]]
    empty: dict[str, list[str]] = {"partitions": [], "files": []}
    found = Manifest("s", name, "f", "i", parameters, [], [], parts, totals, {}, Quarantine(3), empty, files=files)
    return sealed(found)


@given(partitions, text)
def test_manifest_is_sorted_indented_json(parts: list[Partition], name: str) -> None:
    manifest = made(parts, name)
    data = b"".join(manifests.pieces(manifest))
    plain = msgspec.to_builtins(manifest) | {"format": manifest.format}
    whole = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    assert data == msgspec.json.format(whole, indent=1) + b"\n"
    assert manifests.decode(data, "here") == manifest


def test_altered_manifest_is_refused() -> None:
    data = b"".join(manifests.pieces(made([Partition("a", "s", 1, 1, "x")])))
    without = re.sub(rb'\n "checksum": .*', b"", data)
    assert xxhash.xxh3_128_hexdigest(without).encode() in data, "as anybody can compute it"
    for altered in (data.replace(b'"rows": 1', b'"rows": 2'), data + b"\n", without, data.replace(b"\n", b"\r\n")):
        with pytest.raises(CorruptError, match=r"here was altered after it was written.*restore the file, or remove"):
            manifests.decode(altered, "here")


def test_manifest_of_format_1_is_read_with_the_checksum_of_its_bytes() -> None:
    earlier = msgspec.structs.replace(made([]), format=manifests.UNSEALED, checksum="", files=[])
    data = b"".join(manifests.pieces(earlier))
    found = manifests.decode(data, "here")
    assert (found.format, found.checksum) == (manifests.UNSEALED, xxhash.xxh3_128_hexdigest(data))
    assert manifests.computed_fingerprint(found) is None


def test_pieces_of_many_partitions_fit_together() -> None:
    for count in (1, manifests.PIECE - 1, manifests.PIECE, manifests.PIECE + 1, 2 * manifests.PIECE + 1):
        manifest = made([Partition(f"{number}.parquet", "s", number, 1, "x") for number in range(count)])
        pieces = list(manifests.pieces(manifest))
        assert max(map(len, pieces)) < 250 * manifests.PIECE
        data = b"".join(pieces)
        assert data == msgspec.json.format(data, indent=1) + b"\n"
        assert manifests.decode(data, "here") == manifest


FIELDS_OF_FORMAT_2 = {
    "Manifest": "checksum counters dataset details files fingerprint format identity inputs model_answers parameters "
    "partitions quarantine schema stage totals version",
    "Column": "name type",
    "InputReference": "checksum covered identity path stage",
    "Partition": "bucket bytes copy first_id last_id path rows source text_bytes tokens version xxh3",
    "StepFile": "bytes path rows xxh3",
    "Totals": "bytes rows text_bytes tokens",
    "Quarantine": "path records",
}


def test_fields_of_the_format_have_not_changed() -> None:
    """A field may be added here only if a version that ignores it still understands all others correctly. Any other
    change (a field removed, renamed, or with another meaning) needs a new format number in `manifest.FORMAT`.
    """
    found = {name: " ".join(sorted(getattr(manifests, name).__struct_fields__)) for name in FIELDS_OF_FORMAT_2}
    assert (manifests.FORMAT, found) == ("datakit.manifest/2", FIELDS_OF_FORMAT_2)


def resealed(data: bytes) -> bytes:
    """Replace the checksum in a manifest's second line by that of the other lines."""
    first, _, rest = data.split(b"\n", 2)
    digest = xxhash.xxh3_128_hexdigest(first + b"\n" + rest).encode()
    return first + b'\n "checksum": "' + digest + b'",\n' + rest


def test_unknown_field_of_the_same_format_is_ignored() -> None:
    manifest = made([Partition("a", "s", 1, 1, "x")])
    data = b"".join(manifests.pieces(manifest))
    more = resealed(data.replace(b'\n "counters"', b'\n "comment": {"by": "a newer version"},\n "counters"'))
    assert more != data
    assert msgspec.structs.replace(manifests.decode(more, "here"), checksum=manifest.checksum) == manifest


@pytest.mark.parametrize("shape", [{"totals": "gone"}, {}, {"partitions": {"a": 1}}, {"stage": 1}], ids=str)
@pytest.mark.parametrize("number", [3, 10, 999_999_999])
def test_newer_format_of_any_shape_is_refused_with_the_next_step(shape: dict[str, object], number: int) -> None:
    plain = json.loads(b"".join(manifests.pieces(made([])))) | shape | {"format": f"datakit.manifest/{number}"}
    with pytest.raises(NewerFormatError, match=r"^here was written by a newer version.*keep the file") as refused:
        manifests.decode(json.dumps(plain).encode(), "here")
    assert refused.value.exit_code == 2
    assert "remove" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["datakit.manifest/0", "datakit.cache/3", "datakit.manifest/3 ", "", "datakit.manifest/²"]
)
def test_format_of_no_version_is_corrupt(name: str) -> None:
    plain = json.loads(b"".join(manifests.pieces(made([])))) | {"format": name}
    with pytest.raises(CorruptError, match="here has format"):
        manifests.decode(json.dumps(plain).encode(), "here")


class CountingList(list[Partition]):
    """A list that counts how many times it is iterated over."""

    passes = 0

    def __iter__(self) -> Iterator[Partition]:
        self.passes += 1
        return super().__iter__()


def test_partitions_of_many_sources_are_found_in_one_pass() -> None:
    """Otherwise, planning a step with thousands of sources would take time that grows with their square."""
    names = [f"s{number % 50}" for number in range(200)]
    parts = CountingList(Partition(f"data/{name}/{n}", name, n, 0, "0") for n, name in enumerate(names))
    manifest = msgspec.structs.replace(made([]), partitions=parts)
    before = parts.passes
    for name in dict.fromkeys(names):
        assert [part.rows for part in manifest.partitions_of(name)] == [n for n in range(200) if names[n] == name]
    assert parts.passes - before == 1 and manifest.partitions_of("none") == []
    fewer = msgspec.structs.replace(manifest, partitions=list(parts)[:3])
    assert [len(fewer.partitions_of(name)) for name in ("s0", "s2", "s3")] == [1, 1, 0]
