"""Stage `train-tokenizer`: trains a byte-level BPE on a sample of the dataset, and decides how much text each source
contributes. With such a tokenizer, the demo needs neither network access nor a Hugging Face account. The sample has at
most `sample_bytes` bytes of text. Each source contributes its first documents in order of id, in proportion to its
estimated size: the size of its normalized text times the share of its documents that stay. The exact size of the text
that stays is unknown until it is read. Because ids are hashes, these documents are a uniform sample of the source. The
last document is cut where the source's share ends. The result does not depend on the process or on the number of
threads: merges with equal counts are taken in the order of their token ids, and the initial alphabet consists of all
256 bytes in a fixed order. A test that trains several times confirms this.

Cost: 20 s of CPU time for 64 MiB of text, spent mostly on counting words. Memory: about 0.6 GiB, for the distinct words
and their counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from datakit.cache.layout import TOKENIZER_FILE
from datakit.engine.task import (
    Output,
    OutputFile,
    Phase,
    Plan,
    Preload,
    Step,
    StepInput,
    Task,
    TaskContext,
    TaskResult,
)
from datakit.errors import EmptyStageError, RecipeError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import config_of, spelled_out
from datakit.storage.manifest import Partition
from datakit.storage.selection.edits import FOLDER
from datakit.storage.selection.leaving_rows import selected
from datakit.tokenize.encoders.base import ReferenceEncoder
from datakit.tokenize.encoders.threads import limit_threads
from datakit.tokenize.text_batches import TextBatch, text_batches
from datakit.toml_config import key

NAME = "train-tokenizer"
FORMAT_VERSION = 2
ALPHABET = 256
KERNELS = "datakit.tokenize.encoders.bpe.warm_kernels"
PRELOADS = (Preload(__name__), Preload(KERNELS, f"{KERNELS}:warm", kernels=True))  # those of the stages that follow
SCHEMA = pa.schema([("token", pa.string()), ("id", pa.uint32())])


@dataclass(frozen=True)
class Config:
    """The settings for training a tokenizer."""

    vocabulary: Annotated[
        int,
        key(
            "The maximum number of tokens, with special tokens and the 256 bytes; a small text may yield fewer.", 65_536
        ),
    ] = 32_768
    special: Annotated[
        tuple[str, ...], key("The special tokens, which get the first ids.", ["<|endoftext|>", "<|pad|>"])
    ] = ("<|endoftext|>",)
    sample_bytes: Annotated[int, key("The number of bytes of text to train on.", 256 << 20)] = 64 << 20

    def __post_init__(self) -> None:
        least = ALPHABET + len(self.special)
        if self.vocabulary < least:
            raise RecipeError(
                f"tokenize.train.vocabulary is {self.vocabulary}, but bytes and special tokens alone need {least}"
            )
        if self.sample_bytes <= 0:
            raise RecipeError(f"tokenize.train.sample_bytes is {self.sample_bytes}; it must be a positive number")


Files = tuple[str, str | None, str | None]


class Share(msgspec.Struct, frozen=True):
    """One source's share of the sample: the first `bytes` bytes of text of the documents that stay in these partitions.
    partitions: for each partition, the URL of its file, and the URLs of the list of the rows that leave (None if all
    stay) and of the list of the edits of the texts (None if there are none).
    """

    bytes: int
    partitions: list[Files]


def plan(step: Step) -> Plan:
    """Plan one task, which reads the sample, trains the tokenizer and writes tokenizer.json."""
    config = config_of(step.parameters, Config)
    shares = _shares(step, config)
    arguments = {"config": spelled_out(config), "shares": msgspec.to_builtins(shares)}
    sample = sum(share.bytes for share in shares)
    if not sample:
        raise EmptyStageError("no text to train a tokenizer on: no document stays in the dataset")
    task = Task("train", f"{__name__}:train_task", arguments, sample)
    (result,) = yield Phase("train", (task,), preloads=PRELOADS, memory_bytes=2 << 30)
    (file,) = result.outputs
    partition = Partition(file.path, step.dataset, file.rows, file.bytes, file.xxh3)
    return Output([partition], SCHEMA, details={"sampled_bytes": result.bytes_read})


def _shares(step: Step, config: Config) -> list[Share]:
    """Return the share of each source. If all texts fit in the sample, including those that leave, nothing is cut."""
    (select,) = step.inputs_of("select")
    sources = step.inputs_of("normalize")
    sizes = [(entry.manifest.totals.text_bytes or 0) + _growth(entry, select) for entry in sources]
    parts = [_partitions_of(entry, select) for entry in sources]
    if sum(sizes) > config.sample_bytes:
        stay = [
            size * sum(rows for _, rows in part) // max(1, entry.manifest.totals.rows)
            for entry, part, size in zip(sources, parts, sizes, strict=True)
        ]
        sizes = [config.sample_bytes * size // max(1, sum(stay)) for size in stay]
    return [Share(size, [files for files, _ in part]) for size, part in zip(sizes, parts, strict=True)]


def _growth(entry: StepInput, select: StepInput) -> int:
    """Return by how many bytes edits make a source's texts longer; 0 if they make them shorter."""
    counts = select.manifest.details.get(FOLDER, {}).get(entry.source, {})
    return max(0, counts.get("text_bytes_after", 0) - counts.get("text_bytes_before", 0))


