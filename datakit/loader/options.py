"""Defines and checks the options of a `Loader`: host, document boundaries, concurrent reads, prefetched batches."""

from __future__ import annotations

from dataclasses import dataclass

from datakit.errors import LoaderError


@dataclass(frozen=True)
class LoaderOptions:
    """The keyword arguments of `Loader`. None of them changes the tokens of a global batch."""

    host: int = 0
    hosts: int = 1
    segments: bool = True  # look up document boundaries; if False, a batch has no `segments` or `positions`
    in_flight: int = 4  # maximum number of concurrent reads
    batches_ahead: int = 0  # number of batches assembled ahead in a background thread; 0: assembled on demand

    def __post_init__(self) -> None:
        if not 0 <= self.host < self.hosts:
            raise LoaderError(f"host is {self.host}; it must be at least 0 and less than hosts ({self.hosts})")
        if self.in_flight < 1:
            raise LoaderError(f"in_flight is {self.in_flight}; it must be at least 1")
        if self.batches_ahead < 0:
            raise LoaderError(f"batches_ahead is {self.batches_ahead}; it must be at least 0")
