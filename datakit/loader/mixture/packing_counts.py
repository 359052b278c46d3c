"""The stored counts of a packed component: where they lie in a root, and how they are read.

A packed component must know how many sequences each of its blocks gives. `datakit mixture pack` counts them once for
each sequence length, in a step `packing-<length>-<policy>` that any mixture over the same tokens shares:

    <root>/packing/packing-4096-split-<12 digits>/counts.npy        int32, one a block

The step's fingerprint covers what the counts are a function of: the identity of the tokens as training sees them (the
cache's own, its source, without what is held out), the block size, the length and the packing. So counts of another
cache are never found, and changed held-out documents ask for new ones. Reading costs two reads and 4 bytes a block.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash

from datakit.errors import CorruptError, LoaderError, NotFoundError
from datakit.loader.mixture.config import Mixture
from datakit.loader.mixture.packing import Packing
from datakit.loader.mixture.validation import training_source
from datakit.loader.sources.token_source import TokenSource
from datakit.storage import urls
from datakit.storage.fingerprint import fingerprint, short
from datakit.storage.manifest import Manifest, find_manifest

HOME = "packing"
COUNTS_FILE = "counts.npy"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class CountsStep:
    """The step that counts the sequences of one source at one length: its name, its content, its place."""

    stage: str
    parameters: dict[str, Any]
    fingerprint: str
    directory: str

    def manifest(self) -> Manifest | None:
        """Its manifest if it is done. Raises CorruptError if another step's lies there."""
        found = find_manifest(self.directory)
        if found is not None and found.fingerprint != self.fingerprint:
            raise CorruptError(
                f"{self.directory} is of step {found.fingerprint}, but {self.fingerprint} belongs there; was the "
                "directory renamed? Remove it and run `datakit mixture pack` again"
            )
        return found


def counts_step(root: str, source: TokenSource, block_tokens: int, length: int, packing: Packing) -> CountsStep:
    """The step for a source as training sees it."""
    stage = packing.counts_name(length)
    parameters = {
        "source": source.identity,
        "tokens": source.tokens,
        "block_tokens": block_tokens,
        "length": length,
        "too_long": packing.too_long,
        "max_documents": packing.max_documents,
    }
    number = fingerprint(stage, FORMAT_VERSION, parameters, [])
    return CountsStep(stage, parameters, number, urls.join(urls.absolute(root), HOME, f"{stage}-{short(number)}"))


def packed_components(mixture: Mixture) -> Iterator[tuple[str, Packing, TokenSource, list[int]]]:
    """(name, packing, the source as training sees it, the lengths that the run has) of each packed component."""
    lengths = sorted({length for _, length in mixture.lengths.changes()})
    for name in mixture.used():
        component = mixture.components[name]
        if component.packing is not None:
            yield name, component.packing, training_source(component, name, mixture.simulate), lengths


def with_packing_counts(mixture: Mixture, root: str) -> Mixture:
    """The mixture with the counts of all packed components. Raises LoaderError where some are not in the root."""
    components = dict(mixture.components)
    for name, packing, source, lengths in packed_components(mixture):
        size = components[name].shuffle.block_tokens
        counts = {length: _counts(counts_step(root, source, size, length, packing), name, root) for length in lengths}
        components[name] = replace(components[name], packing_counts=counts)
    return replace(mixture, components=components)


def encode_counts(counts: np.ndarray) -> bytes:
    """The bytes of a counts file."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(counts, "<i4"), allow_pickle=False)
    return buffer.getvalue()


def decode_counts(data: bytes) -> np.ndarray:
    """The inverse of `encode_counts`."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def _counts(step: CountsStep, name: str, root: str) -> np.ndarray:
    manifest = step.manifest()
    if manifest is None:
        raise LoaderError(
            f"component {name!r}: {step.stage} is not in {root} for these tokens (no {step.directory}); "
            f"run `datakit mixture pack` on this mixture with --root {root}"
        )
    (partition,) = manifest.partitions
    url = urls.join(step.directory, partition.path)
    try:
        data = urls.read_bytes(url)
    except NotFoundError as error:
        raise CorruptError(f"{url} is gone, but its manifest is there; remove the directory and pack again") from error
    if xxhash.xxh3_128_hexdigest(data) != partition.xxh3:
        raise CorruptError(f"{url} does not match its checksum; remove the directory and pack again")
    return decode_counts(data)
