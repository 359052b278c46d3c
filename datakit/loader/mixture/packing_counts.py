"""Names and finds the steps that store packed components' sequence counts, and loads and checks these counts.

The loader must know how many sequences each block of a packed component holds. `datakit mixture pack` counts the
sequences once for each sequence length, in a step `packing-<length>-<policy>` that all mixtures over the same tokens
share:

    <root>/packing/packing-4096-split-<12 digits>/counts.npy        int32, one per block

The step's fingerprint covers everything that determines the counts: the identity of the tokens that training sees (a
cache or one of its sources, without the held-out documents), the block size, the length and the packing. So counts from
another cache are never used, and new held-out documents require new counts. Loading the counts of one step takes two
reads, and 4 bytes of memory per block.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import xxhash

from datakit.errors import CorruptError, LoaderError, NotFoundError
from datakit.loader.mixture.config import Mixture
from datakit.loader.mixture.packing import Packing
from datakit.loader.mixture.sequence_counts import MAX_COUNTED_BLOCKS
from datakit.loader.mixture.validation_split import training_source
from datakit.loader.sources.token_source import BlockAxis, TokenSource
from datakit.storage import urls
from datakit.storage.fingerprint import fingerprint, short
from datakit.storage.manifest import Manifest, find_manifest

HOME = "packing"
COUNTS_FILE = "counts.npy"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class CountParameters:
    """All values that determine the counts; the step's fingerprint covers them."""

    source: str  # identity of the token source
    tokens: int
    block_tokens: int
    length: int
    too_long: str
    max_documents: int


@dataclass(frozen=True)
class CountsStep:
    """A step that counts the sequences of one source at one sequence length."""

    stage: str
    parameters: CountParameters
    fingerprint: str
    directory: str

    def manifest(self) -> Manifest | None:
        """Return the finished step's manifest, or None. Raises CorruptError if the manifest belongs to another step."""
        found = find_manifest(self.directory)
        if found is not None and found.fingerprint != self.fingerprint:
            raise CorruptError(
                f"{self.directory} holds step {found.fingerprint} instead of {self.fingerprint}; was the directory "
                "renamed? Remove it and run `datakit mixture pack` again"
            )
        return found


def counts_step(root: str, source: TokenSource, block_tokens: int, length: int, packing: Packing) -> CountsStep:
    stage = packing.counts_name(length)
    parameters = CountParameters(
        source.identity, source.tokens, block_tokens, length, packing.too_long, packing.max_documents
    )
    number = fingerprint(stage, FORMAT_VERSION, asdict(parameters), [])
    return CountsStep(stage, parameters, number, urls.join(urls.absolute(root), HOME, f"{stage}-{short(number)}"))


def packed_components(mixture: Mixture) -> Iterator[tuple[str, Packing, TokenSource, list[int]]]:
    """Yield (name, packing, source without held-out documents, the run's sequence lengths) of each packed component."""
    lengths = sorted({length for _, length in mixture.lengths.changes()})
    for name in mixture.used():
        component = mixture.components[name]
        if component.packing is not None:
            yield name, component.packing, training_source(component, name, mixture.simulate), lengths


def with_packing_counts(mixture: Mixture, root: str) -> Mixture:
    """Return a copy of the mixture that includes the counts stored in the root for its packed components. Raises
    LoaderError if a component lacks counts and has too many blocks for the loader to count their sequences at the start
    of a run. Raises CorruptError if any counts are damaged.
    """
    components = dict(mixture.components)
    for name, packing, source, lengths in packed_components(mixture):
        size = components[name].shuffle.block_tokens
        few, counts = BlockAxis(source.tokens, size).count <= MAX_COUNTED_BLOCKS, {}
        for step in (counts_step(root, source, size, length, packing) for length in lengths):
            if not (few and step.manifest() is None):
                counts[step.parameters.length] = _counts(step, name, root)
        components[name] = replace(components[name], packing_counts=counts)
    return replace(mixture, components=components)


def encode_counts(counts: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(counts, "<i4"), allow_pickle=False)
    return buffer.getvalue()


def decode_counts(data: bytes) -> np.ndarray:
    """Decode the contents of a counts file: int32 [blocks]."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def _counts(step: CountsStep, name: str, root: str) -> np.ndarray:
    manifest = step.manifest()
    if manifest is None:
        raise LoaderError(
            f"component {name!r}: {root} has no step {step.stage} for these tokens ({step.directory} is missing or "
            f"unfinished); run `datakit mixture pack` on the mixture file or the run file with --root {root}"
        )
    (partition,) = manifest.partitions
    url = urls.join(step.directory, partition.path)
    try:
        data = urls.read_bytes(url)
    except NotFoundError as error:
        raise CorruptError(
            f"{url} is missing, but the step's manifest exists; remove the step's directory and run "
            "`datakit mixture pack` again"
        ) from error
    if xxhash.xxh3_128_hexdigest(data) != partition.xxh3:
        raise CorruptError(
            f"{url} does not match its checksum; remove the step's directory and run `datakit mixture pack` again"
        )
    return decode_counts(data)