def _partitions_of(entry: StepInput, select: StepInput) -> list[tuple[Files, int]]:
    """For each partition of a source, return its files (see `Share`) and the number of its documents that stay."""
    assert entry.source is not None
    partitions = entry.manifest.partitions_of(entry.source)
    selections = selected(select.directory, select.manifest, entry.source, partitions)
    return [
        ((urls.join(entry.directory, partition.path), selection.leaving, selection.edits), selection.rows)
        for partition, selection in zip(partitions, selections, strict=True)
    ]


def train_task(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Train a tokenizer on the sample, and write its tokenizer.json into the step's directory."""
    config = msgspec.convert(arguments["config"], Config)
    seen = [0, 0]  # the numbers of documents and bytes read so far

    def sample() -> Iterator[list[str]]:
        for share in msgspec.convert(arguments["shares"], list[Share]):
            for texts, size in _first_texts(share.partitions, share.bytes):
                seen[0], seen[1] = seen[0] + len(texts), seen[1] + size
                context.report(*seen)
                yield texts

    limit_threads(ReferenceEncoder(tokenizers.Tokenizer(models.BPE())), context.cpus)
    data, vocabulary = train(sample(), config)
    committed = atomic.commit_bytes(data, urls.join(context.step_directory, TOKENIZER_FILE))
    counters = {"train-tokenizer/documents": seen[0], "train-tokenizer/text_bytes": seen[1]}
    file = OutputFile(TOKENIZER_FILE, committed.bytes, committed.xxh3, vocabulary)
    return TaskResult((file,), counters, records=seen[0], bytes_read=seen[1])


def train(texts: Iterable[list[str]], config: Config) -> tuple[bytes, int]:
    """Train a byte-level BPE on batches of texts. Return the content of its tokenizer.json, and the number of entries
    in its vocabulary.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=list(config.special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=False).encode(), tokenizer.get_vocab_size()


def _first_texts(partitions: list[Files], wanted: int) -> Iterator[tuple[list[str], int]]:
    """Yield the first `wanted` bytes of the texts that stay in these partitions (see `Share`), in batches (texts,
    number of bytes). If the last text must be cut, it is cut between characters.
    """
    for url, leaving, edits in partitions:
        for batch in text_batches(url, leaving=leaving, edits=edits):
            if wanted <= 0:
                return
            yield _cut(batch, wanted) if batch.text_bytes > wanted else (batch.strings(), batch.text_bytes)
            wanted -= batch.text_bytes


def _cut(batch: TextBatch, wanted: int) -> tuple[list[str], int]:
    begin = int(batch.offsets[0])
    whole = int((batch.offsets[1:] <= begin + wanted).sum())
    rest = batch.data[int(batch.offsets[whole]) : begin + wanted].tobytes().decode("utf-8", errors="ignore")
    return [*batch.text.slice(0, whole).to_pylist(), rest], wanted
