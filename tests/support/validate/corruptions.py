"""Lists corruptions of a finished root, over all stages: what is damaged, and which check must name which file and why.

Those that forge manifests leave every checksum right, so that only a check of the content can find them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.validate.damage import (
    Change,
    at,
    both,
    column,
    cut,
    edit,
    first,
    flip,
    forge,
    forged,
    json_line,
    lines,
    only,
    overwrite,
    remove,
    reordered,
    reseal,
    shard_list,
    shard_tokens,
    swapped,
    table,
    without,
    write,
)

DOWNLOAD, PAGES = "sources/pages/download-*", "sources/pages/normalize-*"
NORMALIZE, LETTERS = "sources/novels/normalize-*", "sources/letters/normalize-*"
SIGNATURES, DEDUP = "sources/letters/signatures-*", "shelf/dedup-*"
CONSOLIDATE, TRAINED, CACHE = "shelf/consolidate-*", "shelf/train-tokenizer-*", "shelf/tokenize-*"
PACKING, RUN = "packing/packing-*", "small/train-*"
NOVELS = f"{NORMALIZE}/data/novels/part-*"
REMOVED = f"{DEDUP}/data/novels/part-00000*"
SHARD, METRICS, LATEST = f"{CACHE}/data/novels/shard-00000", f"{RUN}/metrics.jsonl", "shelf/latest.json"
UNKNOWN = "0" * 32
SAME_SIZE = "has the same size, but"


@dataclass(frozen=True)
class Corruption:
    """A corruption, and a finding that it must cause: the check, the file (a pattern) and a part of the difference."""

    name: str
    change: Change
    check: str
    file: str
    difference: str


def counter(step: str, name: str) -> Change:
    """Add 1 to a counter of a manifest."""
    return forged(step, "counters", name, value=lambda count: count + 1)


def texts(row: int, suffix: str) -> Callable[[pa.Table], pa.Table]:
    """Return a change of one text."""
    return column("text", at(row, lambda text: text[: -len(suffix)] + suffix))


def next_id(name: str) -> str:
    """Return the id after this one."""
    return f"{int(name, 16) + 1:032x}"


def rewritten(root: Path) -> None:
    """Write all partitions of a step again, with other compression; the manifest stays the old one."""
    for path in root.glob(NOVELS):
        before = pq.read_table(path)
        path.unlink()
        pq.write_table(before, path, compression="gzip")


def dropped_partition(root: Path) -> None:
    """Remove a partition from the manifest and from the disk."""
    directory = only(root, CONSOLIDATE)

    def change(plain: dict[str, Any]) -> None:
        gone = plain["partitions"].pop(2)
        (directory / gone["path"]).unlink()

    forge(root, directory, change)


def as_in_input(root: Path) -> None:
    """Write a consolidated partition with all normalized documents, the removed ones too."""
    back = pq.read_table(first(root, NOVELS))
    table(
        f"{CONSOLIDATE}/data/novels/part-*",
        lambda before: back.append_column("edited_id", pa.nulls(back.num_rows, pa.string())).cast(before.schema),
    )(root)


def removed_representative(before: pa.Table) -> pa.Table:
    """Name the removed document itself as the one that represents it."""
    names = before["id"].to_pylist()
    changed = column("representative_id", lambda _: names)(before)
    return column("representative_source", lambda values: ["novels"] * len(values))(changed)


def without_end(tokens: np.ndarray, starts: np.ndarray) -> None:
    """Replace the end-of-text token of the first document."""
    tokens[starts[1] - 1] = 300


def unknown_token(tokens: np.ndarray, starts: np.ndarray) -> None:
    """Put in a token that the vocabulary does not have."""
    tokens[3] = 60_000


def other_tokens(tokens: np.ndarray, starts: np.ndarray) -> None:
    """Change a token of every document."""
    tokens[starts + 1] = np.where(tokens[starts + 1] == 65, 66, 65)


def moved_border(path: Path) -> None:
    """Make the first document longer, and the second one shorter."""
    lengths = np.fromfile(path, "<u4")
    lengths[:2] += np.array([1, -1], "<i4").astype("<u4")
    lengths.tofile(path)


def moved_border_in_list(path: Path) -> None:
    """Do the same in the list of documents."""
    rewrite(path, column("tokens", lambda values: [values[0] + 1, values[1] - 1, *values[2:]]))


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite a Parquet file."""
    changed = change(pq.read_table(path))
    path.unlink()
    pq.write_table(changed, path)


