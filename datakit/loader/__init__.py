"""Exports the loader's public names; `Loader(Mixture(...))[step]` is a batch that depends only on the mixture and the
step. The loader needs numpy, msgspec and xxhash. To read token caches, it also needs TensorStore.
"""

from datakit.loader.adapters import BatchSource, SequenceSource
from datakit.loader.loader import Loader
from datakit.loader.mixture.config import Component, Mixture, Shuffle, SimulatedEpochs, Stage
from datakit.loader.mixture.packing import Packing, count_blocks
from datakit.loader.mixture.packing_counts import with_packing_counts
from datakit.loader.mixture.preview import Preview, contributions
from datakit.loader.mixture.schedule import Schedule
from datakit.loader.mixture.sequence_order import SequenceOrder
from datakit.loader.mixture.toml_file import MixtureFile, load_mixture, load_mixture_file
from datakit.loader.mixture.validation_split import held_out_mixture, one_pass, training_source, validation_source
from datakit.loader.reading.batch import Batch
from datakit.loader.sources.cache_source import CacheSource, open_source
from datakit.loader.sources.exclusions import Exclusion
from datakit.loader.sources.token_source import ArraySource, RangeSource, TokenSource

__all__ = [
    "ArraySource",
    "Batch",
    "BatchSource",
    "CacheSource",
    "Component",
    "Exclusion",
    "Loader",
    "Mixture",
    "MixtureFile",
    "Packing",
    "Preview",
    "RangeSource",
    "Schedule",
    "SequenceOrder",
    "SequenceSource",
    "Shuffle",
    "SimulatedEpochs",
    "Stage",
    "TokenSource",
    "contributions",
    "count_blocks",
    "held_out_mixture",
    "load_mixture",
    "load_mixture_file",
    "one_pass",
    "open_source",
    "training_source",
    "validation_source",
    "with_packing_counts",
]
