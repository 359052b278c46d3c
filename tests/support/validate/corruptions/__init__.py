"""Lists corruptions of a finished root, over all stages: what is damaged, and which check must name which file and why.

Those that forge manifests leave every checksum right, so that only a check of the content can find them.
"""

from tests.support.validate.corruptions import caches, dataset, sources
from tests.support.validate.corruptions.case import Corruption

__all__ = ["CORRUPTIONS", "Corruption"]

CORRUPTIONS = [*sources.CORRUPTIONS, *dataset.CORRUPTIONS, *caches.CORRUPTIONS]
