"""Mixtures of token sources as batches: `Loader(Mixture(...))[step]`, a pure function of (mixture, step).

Needs numpy, msgspec and xxhash; a token cache as a source needs TensorStore, and its documents pyarrow.
"""

from datakit.loader.batch import Batch
from datakit.loader.cache_source import CacheSource, open_source
from datakit.loader.config import Component, Mixture, Shuffle, SimulatedEpochs, Stage
from datakit.loader.loader import Loader
from datakit.loader.packing import Packing, count_blocks
from datakit.loader.plan import Plan
from datakit.loader.schedule import Schedule
from datakit.loader.source import ArraySource, RangeSource, TokenSource

__all__ = [
    "ArraySource",
    "Batch",
    "CacheSource",
    "Component",
    "Loader",
    "Mixture",
    "Packing",
    "Plan",
    "RangeSource",
    "Schedule",
    "Shuffle",
    "SimulatedEpochs",
    "Stage",
    "TokenSource",
    "count_blocks",
    "open_source",
]
