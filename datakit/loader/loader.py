"""Defines `Loader`, which gives this host its rows of any batch and reports epochs and counters.

    loader = Loader(mixture)
    for batch in loader.iterate(start=step):     # reads ahead in threads, using at most `memory_bytes`
        ...

A global batch depends only on the mixture and the step. Each of the `hosts` hosts gets an equal share of the batch's
rows; `host` is this host's index. Threads may share a loader: `loader[step]`, `rows` and `iterate` give the same
batches in every thread. Processes must not share a loader; each process must make its own.

To resume, call `iterate(start=step)`; there is no other state. Save `record()` in each checkpoint. When a run resumes,
`verify(record, step)` raises an error if the batches before `step` would have been different.

Each host reads every block that holds one of its rows. Even with many hosts, that is nearly every block: if the run
consumes 10 M tokens/s, each host reads about 40 MB/s.
"""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from datakit.cache.documents.lazy_slice import LazySlice
from datakit.errors import LoaderError
from datakit.loader import resume_check
from datakit.loader.mixture.config import Mixture
from datakit.loader.mixture.packing import Counters
from datakit.loader.mixture.sequence_order import Pick, SequenceOrder
from datakit.loader.options import LoaderOptions
from datakit.loader.reading.batch import Batch, empty_batch, fill
from datakit.loader.reading.block_pool import BlockPool
from datakit.loader.reading.lookahead import Lookahead
from datakit.loader.reading.metrics import Metrics
from datakit.loader.reading.places import DocumentPart, document_parts
from datakit.loader.reading.prefetch import in_background
from datakit.loader.reading.row_reader import RowReader
from datakit.loader.sources.cache_source import shared_tokenizer
from datakit.loader.sources.rows import View
from datakit.loader.sources.token_source import TokenSource

if TYPE_CHECKING:
    import tokenizers


