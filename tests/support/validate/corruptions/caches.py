"""Lists corruptions of caches, packing steps, training runs, and of the record of current steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.validate.corruptions.case import (
    CACHE,
    LATEST,
    METRICS,
    PACKING,
    RUN,
    SAME_SIZE,
    SHARD,
    UNKNOWN,
    Corruption,
    counter,
    next_id,
)
from tests.support.validate.damage import (
    at,
    both,
    column,
    edit,
    flip,
    forged,
    json_line,
    lines,
    only,
    overwrite,
    reseal,
    shard_list,
    shard_tokens,
    write,
)


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
