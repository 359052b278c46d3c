"""`batch = loader[step]`: the same for the same mixture and step, whatever was read before, on any number of hosts.

    loader = Loader(mixture)
    for batch in loader.iterate(start=step):     # reads ahead in threads, within the mixture's memory
        ...

A host's share is its rows of the same global batch (`host`, `hosts`), so the run's order does not know how many
hosts there are. Resuming is `iterate(start=step)`; there is no other state. `record()` goes into the checkpoint,
`verify(record, step)` refuses to go on with another past.

Each host reads every block that holds one of its rows. With many hosts that is nearly every block: at 10 M tokens/s
about 40 MB/s a host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from datakit.errors import LoaderError
from datakit.loader.mixture import fingerprint
from datakit.loader.mixture.config import Mixture
from datakit.loader.mixture.packing import Counters
from datakit.loader.mixture.plan import Pick, Plan
from datakit.loader.mixture.window import Unit
from datakit.loader.reading.batch import Batch, empty_batch, fill
from datakit.loader.reading.block_pool import BlockPool
from datakit.loader.reading.metrics import Metrics
from datakit.loader.reading.prefetch import in_background
from datakit.loader.sources.rows import Rows, View

STAGE_AHEAD = 4  # mixture blocks before a stage begins, its components' blocks are wanted
ROWS_AHEAD = 8  # batches whose single sequences (full shuffle) are wanted
Key = tuple[int, Unit, int]  # stream, unit, and which sequence of it; -1 is all of it


@dataclass(frozen=True)
class LoaderOptions:
    """How to read, not what: none of this changes a batch."""

    host: int = 0
    hosts: int = 1
    segments: bool = True  # look up document borders; without them a batch has tokens and lengths only
    in_flight: int = 4  # reads at the same time
    batches_ahead: int = 0  # batches put together ahead in a thread of their own; 0 does it where they are asked for

    def check(self) -> None:
        """Raises LoaderError for values that cannot be."""
        if not 0 <= self.host < self.hosts:
            raise LoaderError(f"host {self.host} of {self.hosts}: hosts are numbered from 0")
        if self.in_flight < 1 or self.batches_ahead < 0:
            raise LoaderError(
                f"in_flight {self.in_flight} is at least 1, batches_ahead {self.batches_ahead} at least 0"
            )


class Loader:
    """See the module. Extra keywords are the fields of LoaderOptions."""

    def __init__(self, mixture: Mixture, **options: Any) -> None:
        self.mixture = mixture
        self.options = LoaderOptions(**options)
        self.options.check()
        self.plan = Plan(mixture)
        for step, size in mixture.batches.pairs:
            if size % self.options.hosts:
                raise LoaderError(
                    f"batch_size {size} (from step {step} on) cannot be shared by {self.options.hosts} hosts evenly"
                )
        self.metrics = Metrics(self.plan.names)
        self._view = View(mixture.pad_id, self.options.segments)
        self._resident = [self.plan.grants[name].resident for name in self.plan.names]
        self._pool = BlockPool(
            self._load,
            self._size,
            self.metrics,
            budget_bytes=mixture.memory_bytes,
            in_flight=self.options.in_flight,
        )
        self._process = os.getpid()
        self._windows: dict[int, int] = {}  # of each stream: the window that it is in, and what that and the next need
        self._needs: dict[int, list[tuple[int, Unit]]] = {}
        self._look_again = 0

    def __reduce__(self) -> tuple:
        options = {name: getattr(self.options, name) for name in self.options.__dataclass_fields__}
        return _rebuild, (type(self), self.mixture, options)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the reading threads and free the memory."""
        self._pool.close()

    @property
    def steps(self) -> int | None:
        """How many batches there are; None if the run never ends."""
        return self.plan.steps

    def __len__(self) -> int:
        if self.steps is None:
            raise TypeError("this mixture never ends: stop is 'restart' and no component has max_epochs")
        return self.steps

    def __getitem__(self, step: int) -> Batch:
        """This host's rows of batch `step`."""
        self._check_step(step)
        return self.rows(step, *self._own_rows(step))

    def rows(self, step: int, first: int, last: int) -> Batch:
        """The rows first..last-1 of the global batch `step`: for a sharding that is not by host."""
        self._check_step(step)
        return self._assemble(step, last - first, self.plan.picks(step, first, last))

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Batch, None, None]:
        """Batches start..stop-1 (to the end of the run if None), their blocks read ahead in the background."""
        ends = [end for end in (stop, self.steps) if end is not None]
        batches = self._batches(start, min(ends) if ends else None)
        if self.options.batches_ahead:
            batches = in_background(self._complete(batches), self.options.batches_ahead)
        try:
            while True:
                begun = time.perf_counter()
                batch = next(batches, None)
                self.metrics.add(loading_seconds=time.perf_counter() - begun)
                if batch is None:
                    return
                yield batch
        finally:
            batches.close()
            self._windows.clear()
            self._look_again = 0
            self._pool.want(())

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def epochs(self, step: int) -> dict[str, float]:
        """How many epochs of each component the batches before `step` hold."""
        served = self.plan.order.served(self.plan.axis.first_slot(step)).tolist()
        return {
            name: stream.epochs_at(sequences)
            for name, stream, sequences in zip(self.plan.names, self.plan.streams, served, strict=True)
        }

    def snapshot(self, step: int) -> dict[str, float]:
        """The metrics so far, and the epochs of each component at `step`."""
        values = self.metrics.snapshot() | {"memory_bytes": self._pool.used_bytes, "reading": self._pool.reading}
        return values | {f"epochs/{name}": epochs for name, epochs in self.epochs(step).items()}

    def packing_report(self) -> dict[str, dict[int, Counters]]:
        """What packing did to each packed component's documents, by length, where the loader counted them itself."""
        streams = zip(self.plan.names, self.plan.streams, strict=True)
        return {name: dict(stream.packing_counters) for name, stream in streams if stream.settings.packing is not None}

    def outline(self, steps: int) -> list[tuple[int, int, int]]:
        """The first `steps` batches in order: (how many, rows of each over all hosts, length).

        Raises LoaderError, naming the component that ends first, where the run has fewer.
        """
        self.plan.require(steps)
        sizes, lengths = self.mixture.batches, self.plan.lengths
        begins = sorted({step for step, _ in (*sizes.pairs, *lengths.pairs) if step < steps})
        pieces = zip(begins, [*begins[1:], steps], strict=False)
        return [(end - begin, sizes.at(begin), lengths.at(begin)) for begin, end in pieces]

    def record(self) -> dict[str, Any]:
        """What this run reads, as plain values for a checkpoint."""
        return fingerprint.record_of(self.plan)

    def verify(self, saved: dict[str, Any], step: int) -> list[str]:
        """Raises MixtureChangedError if the batches before `step` were others; returns what changes from there on."""
        return fingerprint.verify(saved, self.record(), step)

    # ---- reading

    def _batches(self, start: int, stop: int | None) -> Generator[Batch, None, None]:
        step = start
        while stop is None or step < stop:
            first, last = self._own_rows(step)
            picks = self.plan.picks(step, first, last)
            self._look_ahead(step, stop, picks)
            yield self._assemble(step, last - first, picks)
            step += 1

    def _complete(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Make the derived arrays, too, where the model does not wait for it."""
        for batch in batches:
            if self.options.segments:
                _ = batch.segments, batch.loss_mask
            yield batch

    def _assemble(self, step: int, rows: int, picks: Sequence[Pick]) -> Batch:
        if os.getpid() != self._process:
            raise LoaderError("this loader was made before a fork: make one in each process, or start workers by spawn")
        keys = [key for pick in picks for key in self._keys(pick)]
        empty = empty_batch(rows, self.plan.lengths.at(step), self.plan.names, self._view)
        batch = fill(empty, picks, self._pool.require(keys), self._resident, self._view)
        batch.step, batch.first_slot = step, self.plan.axis.first_slot(step)
        self.metrics.add_batch(batch)
        return batch

    def _keys(self, pick: Pick) -> list[Key]:
        """What each row of a pick is read from: its unit, or where units do not stay in memory its sequence alone."""
        units = [pick.window.units[unit] for unit in pick.units.tolist()]
        if self._resident[pick.stream]:
            return [(pick.stream, unit, -1) for unit in units]
        return [(pick.stream, unit, row) for unit, row in zip(units, pick.sequences.tolist(), strict=True)]

    def _load(self, key: Key) -> Rows:
        number, unit, sequence = key
        stream = self.plan.streams[number]
        return stream.load(unit, self._view) if sequence < 0 else stream.load_sequence(unit, sequence, self._view)

    def _size(self, key: Key) -> int:
        number, unit, sequence = key
        stream = self.plan.streams[number]
        tokens = stream.settings.block_tokens if sequence < 0 else unit.length
        return tokens * (stream.source.dtype.itemsize + stream.source.has_loss_mask)

    def _look_ahead(self, step: int, stop: int | None, picks: Sequence[Pick]) -> None:
        """Tell the pool what comes, if a window or a stage began since the last batch, or sequences are read alone."""
        slot = self.plan.axis.first_slot(step)
        current = {pick.stream: pick.window.first for pick in reversed(picks)}
        changed = any(self._windows.get(number) != first for number, first in current.items())
        if not changed and slot < self._look_again and all(self._resident):
            return
        self._look_again = slot + self.mixture.block
        served = self.plan.order.served(slot).tolist()
        shares = self.plan.order.shares(slot, slot + STAGE_AHEAD * self.mixture.block)
        urgent = [
            ((first - served[i]) / share, i, unit)
            for i, share in enumerate(shares)
            if share and self._resident[i]
            for first, unit in self._upcoming(i, served[i])
        ]
        units = [(i, unit, -1) for _, i, unit in sorted(urgent)]
        self._pool.want([*(() if all(self._resident) else self._singles_ahead(step, stop)), *units])

    def _upcoming(self, number: int, served: int) -> list[tuple[int, Unit]]:
        """What a stream needs until the end of its next window; looked up once a window."""
        stream = self.plan.streams[number]
        first = stream.window_at(served).first
        if self._windows.get(number) != first:
            self._windows[number] = first
            self._needs[number] = stream.upcoming(served)
        return self._needs[number]

    def _singles_ahead(self, step: int, stop: int | None) -> list[Key]:
        keys = []
        for ahead in range(step, min(step + ROWS_AHEAD, stop if stop is not None else step + ROWS_AHEAD)):
            for pick in self.plan.picks(ahead, *self._own_rows(ahead)):
                if not self._resident[pick.stream]:
                    keys.extend(self._keys(pick))
        return keys

    def _own_rows(self, step: int) -> tuple[int, int]:
        rows = self.mixture.batches.at(step) // self.options.hosts
        return self.options.host * rows, (self.options.host + 1) * rows

    def _check_step(self, step: int) -> None:
        if step < 0 or (self.steps is not None and step >= self.steps):
            raise IndexError(f"there is no batch {step}; the run has {self.steps} ({self.plan.ending})")


def _rebuild(kind: type[Loader], mixture: Mixture, options: dict[str, Any]) -> Loader:
    return kind(mixture, **options)