def more_sequences(root: Path) -> None:
    """Change a count of a packing step, and forge the manifest."""
    path = only(root, f"{PACKING}/counts.npy")
    counts = np.load(path)
    counts[0] += 1
    path.unlink()
    np.save(path, counts)
    reseal(root, path.parent, "counts.npy")


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
    # dedup
    Corruption("removals flipped", flip(REMOVED), "files", REMOVED, SAME_SIZE),
    Corruption(
        "similarity changed", table(REMOVED, column("jaccard", at(0, 0.9125))), "similarity", f"{DEDUP}/data/*/*",
        "states the similarity 0.9125",
    ),
    Corruption(
        "representative unknown", table(REMOVED, column("representative_id", at(0, UNKNOWN))), "removals",
        f"{DEDUP}/data/*/*", f"lacks the document {UNKNOWN}",
    ),
    Corruption(
        "representative removed", table(REMOVED, removed_representative), "removals", f"{DEDUP}/data/*/*",
        "which represents a removed document",
    ),
    Corruption(
        "source of a representative changed", table(REMOVED, column("representative_source", at(0, "pages"))),
        "removals", f"{DEDUP}/data/*/*", "lacks the document",
    ),
    Corruption(
        "reason changed", table(f"{DEDUP}/data/letters/part-00001*", column("reason", lambda values: ["fuzzy"] * 2)),
        "removals", f"{DEDUP}/data/letters/*", "as an exact duplicate, although an earlier source",
    ),
    Corruption(
        "reason changed, as counted",
        table(f"{DEDUP}/data/letters/part-00001*", column("reason", lambda values: ["fuzzy"] * 2)),
        "conservation", f"{DEDUP}/manifest.json", "dedup/exact_removed is 4, but the number of such rows is 2",
    ),
    Corruption(
        "removal dropped", table(REMOVED, without(0)), "alignment", f"{CONSOLIDATE}/data/novels/part-00000*",
        "has 30 documents instead of 31",
    ),
    Corruption(
        "removal invented", table(REMOVED, column("id", at(0, next_id))), "alignment", REMOVED, "which is not in",
    ),
    Corruption(
        "report forged", forged(DEDUP, "details", "sources", "novels", "retained", value=1), "conservation",
        f"{DEDUP}/manifest.json", "what 'novels' retained is 1",
    ),
    Corruption(
        "input forged", forged(DEDUP, "inputs", 0, "identity", value=UNKNOWN), "inputs", "sources/*/*/manifest.json",
        f"the step was made from {UNKNOWN}",
    ),
    # consolidate
    Corruption("card flipped", flip(f"{CONSOLIDATE}/README.md"), "files", f"{CONSOLIDATE}/README.md", SAME_SIZE),
    Corruption(
        "document dropped", table(f"{CONSOLIDATE}/data/novels/part-*", without(0)), "alignment",
        f"{CONSOLIDATE}/data/novels/part-*", "has 29 documents instead of 30",
    ),
    Corruption(
        "removed document is back", as_in_input, "alignment", f"{CONSOLIDATE}/data/novels/part-*",
        "has 32 documents instead of 30",
    ),
    Corruption(
        "consolidated text changed", table(f"{CONSOLIDATE}/data/novels/part-*", texts(2, "x")), "documents",
        f"{CONSOLIDATE}/data/novels/part-*", "has another hash",
    ),
    Corruption(
        "value of another column changed", table(f"{CONSOLIDATE}/data/novels/part-*", column("n", at(3, -1))), "values",
        f"{CONSOLIDATE}/data/novels/part-*", "in column 'n'",
    ),
    Corruption(
        "partition dropped", dropped_partition, "manifest", f"{CONSOLIDATE}/manifest.json",
        "lists 3 of the 4 partitions of source",
    ),
    Corruption(
        "what dedup removed forged",
        forged(CONSOLIDATE, "details", "sources", "novels", "dropped", value={"fuzzy": 7, "exact": 1}),
        "conservation", f"{CONSOLIDATE}/manifest.json", "fuzzy duplicates dropped from 'novels' is 7",
    ),
    # train-tokenizer
    Corruption(
        "trained tokenizer flipped", flip(f"{TRAINED}/tokenizer.json"), "files", f"{TRAINED}/tokenizer.json", SAME_SIZE
    ),
    Corruption(
        "size of the sample forged", forged(TRAINED, "details", "sampled_bytes", value=1), "conservation",
        f"{TRAINED}/manifest.json", "the size of the sample is 1",
    ),
    # tokenize
    Corruption("tokens flipped", flip(f"{SHARD}/c/0"), "files", f"{SHARD}/c/0", SAME_SIZE),
    Corruption("metadata flipped", flip(f"{SHARD}/zarr.json"), "files", f"{SHARD}/zarr.json", SAME_SIZE),
    Corruption("lengths flipped", flip(f"{SHARD}.lengths"), "files", f"{SHARD}.lengths", SAME_SIZE),
    Corruption("list flipped", flip(f"{SHARD}.docs.parquet"), "files", f"{SHARD}.docs.parquet", SAME_SIZE),
    Corruption("tokenizer flipped", flip(f"{CACHE}/tokenizer.json"), "files", f"{CACHE}/tokenizer.json", "has sha256"),
    Corruption("end of text changed", shard_tokens(SHARD, without_end), "tokens", SHARD, "holds a document without"),
    Corruption("unknown token", shard_tokens(SHARD, unknown_token), "tokens", SHARD, "holds the id 60000"),
    Corruption("other tokens", shard_tokens(SHARD, other_tokens), "encoding", SHARD, "than the reference gives"),
    Corruption(
        "lengths forged", shard_list(SHARD, ".lengths", "lengths", moved_border), "lists", f"{SHARD}.lengths",
        "list different document lengths",
    ),
    Corruption(
        "both lists of lengths forged",
        both(
            shard_list(SHARD, ".lengths", "lengths", moved_border),
            shard_list(SHARD, ".docs.parquet", "documents", moved_border_in_list),
        ),
        "tokens", SHARD, "holds a document without",
    ),
    Corruption(
        "id in a list changed",
        shard_list(SHARD, ".docs.parquet", "documents", lambda path: rewrite(path, column("id", at(4, next_id)))),
        "alignment", f"{SHARD}.docs.parquet", "the first difference is in row 4",
    ),
    Corruption(
        "golden string forged", forged(CACHE, "details", "contract", "golden", 0, "ids", value=[1]), "contract",
        f"{CACHE}/manifest.json", "says that the contract's golden is",
    ),
    Corruption(
        "number of encoded documents forged", counter(CACHE, "tokenize/documents"), "conservation",
        f"{CACHE}/manifest.json", "tokenize/documents is",
    ),
    # packing
    Corruption("counts flipped", flip(f"{PACKING}/counts.npy"), "files", f"{PACKING}/counts.npy", SAME_SIZE),
    Corruption(
        "counts forged", more_sequences, "conservation", f"{PACKING}/manifest.json", "the number of sequences is"
    ),
    # training run
    Corruption(
        "checkpoint flipped", flip(f"{RUN}/checkpoints/*/state/manifest.ocdbt"), "checkpoints",
        f"{RUN}/checkpoints/*/state/manifest.ocdbt", "the marker says",
    ),
    Corruption(
        "file added to a checkpoint", write(f"{RUN}/checkpoints/step-000000004", "state/more"), "checkpoints",
        f"{RUN}/checkpoints/step-000000004/state/more", "is not in commit.json",
    ),
    Corruption(
        "marker edited", edit(f"{RUN}/checkpoints/step-000000004/commit.json", '"sequences": 32', '"sequences": 99'),
        "checkpoints", f"{RUN}/checkpoints/step-*/commit.json", "sequences; the checkpoint before it counts 99",
    ),
    Corruption(
        "row of metrics dropped", lines(METRICS, lambda rows: [*rows[:2], *rows[3:]]), "metrics", METRICS,
        "lacks the row of step 3",
    ),
    Corruption(
        "rows swapped", lines(METRICS, lambda rows: [rows[1], rows[0], *rows[2:]]), "metrics", METRICS,
        "has a row of step 1 after one of step 2",
    ),
    Corruption(
        "loss changed", lines(METRICS, json_line(-1, **{"train/loss": 0.5})), "metrics", METRICS, "differ in train/loss"
    ),
    Corruption(
        "row of metrics unreadable", lines(METRICS, lambda rows: [*rows[:2], "{\n", *rows[2:]]), "metrics", METRICS,
        "cannot be read in line 3",
    ),
    Corruption(
        "digest changed", lines(METRICS, lambda rows: [*rows[:6], *(json_line(n, **{"data/batch_xxh3": UNKNOWN[:16]})(
            rows)[n] for n in (6, 7))]),
        "batches", METRICS, f"has the digest {UNKNOWN[:16]}",
    ),
    Corruption(
        "final loss forged", forged(RUN, "details", "figures", "train/loss", value=0.5), "metrics", METRICS,
        "the manifest says 0.5",
    ),
    # dataset
    Corruption(
        "current step missing", edit(LATEST, '"directory": "tokenize-', '"directory": "tokenize-0'), "manifest",
        LATEST, "is unfinished or missing",
    ),
    Corruption("record cut", lambda root: overwrite(root / LATEST, b'{"step'), "manifest", LATEST, "cannot be read"),
]  # fmt: skip
