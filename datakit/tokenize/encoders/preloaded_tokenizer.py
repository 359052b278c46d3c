"""Names the preloads of the stages contract and tokenize, and returns the tokenizer that they load.

To load a tokenizer and prepare its encoder takes 0.3 to 0.6 s of CPU time. Both stages read the file that the contract
step has written, and both have the same preloads. So one fork server loads the tokenizer, once, for the tasks of both.
If a source has loss masks, the server also imports TensorStore, which compresses them.
"""

from __future__ import annotations

from datakit.cache import zarr_arrays
from datakit.engine.task import Preload, TaskContext
from datakit.engine.worker.preloaded_values import preloaded
from datakit.tokenize.encoders.base import OWN, Encoder
from datakit.tokenize.encoders.custom import CustomTokenizer
from datakit.tokenize.encoders.threads import limit_threads
from datakit.tokenize.encoders.tokenizer import Tokenizer

LOAD = "datakit.tokenize.encoders.tokenizer:load_for_tasks"
TASKS = "datakit.tokenize.tasks"


def tokenizer_preloads(url: str, code: str, loss_masks: bool) -> tuple[Preload, ...]:
    """Return the preloads with which a fork server loads the tokenizer.json at `url`. code: see `parse`. loss_masks:
    True if a source has loss masks.
    """
    arrays = (Preload(zarr_arrays.__name__, f"{zarr_arrays.__name__}:prepare"),) if loss_masks else ()
    tokenizer = Preload("datakit.tokenize.encoders.tokenizer", LOAD, (url, code), kernels=not code)
    return Preload(TASKS), tokenizer, *arrays


def preloaded_tokenizer(url: str, code: str) -> Tokenizer | CustomTokenizer:
    """Return the tokenizer that the fork server has loaded. Raises TokenizerError if it cannot be loaded."""
    tokenizer: Tokenizer | CustomTokenizer = preloaded(LOAD, url, code)
    return tokenizer


def limit_encoders(tokenizer: Tokenizer | CustomTokenizer, encoder: Encoder, context: TaskContext) -> None:
    """Make the encoder and the reference encoder each start their threads now, at most as many as the task has CPUs."""
    for each in (encoder, tokenizer.reference_encoder()):
        if each is not None and each.name != OWN:  # which starts no thread
            limit_threads(each, context.cpus)
