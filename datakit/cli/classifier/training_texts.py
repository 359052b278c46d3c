"""Reads the documents to train a classifier on, as a recipe would: normalizes them, and takes the texts that remain.

The texts of a source are in the order of their ids, so neither the order of records nor that of files changes the
model. Exact duplicates within an input count once. The steps are in a temporary root, which is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from datakit.pipeline.run_summary import RunResult
    from datakit.recipe import Recipe

CLASSES = ("positive", "negative")


@dataclass(frozen=True)
class Inputs:
    """Files, folders, globs or URLs of each class. text: the column that holds the texts; None to find it."""

    positive: tuple[str, ...]
    negative: tuple[str, ...]
    text: str | None = None

    def recipe(self) -> Recipe:
        """Return a recipe with a source for each input."""
        from datakit.recipe import Recipe, Source, absolute

        sources = tuple(
            Source(f"{kind}-{number}", absolute(url, Path.cwd()), text=self.text)
            for kind, urls in zip(CLASSES, (self.positive, self.negative), strict=True)
            for number, url in enumerate(urls, start=1)
        )
        return Recipe("classifier", sources, consolidate={"write": False})


@dataclass(frozen=True)
class Texts:
    """The texts of each class. both: the number of documents that are in both classes."""

    positive: pa.ChunkedArray
    negative: pa.ChunkedArray
    both: int


def read_texts(inputs: Inputs, workers: int | None) -> Texts:
    """Normalize the inputs, and return their texts. Raises the errors of `run`."""
    import numpy as np
    import pyarrow as pa

    from datakit.engine.observe.progress import view_for_terminal
    from datakit.pipeline.running import run
    from datakit.storage import stale_files

    with stale_files.scratch_directory() as scratch:
        with view_for_terminal() as view:
            result = run(inputs.recipe(), str(scratch), workers=workers, until="normalize", observer=view)
        tables = [_table(result, kind) for kind in CLASSES]
    ids = [np.unique(table["id"].to_numpy(zero_copy_only=False).astype("U32")) for table in tables]
    both = len(np.intersect1d(*ids, assume_unique=True))
    texts = [table["text"].cast(pa.large_string()) for table in tables]
    return Texts(texts[0], texts[1], both)


def _table(result: RunResult, kind: str) -> pa.Table:
    """Return the ids and the texts of a class."""
    import pyarrow as pa

    from datakit.storage import urls
    from datakit.storage.parquet import read_shard

    steps = [step for step in result.steps_of("normalize") if str(step.source).startswith(f"{kind}-")]
    places = [urls.join(step.directory, part.path) for step in steps for part in step.manifest.partitions]
    return pa.concat_tables([read_shard(place, ["id", "text"]) for place in places])
