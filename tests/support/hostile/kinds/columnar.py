"""Parquet and Arrow files with damaged, contradictory or crafted contents."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
from collections.abc import Callable
from functools import partial as bound

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.hostile.case import OPENED, SAME_LENGTH, TOLERANT, Case, Place, done, refused, texts

WORD = SAME_LENGTH.decode()
ROWS = [f"{WORD} one", f"{WORD} two", f"{WORD} three"]
ANY_END = (0, 2, 3)  # which of a damaged file's rows can be read depends on the version of Arrow


class Planted:
    """An object whose pickle imports a module when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__, (OPENED,)


class Marked:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.folder,)


def parquet(table: pa.Table | None = None, **options: object) -> bytes:
    """Return a Parquet file, by default of three documents."""
    out = io.BytesIO()
    pq.write_table(table if table is not None else pa.table({"text": ROWS}), out, **options)  # type: ignore[arg-type]
    return out.getvalue()


def arrow(table: pa.Table | None = None, compression: str | None = None) -> bytes:
    """Return an Arrow file, by default of three documents."""
    out = io.BytesIO()
    written = table if table is not None else pa.table({"text": ROWS})
    with pa.ipc.new_file(out, written.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(written)
    return out.getvalue()


def flipped(data: Callable[[], bytes], seed: int, first: float, last: float) -> bytes:
    """Return the data with eight flipped bits between two shares of its length."""
    found, chosen = bytearray(data()), random.Random(seed)
    for _ in range(8):
        place = chosen.randrange(int(len(found) * first), int(len(found) * last))
        found[place] ^= 1 << chosen.randrange(8)
    return bytes(found)


def cut(data: Callable[[], bytes], share: float) -> bytes:
    """Return the start of the data."""
    found = data()
    return found[: int(len(found) * share)]


def claims_footer(length: int) -> bytes:
    """Return a Parquet file that claims a footer of this length."""
    return parquet()[:-8] + struct.pack("<I", length) + b"PAR1"


def replaced(data: Callable[[], bytes], old: bytes, new: bytes) -> bytes:
    """Return the data with all occurrences of `old` replaced."""
    found = data()
    assert old in found
    return found.replace(old, new)


def deep(levels: int) -> pa.Table:
    """Return a table with a column of nested lists."""
    kind = pa.int8()
    for _ in range(levels):
        kind = pa.list_(kind)
    return pa.table({"text": ROWS, "x": pa.nulls(3, kind)})


def file_path() -> bytes:
    """Return a Parquet footer whose column chunks are in another file, `../../outside/secret.jsonl`."""
    metadata = pq.ParquetFile(io.BytesIO(parquet())).metadata
    metadata.set_file_path("../../outside/secret.jsonl")
    out = io.BytesIO()
    metadata.write_metadata_file(out)
    return out.getvalue()


def pickles(name: str) -> Callable[[Place], None]:
    """Return a function that writes a file with pickles wherever metadata may stand."""

    def build(place: Place) -> None:
        code = pickle.dumps([Marked(str(place.ran / "loaded")), Planted()])
        marked = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": code, "pandas": code}
        fields = [pa.field("text", pa.string(), metadata=marked), pa.field("more", pa.int64(), metadata=marked)]
        table = pa.table([[f"{place.document} {n}" for n in range(2)], [1, 2]], pa.schema(fields, metadata=marked))
        place.write(f"texts/{name}", parquet(table) if name.endswith("parquet") else arrow(table))
        place.recipe(more=TOLERANT)

    return build


def unsound_offsets() -> bytes:
    """Return an Arrow file whose text offsets lead far behind the text."""
    sound = struct.pack("<4i", 0, *(sum(map(len, ROWS[:count])) for count in (1, 2, 3)))
    return replaced(arrow, sound, sound[:-4] + struct.pack("<i", 1 << 30))


def dictionary_out_of_range() -> bytes:
    """Return an Arrow file whose dictionary indices lead behind the dictionary."""
    indices = pa.array([0, 1, 1 << 30], pa.int32())
    return arrow(pa.table({"text": pa.DictionaryArray.from_arrays(indices, pa.array(ROWS), safe=False)}))


def table_of(name: str) -> bytes:
    return parquet(pa.table({name: ROWS}))


BROKEN = refused("a.parquet", code=(2, 3))
CASES = (
    *(
        Case(
            f"parquet-flipped-bits-{seed}",
            texts(("a.parquet", bound(flipped, parquet, seed, 0.0, 1.0)), ("b.jsonl", b'{"text": "DOCUMENT good"}\n')),
            refused(code=ANY_END),
        )
        for seed in range(8)
    ),
    *(
        Case(
            f"parquet-flipped-bits-in-footer-{seed}",
            texts(("a.parquet", bound(flipped, parquet, seed, 0.6, 0.99)), ("b.jsonl", b'{"text": "DOCUMENT good"}\n')),
            refused(code=ANY_END),
        )
        for seed in range(8)
    ),
    *(
        Case(
            f"arrow-flipped-bits-{seed}",
            texts(("a.arrow", bound(flipped, arrow, seed, 0.0, 1.0)), ("b.jsonl", b'{"text": "DOCUMENT good"}\n')),
            refused(code=ANY_END),
        )
        for seed in range(8)
    ),
    Case("parquet-cut-in-the-middle", texts(("a.parquet", bound(cut, parquet, 0.5))), BROKEN),
    Case("parquet-magic-bytes-only", texts(("a.parquet", b"PAR1PAR1")), BROKEN),
    Case("parquet-footer-longer-than-file", texts(("a.parquet", bound(claims_footer, 1 << 30))), BROKEN),
    Case("parquet-footer-of-4-gib", texts(("a.parquet", bound(claims_footer, (1 << 32) - 1))), BROKEN),
    Case("parquet-footer-of-length-0", texts(("a.parquet", bound(claims_footer, 0))), BROKEN),
    Case("parquet-encrypted", texts(("a.parquet", bound(replaced, parquet, b"PAR1", b"PARE"))), refused("a.parquet")),
    Case("parquet-chunks-in-another-file", texts(("a.parquet", file_path)), refused("a.parquet", code=(2, 3))),
    Case("parquet-lists-100-levels-deep", texts(("a.parquet", lambda: parquet(deep(100)))), refused("a.parquet")),
    Case("parquet-without-columns", texts(("a.parquet", lambda: parquet(pa.table({})))), refused("text")),
    Case(
        "parquet-3000-columns",
        texts(("a.parquet", lambda: parquet(pa.table({"text": ROWS} | {f"c{n}": [1, 2, 3] for n in range(3000)})))),
        refused("2000"),
    ),
    Case(
        "parquet-column-named-with-escapes",
        texts(("a.parquet", bound(table_of, "\x1b[2J\u202e"))),
        refused("has no column 'text'", r"\x1b[2J\u202e"),
    ),
    Case(
        "parquet-column-named-like-internals",
        texts(
            (
                "a.parquet",
                lambda: parquet(
                    pa.table({"text": ROWS, "id": ROWS, "source_id": ROWS, "__index_level_0__": ROWS, "id_high": ROWS})
                ),
            )
        ),
        refused(code=(0, 2)),
    ),
    Case(
        "parquet-text-that-is-not-utf-8",
        texts(
            (
                "a.parquet",
                lambda: parquet(pa.table({"text": pa.array([SAME_LENGTH + b" \xff", SAME_LENGTH], pa.binary())})),
            )
        ),
        done(2, invalid_utf8=1),
    ),
    Case(
        "parquet-string-that-is-not-utf-8",
        texts(
            (
                "a.parquet",
                lambda: parquet(
                    pa.table({"text": pa.array([SAME_LENGTH + b" \xff", SAME_LENGTH], pa.binary()).view(pa.string())})
                ),
            )
        ),
        done(2, invalid_utf8=1),
    ),
    Case("parquet-with-pickles", pickles("a.parquet"), done(2)),
    Case("arrow-with-pickles", pickles("a.arrow"), done(2)),
    Case("arrow-cut-in-the-middle", texts(("a.arrow", bound(cut, arrow, 0.5))), refused("a.arrow", code=(2, 3))),
    Case("arrow-magic-bytes-only", texts(("a.arrow", b"ARROW1\0\0ARROW1")), refused("a.arrow", code=(2, 3))),
    Case("arrow-offsets-behind-the-text", texts(("a.arrow", unsound_offsets)), done(2, quarantined=1)),
    Case(
        "arrow-dictionary-index-too-large", texts(("a.arrow", dictionary_out_of_range)), refused("a.arrow", code=(2, 3))
    ),
    Case(
        "arrow-metadata-of-2-gib",
        texts(("a.arrow", lambda: arrow()[:8] + struct.pack("<iI", -1, (1 << 31) - 9) + arrow()[16:])),
        refused(code=ANY_END),
    ),
)
