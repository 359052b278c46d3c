"""Lists corruptions of the steps of a dataset without its cache: dedup, select, consolidate, train-tokenizer and
contract.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.validate.corruptions.case import (
    CACHE,
    CONSOLIDATE,
    CONTRACT,
    DEDUP,
    NOVELS,
    REMOVED,
    SAME_SIZE,
    SELECT,
    TRAINED,
    UNKNOWN,
    Corruption,
    counter,
    next_id,
    texts,
)
from tests.support.validate.damage import (
    at,
    column,
    first,
    flip,
    forge,
    forged,
    only,
    overwrite,
    reseal,
    table,
    without,
)

LETTERS_REMOVED = f"{DEDUP}/data/letters/part-00001*"


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
    table(f"{CONSOLIDATE}/data/novels/part-*", lambda before: back.cast(before.schema))(root)


def removed_representative(before: pa.Table) -> pa.Table:
    """Name the removed document itself as the one that represents it."""
    names = before["id"].to_pylist()
    changed = column("representative_id", lambda _: names)(before)
    return column("representative_source", lambda values: ["novels"] * len(values))(changed)


def other_tokenizer(root: Path) -> None:
    """Train another tokenizer, and renew its checksum."""
    directory = only(root, TRAINED)
    overwrite(directory / "tokenizer.json", (directory / "tokenizer.json").read_bytes() + b"\n")
    reseal(root, directory, "tokenizer.json")


CORRUPTIONS = [
    # dedup
    Corruption("removals flipped", flip(REMOVED), "files", REMOVED, SAME_SIZE),
    Corruption(
        "similarity changed", table(LETTERS_REMOVED, column("jaccard", at(0, 0.9125))), "similarity", LETTERS_REMOVED,
        "states the similarity 0.9125",
    ),
    Corruption(
        "representative unknown", table(LETTERS_REMOVED, column("representative_id", at(0, UNKNOWN))), "removals",
        LETTERS_REMOVED, f"names the document {UNKNOWN}, which",
    ),
    Corruption(
        "representative removed", table(REMOVED, removed_representative), "removals", f"{DEDUP}/data/*/*",
        "which represents a removed document",
    ),
    Corruption(
        "source of a representative changed", table(REMOVED, column("representative_source", at(0, "pages"))),
        "removals", REMOVED, "which 'pages' lacks, as the representative of",
    ),
    Corruption(
        "reason changed", table(LETTERS_REMOVED, column("reason", lambda values: ["fuzzy"] * 2)),
        "removals", LETTERS_REMOVED, "as an exact duplicate, although an earlier source",
    ),
    Corruption(
        "reason changed, as counted",
        table(LETTERS_REMOVED, column("reason", lambda values: ["fuzzy"] * 2)),
        "conservation", f"{DEDUP}/manifest.json", "dedup/exact_removed is 4, but the number of such rows is 2",
    ),
    Corruption(
        "removal dropped", table(REMOVED, without(0)), "alignment", f"{SELECT}/data/novels/part-00000*",
        "has 2 documents instead of 1",
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
    # select
    Corruption(
        "listed document dropped", table(f"{SELECT}/data/novels/part-*", without(0)), "alignment",
        f"{SELECT}/data/novels/part-*", "does not match",
    ),
    Corruption(
        "listed row changed", table(f"{SELECT}/data/novels/part-*", column("row", at(0, lambda row: row + 1))),
        "alignment", f"{SELECT}/data/novels/part-*", "lists rows that hold documents with different ids",
    ),
    Corruption(
        "reasons changed", table(f"{SELECT}/data/novels/part-*", column("reasons", at(0, ["exact", "fuzzy"]))),
        "alignment", f"{SELECT}/data/novels/part-*", "gives different reasons than",
    ),
    Corruption(
        "number of staying documents forged", counter(SELECT, "select/records_out"), "conservation",
        f"{SELECT}/manifest.json", "select/records_in is",
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
        "conservation", f"{CONSOLIDATE}/manifest.json", "what was dropped from 'novels' is {",
    ),
    # train-tokenizer
    Corruption(
        "trained tokenizer flipped", flip(f"{TRAINED}/tokenizer.json"), "files", f"{TRAINED}/tokenizer.json", SAME_SIZE
    ),
    Corruption(
        "size of the sample forged", forged(TRAINED, "details", "sampled_bytes", value=1), "conservation",
        f"{TRAINED}/manifest.json", "the size of the sample is 1",
    ),
    # contract
    Corruption(
        "golden string of the contract step forged",
        forged(CONTRACT, "details", "contract", "golden", 0, "ids", value=[1]), "contract",
        f"{CONTRACT}/manifest.json", "says that the contract's golden is",
    ),
    Corruption(
        "contract other than that of its step", forged(CONTRACT, "details", "contract", "fallback", value="x"),
        "conservation", f"{CACHE}/manifest.json", "the contract's fallback is",
    ),
    Corruption(
        "tokenizer other than the trained one", other_tokenizer, "conservation", f"{CONTRACT}/manifest.json",
        "the sha256 of the tokenizer is",
    ),
]  # fmt: skip