class Loader:
    """This host's batch for each step: int32 tokens [batch_size / hosts, sequence_length] and arrays that describe
    them. The keyword arguments are the fields of `LoaderOptions`. The constructor raises LoaderError for invalid
    options, for a batch size that cannot be split evenly over the hosts, and for windows that do not fit in memory.
    `loader[step]` raises IndexError for a step outside the run. Errors raised while a source is read are passed on.
    """

    def __init__(self, mixture: Mixture, **options: Any) -> None:
        self.mixture: Mixture = mixture
        self.options: LoaderOptions = LoaderOptions(**options)
        self._check_batch_sizes()
        self.order: SequenceOrder = SequenceOrder(mixture)
        self.metrics: Metrics = Metrics(self.order.names)
        self._view = View(mixture.pad_id, self.options.segments)
        self._reader = reader = RowReader(self.order, self._view)
        memory, in_flight = mixture.memory_bytes, self.options.in_flight
        self._pool = BlockPool(reader.load, reader.size, self.metrics, budget_bytes=memory, in_flight=in_flight)
        self._lookahead = Lookahead(self.order, reader, self._pool, self._own_rows)
        self._process = os.getpid()
        self._planning = threading.RLock()  # guards the order and the lookahead, which cache results

    def __repr__(self) -> str:
        steps = "endless" if self.steps is None else f"{self.steps:,} batches"
        rows, length = self.mixture.batches.at(0), self.order.lengths.at(0)
        hosts = f", host {self.options.host} of {self.options.hosts}" if self.options.hosts > 1 else ""
        return f"Loader({', '.join(self.order.names)}: {steps} of {rows:,} x {length:,} tokens{hosts})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.mixture, **asdict(self.options)), ()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the reading threads and free the blocks in memory."""
        self._pool.close()

    @property
    def steps(self) -> int | None:
        """Number of batches; None if the run never ends."""
        return self.order.steps

    def __len__(self) -> int:
        if self.steps is None:
            raise TypeError("the number of batches is unlimited: stop is 'restart' and no component has max_epochs")
        return self.steps

    @overload
    def __getitem__(self, step: SupportsIndex) -> Batch: ...
    @overload
    def __getitem__(self, step: slice) -> LazySlice[Batch]: ...
    def __getitem__(self, step: SupportsIndex | slice) -> Batch | LazySlice[Batch]:
        if isinstance(step, slice):
            if self.steps is None and (step.stop is None or min(step.start or 0, step.stop) < 0):
                raise IndexError("the run never ends, so a slice of it needs an end and cannot have negative bounds")
            numbers = range(*step.indices(step.stop if self.steps is None else self.steps))
            return LazySlice(repr(self), numbers, self.__getitem__, self.iterate)
        step = self._checked_step(step)
        return self.rows(step, *self._own_rows(step))

    @property
    def sources(self) -> dict[str, TokenSource]:
        """The sources of the components with a positive weight in any stage, by component name."""
        return {name: self.mixture.components[name].source for name in self.order.names}

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer that all components share, for decoding. Raises LoaderError if there is no such tokenizer."""
        return shared_tokenizer(self.sources)

    def rows(self, step: SupportsIndex, first: SupportsIndex, last: SupportsIndex) -> Batch:
        """Return rows first..last-1 of global batch `step`, for callers that do not split batches by host. Raises
        IndexError if the run has no such batch or the batch has no such rows.
        """
        step, first, last = self._checked_step(step), operator.index(first), operator.index(last)
        rows = self.mixture.batches.at(step)
        if not 0 <= first < last <= rows:
            raise IndexError(f"batch {step} has {rows} rows; rows {first} up to (not including) {last} were requested")
        with self._planning:
            picks = self.order.picks(step, first, last)
        return self._assemble(step, last - first, picks)

    def places(self, step: SupportsIndex) -> list[DocumentPart]:
        """Return the parts of documents in global batch `step`, by row and from left to right; each is one segment.
        Raises IndexError if the run has no such batch.
        """
        step = self._checked_step(step)
        with self._planning:
            picks = self.order.picks(step, 0, self.mixture.batches.at(step))
            return document_parts(self.order, step, picks)

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Batch, None, None]:
        """Yield batches start..stop-1, or all batches from `start` on if `stop` is None, and prefetch their blocks.
        Raises IndexError if `start` is negative.
        """
        start = operator.index(start)
        if start < 0:
            raise IndexError(f"there is no batch {start}; the first one is batch 0")
        stop = None if stop is None else operator.index(stop)
        return self._iterate(start, stop)

    def _iterate(self, start: int, stop: int | None) -> Generator[Batch, None, None]:
        ends = [end for end in (stop, self.steps) if end is not None]
        batches = self._batches(start, min(ends) if ends else None)
        if self.options.batches_ahead:
            batches = in_background(self._complete(batches), self.options.batches_ahead)
        try:
            while True:
                started = time.perf_counter()
                batch = next(batches, None)
                self.metrics.add(loading_seconds=time.perf_counter() - started)
                if batch is None:
                    return
                yield batch
        finally:
            batches.close()
            with self._planning:
                self._lookahead.reset()

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def epochs(self, step: int) -> dict[str, float]:
        with self._planning:
            served = self.order.served_before(operator.index(step))
            return {
                name: stream.epochs_at(sequences)
                for name, stream, sequences in zip(self.order.names, self.order.streams, served, strict=True)
            }

    def snapshot(self, step: int) -> dict[str, float]:
        values = self.metrics.snapshot() | {"memory_bytes": self._pool.used_bytes, "reading": self._pool.reading}
        return values | {f"epochs/{name}": epochs for name, epochs in self.epochs(step).items()}

    def packing_report(self) -> dict[str, dict[int, Counters]]:
        """Return packing counters by component and sequence length; lengths with stored counts are omitted."""
        return {
            name: dict(stream.counts.packing_counters)
            for name, stream in zip(self.order.names, self.order.streams, strict=True)
            if stream.settings.packing is not None
        }

    def outline(self, steps: int) -> list[tuple[int, int, int]]:
        """Return a summary of the first `steps` batches: a list of (number of batches, rows per global batch, sequence
        length). Each tuple describes consecutive batches of one shape. Raises LoaderError if the run has fewer than
        `steps` batches; the message states why the run ends.
        """
        self.order.require(steps)
        sizes, lengths = self.mixture.batches, self.order.lengths
        starts = sorted({step for step, _ in (*sizes.pairs, *lengths.pairs) if step < steps})
        runs = zip(starts, [*starts[1:], steps], strict=False)
        return [(end - start, sizes.at(start), lengths.at(start)) for start, end in runs]

    def record(self) -> dict[str, Any]:
        """Return a description of what this run reads, as JSON values to save in a checkpoint."""
        return resume_check.describe(self.order)

    def verify(self, saved: dict[str, Any], step: int) -> list[str]:
        """Compare a saved record with this run, and return a line for each permitted change. Raises MixtureChangedError
        if the batches before `step` would have been different.
        """
        return resume_check.verify(saved, self.record(), operator.index(step))

    def _batches(self, start: int, stop: int | None) -> Generator[Batch, None, None]:
        step = start
        while stop is None or step < stop:
            first, last = self._own_rows(step)
            with self._planning:
                picks = self.order.picks(step, first, last)
                self._lookahead.update(step, stop, picks)
            yield self._assemble(step, last - first, picks)
            step += 1

    def _complete(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches with their derived arrays computed, so that the training loop does not wait for these."""
        for batch in batches:
            if self.options.segments:
                _ = batch.segments, batch.loss_mask
            yield batch

    def _assemble(self, step: int, rows: int, picks: Sequence[Pick]) -> Batch:
        if os.getpid() != self._process:
            raise LoaderError(
                "this loader was made before a fork; start workers with the method 'spawn' or 'forkserver', so that "
                "each worker makes its own loader"
            )
        keys = [key for pick in picks for key in self._reader.keys(pick)]
        batch = empty_batch(step, rows, self.order.lengths.at(step), self.order.names, self._view)
        fill(batch, picks, self._pool.require(keys), self._reader.resident, self._view)
        batch.first_slot = self.order.axis.first_slot(step)
        self.metrics.add_batch(batch)
        return batch

    def _own_rows(self, step: int) -> tuple[int, int]:
        rows = self.mixture.batches.at(step) // self.options.hosts
        return self.options.host * rows, (self.options.host + 1) * rows

    def _checked_step(self, step: SupportsIndex) -> int:
        """Return the step as an int; numpy and JAX integers are also accepted. Raises IndexError or TypeError."""
        step = operator.index(step)
        if step < 0 or (self.steps is not None and step >= self.steps):
            count = "an unlimited number of" if self.steps is None else self.steps
            raise IndexError(f"there is no batch {step}; the run has {count} batches ({self.order.ending})")
        return step

    def _check_batch_sizes(self) -> None:
        for step, size in self.mixture.batches.pairs:
            if size % self.options.hosts:
                raise LoaderError(
                    f"batch_size {size} (from step {step} on) cannot be split evenly over {self.options.hosts} hosts"
                )
