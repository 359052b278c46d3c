"""Options of a loader: hosts, threads and lookups. None of them changes a batch."""

from __future__ import annotations

from dataclasses import dataclass

from datakit.errors import LoaderError


@dataclass(frozen=True)
class LoaderOptions:
    """The keyword arguments of `Loader`."""

    host: int = 0
    hosts: int = 1
    segments: bool = True  # look up document borders; without them a batch has only tokens and lengths
    in_flight: int = 4  # concurrent reads
    batches_ahead: int = 0  # batches assembled ahead in a background thread; 0 assembles them on demand

    def check(self) -> None:
        """Raise LoaderError for invalid values."""
        if not 0 <= self.host < self.hosts:
            raise LoaderError(f"host {self.host} of {self.hosts}: hosts are numbered from 0")
        if self.in_flight < 1:
            raise LoaderError(f"in_flight is {self.in_flight}; it must be at least 1")
        if self.batches_ahead < 0:
            raise LoaderError(f"batches_ahead is {self.batches_ahead}; it must be at least 0")
