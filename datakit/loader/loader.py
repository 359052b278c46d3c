"""`batch = loader[step]`: the same batch for the same mixture and step, whatever was read before and on however many hosts.

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

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from datakit.errors import LoaderError
from datakit.loader import record
from datakit.loader.batch import Batch, Served, assemble
from datakit.loader.config import Mixture
from datakit.loader.metrics import Metrics
from datakit.loader.plan import Pick, Plan
from datakit.loader.pool import BlockPool, Wanted
from datakit.loader.window import Unit

STAGE_AHEAD = 4  # mixture blocks before a stage begins, its components' blocks are wanted
ROWS_AHEAD = 8  # batches whose single sequences (full shuffle) are wanted


@dataclass(frozen=True)
class LoaderOptions:
    """How to read, not what: none of this changes a batch."""

    host: int = 0
    hosts: int = 1
    segments: bool = True  # look up document borders; without them a batch has tokens and lengths only
    in_flight: int = 4  # reads at the same time
    batches_ahead: int = 2  # assembled batches that wait

    def check(self) -> None:
        """Raises LoaderError for values that cannot be."""
        if not 0 <= self.host < self.hosts:
            raise LoaderError(f"host {self.host} of {self.hosts}: hosts are numbered from 0")
        if self.in_flight < 1 or self.batches_ahead < 1:
            raise LoaderError("in_flight and batches_ahead are at least 1")


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
        self._pool = BlockPool(mixture.memory_bytes, self.options.in_flight, self.metrics)
        self._hints: tuple[int, ...] = ()

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
        rows = self.mixture.batches.at(max(step, 0)) // self.options.hosts
        return self.rows(step, self.options.host * rows, (self.options.host + 1) * rows)

    def rows(self, step: int, first: int, last: int) -> Batch:
        """The rows first..last-1 of the global batch `step`: for a sharding that is not by host."""
        self._check_step(step)
        return self._assemble(step, first, last, self.plan.picks(step, first, last))

    def iterate(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches start..stop-1 (to the end of the run if None), read and put together ahead in the background."""
        ends = [end for end in (stop, self.steps) if end is not None]
        stop = min(ends) if ends else None
        ready: queue.Queue[Batch | BaseException | None] = queue.Queue(self.options.batches_ahead)
        ended = threading.Event()
        worker = threading.Thread(target=self._produce, args=(start, stop, ready, ended), daemon=True)
        worker.start()
        try:
            while True:
                begun = time.perf_counter()
                batch = ready.get()
                self.metrics.add(loading_seconds=time.perf_counter() - begun)
                if batch is None:
                    return
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            ended.set()
            while worker.is_alive():
                _drain(ready)
                worker.join(0.01)

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
        values = self.metrics.snapshot() | {"memory_bytes": self._pool.used_bytes}
        return values | {f"epochs/{name}": epochs for name, epochs in self.epochs(step).items()}

    def record(self) -> dict[str, Any]:
        """What this run reads, as plain values for a checkpoint."""
        return record.record_of(self.plan)

    def verify(self, saved: dict[str, Any], step: int) -> list[str]:
        """Raises MixtureChangedError if the batches before `step` were others; returns what changes from there on."""
        return record.verify(saved, self.record(), step)

    # ---- reading

    def _produce(self, start: int, stop: int | None, ready: queue.Queue, ended: threading.Event) -> None:
        """Assemble batches into the queue; runs in its own thread."""
        step = start
        try:
            while not ended.is_set() and (stop is None or step < stop):
                self._look_ahead(step, stop)
                batch = self[step]
                if self.options.segments:
                    _ = batch.segments, batch.positions
                _ = batch.loss_mask
                _put(ready, batch, ended)
                step += 1
            _put(ready, None, ended)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asked for the batch
            _put(ready, error, ended)

    def _assemble(self, step: int, first: int, last: int, picks: Sequence[Pick]) -> Batch:
        length = self.plan.lengths.at(step)
        needed: dict[Any, Wanted] = {}
        for pick in picks:
            for item in self._wanted_for(pick):
                needed[item.key] = item
        loaded = dict(zip(needed, self._pool.require(list(needed.values())), strict=True))
        served: list[Served | None] = [None] * (last - first)
        for pick in picks:
            resident = self._resident(pick.stream)
            for unit, sequence, row in zip(
                pick.units.tolist(), pick.sequences.tolist(), pick.rows.tolist(), strict=True
            ):
                key = (pick.stream, pick.window.units[unit])
                if resident:
                    served[row] = Served(pick.stream, loaded[key], sequence)
                else:
                    served[row] = Served(pick.stream, loaded[(*key, sequence)], 0)
        slot = self.plan.axis.first_slot(step)
        batch = assemble(step, slot, self.plan.names, served, length, self.mixture.pad_id, self.options.segments)
        self.metrics.add_batch(batch)
        return batch

    def _resident(self, stream: int) -> bool:
        return self.plan.grants[self.plan.names[stream]].resident

    def _wanted_for(self, pick: Pick) -> list[Wanted]:
        if self._resident(pick.stream):
            return [self._unit(pick.stream, pick.window.units[unit]) for unit in set(pick.units.tolist())]
        return [
            self._single(pick.stream, pick.window.units[unit], sequence)
            for unit, sequence in zip(pick.units.tolist(), pick.sequences.tolist(), strict=True)
        ]

    def _unit(self, number: int, unit: Unit) -> Wanted:
        stream, pad_id, segments = self.plan.streams[number], self.mixture.pad_id, self.options.segments
        nbytes = stream.settings.block_tokens * stream.source.dtype.itemsize
        return Wanted((number, unit), lambda: stream.load(unit, pad_id, segments), nbytes)

    def _single(self, number: int, unit: Unit, sequence: int) -> Wanted:
        stream, pad_id, segments = self.plan.streams[number], self.mixture.pad_id, self.options.segments
        nbytes = unit.length * stream.source.dtype.itemsize
        return Wanted((number, unit, sequence), lambda: stream.load_sequence(unit, sequence, pad_id, segments), nbytes)

    def _look_ahead(self, step: int, stop: int | None) -> None:
        """Tell the pool what comes, if that has changed since the last batch."""
        slot = self.plan.axis.first_slot(step)
        if self.plan.slots is not None and slot >= self.plan.slots:
            return
        shares = self.plan.order.shares(slot, slot + STAGE_AHEAD * self.mixture.block)
        served = self.plan.order.served(slot).tolist()
        resident = [i for i, share in enumerate(shares) if share and self._resident(i)]
        hints = tuple(self.plan.streams[i].window_at(served[i]).first for i in resident)
        singles = len(resident) < sum(share > 0 for share in shares)
        if hints == self._hints and not singles:
            return
        self._hints = hints
        urgent = [
            (place / shares[i], i, unit) for i in resident for place, unit in self.plan.streams[i].upcoming(served[i])
        ]
        urgent.sort(key=lambda entry: entry[:2])
        units = [self._unit(i, unit) for _, i, unit in urgent]
        self._pool.want([*(self._singles_ahead(step, stop) if singles else ()), *units])

    def _singles_ahead(self, step: int, stop: int | None) -> list[Wanted]:
        wanted = []
        for ahead in range(step, min(step + ROWS_AHEAD, stop if stop is not None else step + ROWS_AHEAD)):
            rows = self.mixture.batches.at(ahead) // self.options.hosts
            for pick in self.plan.picks(ahead, self.options.host * rows, (self.options.host + 1) * rows):
                if not self._resident(pick.stream):
                    wanted.extend(self._wanted_for(pick))
        return wanted

    def _check_step(self, step: int) -> None:
        if step < 0 or (self.steps is not None and step >= self.steps):
            raise IndexError(f"there is no batch {step}; the run has {self.steps} ({self.plan.ending})")


def _rebuild(kind: type[Loader], mixture: Mixture, options: dict[str, Any]) -> Loader:
    return kind(mixture, **options)


def _put(ready: queue.Queue, item: Batch | BaseException | None, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            ready.put(item, timeout=0.1)
            return
        except queue.Full:
            continue


def _drain(ready: queue.Queue) -> None:
    while True:
        try:
            ready.get_nowait()
        except queue.Empty:
            return
