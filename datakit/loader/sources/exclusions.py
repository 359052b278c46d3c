"""Defines which documents a mixture excludes, and finds them in the training tokens of its components.

An excluded document keeps its place in every batch, and its own segment, but its loss mask is 0 from batch `start_step`
on. Nothing else in any batch changes: the places are looked up once, when the mixture is opened, and never move a
sequence. Cost: one search in the id column of each component's cache per document, and 4 bytes of memory per token of
the blocks that hold an excluded document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.sources.token_source import RangeSource, TokenSource

NEVER = np.iinfo(np.int32).max  # a step that no run reaches


@dataclass(frozen=True)
class Exclusion:
    """Documents, by id, that do not count toward the loss in batch `start_step` (from 0) and all later batches."""

    documents: Sequence[str]
    start_step: int = 0

    def check(self) -> None:
        """Raise LoaderError for a negative step, a step too large, or an empty list."""
        if not 0 <= self.start_step < NEVER:
            raise LoaderError(f"exclusions: start_step is {self.start_step}; it must be 0 or more, and below {NEVER:,}")
        if not self.documents:
            raise LoaderError(f"exclusions: the list of documents from step {self.start_step:,} on is empty")


@runtime_checkable
class Identified(Protocol):
    """A source whose documents have ids."""

    def spans_of(self, identity: str) -> list[tuple[int, int]]:
        """Return (start, stop) of each document of the source with this id; empty if there is none."""
        ...


@dataclass(frozen=True)
class ExcludedTokens:
    """The excluded ranges of a source, in ascending order. All arrays are int64 [ranges]."""

    starts: np.ndarray
    stops: np.ndarray
    steps: np.ndarray  # the batch from which on a range is excluded

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return, for tokens start..stop-1, the batch from which on each is excluded, or NEVER: int32."""
        steps = np.full(stop - start, NEVER, np.int32)
        for i in self._touching(start, stop):
            steps[max(0, int(self.starts[i]) - start) : int(self.stops[i]) - start] = self.steps[i]
        return steps

    def touch(self, start: int, stop: int) -> bool:
        """Return True if any of the tokens start..stop-1 is ever excluded."""
        return len(self._touching(start, stop)) > 0

    def _touching(self, start: int, stop: int) -> range:
        first = int(np.searchsorted(self.stops, start, side="right"))
        return range(first, max(first, int(np.searchsorted(self.starts, stop, side="left"))))


def check_exclusions(exclusions: Iterable[Exclusion]) -> None:
    """Raise LoaderError for an invalid exclusion, and for a document that is excluded twice."""
    seen: dict[str, int] = {}
    for exclusion in exclusions:
        exclusion.check()
        for identity in exclusion.documents:
            if identity in seen:
                raise LoaderError(
                    f"exclusions: document {identity} is listed from step {seen[identity]:,} on and again from step "
                    f"{exclusion.start_step:,} on; list it once"
                )
            seen[identity] = exclusion.start_step


def describe_exclusions(exclusions: Iterable[Exclusion]) -> list[list[Any]]:
    """Return [start step, sorted ids] for each step, in ascending order, as JSON values."""
    by_step: dict[int, list[str]] = {}
    for exclusion in exclusions:
        by_step.setdefault(exclusion.start_step, []).extend(exclusion.documents)
    return [[step, sorted(documents)] for step, documents in sorted(by_step.items())]


def excluded_tokens(
    exclusions: Iterable[Exclusion],
    bases: Mapping[str, TokenSource],
    sources: Mapping[str, TokenSource],
    longest: Mapping[str, int],
) -> dict[str, ExcludedTokens]:
    """Return the excluded ranges of each component's training source; a component without any is omitted.

    bases, sources: the components' sources and training sources, by component. longest: the length of the longest
    document that a component's packing keeps, if the packing drops longer ones. Raises LoaderError, with the id, for a
    document that is in none of the components' caches or is never trained on.
    """
    found: dict[str, list[tuple[int, int, int]]] = {}
    for exclusion in exclusions:
        for identity in exclusion.documents:
            for name, start, stop in _places(bases, sources, longest, identity):
                found.setdefault(name, []).append((start, stop, exclusion.start_step))
    tables = {name: np.array(sorted(ranges), np.int64) for name, ranges in found.items()}
    return {name: ExcludedTokens(*table.T) for name, table in tables.items()}


def _places(
    bases: Mapping[str, TokenSource], sources: Mapping[str, TokenSource], longest: Mapping[str, int], identity: str
) -> list[tuple[str, int, int]]:
    """Return (component, start, stop) of each copy of a document in the training sources."""
    trained, reasons = [], []
    for name, base in bases.items():
        for start, stop in base.spans_of(identity) if isinstance(base, Identified) else []:
            at = position_in(sources[name], start) if stop > start else None
            if stop == start:
                reasons.append(f"it has no tokens in component {name!r}")
            elif at is None:
                reasons.append(f"component {name!r} leaves it out, because of validation_tokens or simulate")
            elif stop - start > longest.get(name, stop):
                reasons.append(f"the packing of component {name!r} drops it, because it is too long")
            else:
                trained.append((name, at, at + stop - start))
    if not trained and not reasons:
        raise LoaderError(
            f"exclusions: no component's cache holds document {identity}; give an id that `datakit explain` shows"
        )
    if not trained:
        raise LoaderError(
            f"exclusions: document {identity} is never trained on ({'; '.join(reasons)}); remove it from the list"
        )
    return trained


def position_in(source: TokenSource, position: int) -> int | None:
    """Return where a token of a component's source is in its training source; None if it is not there."""
    if not isinstance(source, RangeSource):
        return position
    inner = position_in(source.base, position)
    return None if inner is None else source.position_of(inner)
