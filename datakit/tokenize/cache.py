"""Writes one shard of the token cache: tokens as they come, the array at the end in one piece, the files at last.

Tokens go to a plain file in the task's scratch directory, so a shard's memory does not grow with its documents; from
there, mapped, they are encoded by TensorStore into one array, in scratch too, and committed file by file: data first,
then the documents, and zarr.json last, so that whoever finds the metadata finds all of it. The bytes are a function of
the documents alone, not of how they came in batches.

Memory: the tokens of the shard once where they are stored raw (2 bytes each), two and a half times where they are
compressed (10 bytes each). A text of 1 GiB at 3.5 bytes a token takes 0.6 GiB or 3 GiB.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.engine.task import OutputFile, TaskContext
from datakit.storage import atomic, urls
from datakit.storage.parquet import ShardWriter
from datakit.tokenize.arrays import write_array
from datakit.tokenize.contract import Contract, check_ends
from datakit.tokenize.documents import SCHEMA, document_table
from datakit.tokenize.layout import DATA_FILE, DOCUMENTS_SUFFIX, METADATA_FILE, array_form, length_histogram

EMPTY_XXH3 = "99aa06d3014798d86001c324468d497f"  # xxh3-128 of no bytes: the data of a shard without tokens


@dataclass(frozen=True)
class Documents:
    """Encoded documents in order: their ids [N], their tokens [T] end to end, how many each has, int64 [N]."""

    ids: pa.Array
    tokens: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class TokenShard:
    """A committed shard. `data` and `metadata` are the array's two files, None where there is no token to store."""

    path: str
    tokens: int
    lengths: dict[str, int]
    data: OutputFile | None
    documents: OutputFile
    metadata: OutputFile | None

    @property
    def outputs(self) -> tuple[OutputFile, ...]:
        """Its files, in the order in which they were committed."""
        return tuple(file for file in (self.data, self.documents, self.metadata) if file is not None)


def write_shard(path: str, parts: Iterable[Documents], contract: Contract, context: TaskContext) -> TokenShard:
    """Write and commit the shard `path` (relative to the step). Raises CorruptError where documents break the contract.

    If `parts` raises, nothing is committed.
    """
    work = context.scratch / path.replace("/", "-")
    work.mkdir(parents=True)
    count, lengths = 0, Counter[str]()
    try:
        with ShardWriter(urls.join(context.step_directory, path + DOCUMENTS_SUFFIX), SCHEMA) as documents:
            with open(work / "tokens", "wb") as spill:
                for part in parts:
                    check_ends(part.tokens, part.lengths, contract, path)
                    part.tokens.astype(contract.dtype, copy=False).tofile(spill)
                    documents.write(document_table(part.ids, part.lengths))
                    lengths.update(length_histogram(part.lengths))
                    count += len(part.tokens)
            if count:
                _encode(work, contract, context)
            data = _commit(work, path, DATA_FILE, context) if count else None
        listed = OutputFile(path + DOCUMENTS_SUFFIX, documents.info.bytes, documents.info.xxh3, documents.info.rows)
        metadata = _commit(work, path, METADATA_FILE, context) if count else None
        return TokenShard(path, count, dict(lengths), data, listed, metadata)
    finally:
        shutil.rmtree(work)


def _encode(work: Path, contract: Contract, context: TaskContext) -> None:
    """From the file of tokens to the array; only one of the two is left."""
    tokens = np.memmap(work / "tokens", contract.dtype, mode="r")
    write_array(work, tokens, array_form(contract.dtype), context.cpus)
    del tokens
    (work / "tokens").unlink()


def _commit(work: Path, path: str, name: str, context: TaskContext) -> OutputFile:
    url = urls.join(context.step_directory, path, name)
    with atomic.staging(url) as staged:
        shutil.move(work / name, staged)  # a rename, unless scratch is on another disk
        committed = atomic.commit_file(staged, url)
    return OutputFile(f"{path}/{name}", committed.bytes, committed.xxh3)
