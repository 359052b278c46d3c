"""Lists corruptions of the steps of a source: download, normalize, signatures."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.validate.corruptions.case import (
    DOWNLOAD,
    NORMALIZE,
    NOVELS,
    SAME_SIZE,
    SIGNATURES,
    UNKNOWN,
    Corruption,
    counter,
    next_id,
    texts,
)
from tests.support.validate.damage import (
    at,
    column,
    cut,
    edit,
    flip,
    forged,
    remove,
    reordered,
    swapped,
    table,
    without,
    write,
)


def rewritten(root: Path) -> None:
    """Write all partitions of a step again, with other compression; the manifest stays the old one."""
    for path in root.glob(NOVELS):
        before = pq.read_table(path)
        path.unlink()
        pq.write_table(before, path, compression="gzip")


CORRUPTIONS = [
    # download
    Corruption("copy flipped", flip(f"{DOWNLOAD}/raw/*"), "files", f"{DOWNLOAD}/raw/*", SAME_SIZE),
    Corruption("copy cut", cut(f"{DOWNLOAD}/raw/*"), "files", f"{DOWNLOAD}/raw/*", "bytes; the manifest says"),
    Corruption("copy missing", remove(f"{DOWNLOAD}/raw/*"), "files", f"{DOWNLOAD}/raw/*", "is missing; it had"),
    Corruption("copy added", write(DOWNLOAD, "raw/b.jsonl"), "unlisted", f"{DOWNLOAD}/raw/b.jsonl", "not in the man"),
    Corruption(
        "number of files forged", counter(DOWNLOAD, "download/files"), "conservation", f"{DOWNLOAD}/manifest.json",
        "download/files is 2, but the number of files is 1",
    ),
    Corruption(
        "parameter forged", forged(DOWNLOAD, "parameters", "include", value=["x"]), "manifest",
        f"{DOWNLOAD}/manifest.json", "says that the fingerprint is",
    ),
    # normalize
    Corruption("documents flipped", flip(NOVELS), "files", NOVELS, SAME_SIZE),
    Corruption("footer flipped", flip(NOVELS, 0.999), "files", NOVELS, SAME_SIZE),
    Corruption("first byte flipped", flip(NOVELS, 0.0), "files", NOVELS, SAME_SIZE),
    Corruption("documents cut", cut(NOVELS), "files", NOVELS, "bytes; the manifest says"),
    Corruption("partition missing", remove(NOVELS), "files", NOVELS, "is missing"),
    Corruption(
        "origins flipped", flip(f"{NORMALIZE}/origins/part-*"), "files", f"{NORMALIZE}/origins/part-*", SAME_SIZE
    ),
    Corruption(
        "list of files flipped", flip(f"{NORMALIZE}/origins/files.parquet"), "files",
        f"{NORMALIZE}/origins/files.parquet", SAME_SIZE,
    ),
    Corruption(
        "duplicates flipped", flip(f"{NORMALIZE}/duplicates/*"), "files", f"{NORMALIZE}/duplicates/*", SAME_SIZE
    ),
    Corruption(
        "quarantine flipped", flip(f"{NORMALIZE}/quarantine/*"), "files", f"{NORMALIZE}/quarantine/*", SAME_SIZE
    ),
    Corruption("partitions swapped", swapped(NOVELS, forged=False), "files", NOVELS, "the manifest says"),
    Corruption(
        "partitions swapped and forged", swapped(NOVELS, forged=True), "documents", NOVELS,
        "which belongs in another partition",
    ),
    Corruption("old manifest", rewritten, "files", NOVELS, "the manifest says"),
    Corruption(
        "row dropped, rows not forged", table(NOVELS, without(3), counted=False), "columns", NOVELS,
        "has 31 rows; the manifest says 32",
    ),
    Corruption("row dropped", table(NOVELS, without(3)), "origins", f"{NORMALIZE}/origins/part-*", "kept records"),
    Corruption(
        "row dropped, as seen downstream", table(NOVELS, without(3)), "alignment",
        "sources/novels/signatures-*/data/novels/part-*", "does not match",
    ),
    Corruption(
        "row dropped, as counted", table(NOVELS, without(3)), "conservation", f"{NORMALIZE}/manifest.json",
        "the number of documents is 116",
    ),
    Corruption("text changed", table(NOVELS, texts(2, "x")), "documents", NOVELS, "with a text that has another hash"),
    Corruption("id changed", table(NOVELS, column("id", at(2, next_id))), "documents", NOVELS, "has another hash"),
    Corruption("rows out of order", table(NOVELS, reordered(1, 0)), "documents", NOVELS, "do not ascend strictly"),
    Corruption(
        "row repeated", table(NOVELS, lambda rows: pa.concat_tables([rows, rows.slice(rows.num_rows - 1)])),
        "documents", NOVELS, "do not ascend strictly",
    ),
    Corruption(
        "source of a row changed", table(NOVELS, column("source", at(1, "letters"))), "documents", NOVELS,
        "of a source other than 'novels'",
    ),
    Corruption(
        "column missing from one file", table(NOVELS, lambda rows: rows.drop_columns(["n"])), "columns", NOVELS,
        "the manifest says",
    ),
    Corruption(
        "column of another type", table(NOVELS, lambda rows: rows.set_column(4, "n", rows["n"].cast("float64"))),
        "columns", NOVELS, "n double",
    ),
    Corruption(
        "records read forged", counter(NORMALIZE, "normalize/records_in"), "conservation",
        f"{NORMALIZE}/manifest.json", "records read and added is 122",
    ),
    Corruption(
        "number of quarantined records forged", forged(NORMALIZE, "quarantine", "records", value=2), "manifest",
        f"{NORMALIZE}/manifest.json", "says that the number of quarantined records is 2",
    ),
    Corruption(
        "identity forged", forged(NORMALIZE, "identity", value=UNKNOWN), "manifest", f"{NORMALIZE}/manifest.json",
        "says that the identity is",
    ),
    Corruption(
        "bytes of text forged", forged(NORMALIZE, "partitions", 0, "text_bytes", value=lambda size: size + 1),
        "documents", f"{NORMALIZE}/manifest.json", "as its bytes of text",
    ),
    Corruption(
        "first id forged", forged(NORMALIZE, "partitions", 0, "first_id", value=UNKNOWN), "documents",
        f"{NORMALIZE}/manifest.json", f"{UNKNOWN} as its first id",
    ),
    Corruption(
        "origin dropped", table(f"{NORMALIZE}/origins/part-*", without(2)), "origins", f"{NORMALIZE}/origins/part-*",
        "does not match the partition's kept records",
    ),
    Corruption(
        "file of an origin changed", table(f"{NORMALIZE}/origins/part-*", column("file", at(2, 7))), "origins",
        f"{NORMALIZE}/origins/files.parquet", "the origins name",
    ),
    Corruption(
        "duplicate changed", table(f"{NORMALIZE}/duplicates/*", column("id", at(0, next_id))), "origins",
        f"{NORMALIZE}/duplicates/*", "does not match the partition's duplicates",
    ),
    Corruption(
        "file added to the data", write(NORMALIZE, "data/novels/part-00009.parquet"), "unlisted",
        f"{NORMALIZE}/data/novels/part-00009.parquet", "is not in the manifest",
    ),
    Corruption(
        "exchange left over", write(NORMALIZE, "exchange/route/run"), "unlisted", f"{NORMALIZE}/exchange/route/run",
        "is not in the manifest",
    ),
    Corruption(
        "manifest edited", edit(f"{NORMALIZE}/manifest.json", '"normalize/blank": 1', '"normalize/blank": 2'),
        "manifest", f"{NORMALIZE}/manifest.json", "was altered after it was written",
    ),
    Corruption(
        "manifest missing", remove(f"{NORMALIZE}/manifest.json"), "inputs", f"{NORMALIZE}/manifest.json", "is missing"
    ),
    # signatures
    Corruption("signatures flipped", flip(f"{SIGNATURES}/data/*/*"), "files", f"{SIGNATURES}/data/*/*", SAME_SIZE),
    Corruption(
        "signature dropped", table(f"{SIGNATURES}/data/*/*", without(1)), "alignment", f"{SIGNATURES}/data/*/*",
        "has 15 documents instead of 16",
    ),
    Corruption(
        "id of a signature changed", table(f"{SIGNATURES}/data/*/*", column("id", at(1, next_id))), "alignment",
        f"{SIGNATURES}/data/*/*", "the first difference is in row 1",
    ),
    Corruption(
        "signatures swapped and forged", swapped(f"{SIGNATURES}/data/*/*", forged=True), "ids",
        f"{SIGNATURES}/data/*/*", "which belongs in another partition",
    ),
    Corruption(
        "reason of a signature changed", table(f"{SIGNATURES}/data/*/*", column("skipped", at(1, "too_short"))),
        "conservation", f"{SIGNATURES}/manifest.json", "signatures/too_short is 0, but",
    ),
]  # fmt: skip
