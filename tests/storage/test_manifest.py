"""A manifest is canonical JSON, whatever its number of partitions, and reads back equal."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import CorruptError
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
