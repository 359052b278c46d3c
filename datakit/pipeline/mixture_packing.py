"""Runs the packing steps of a mixture, one for each packed component and sequence length, and skips those done.

    pack_mixture(load_mixture("mix.toml"), "data", workers=4)
    Loader(load_mixture("mix.toml", packing_root="data"))

A step depends only on the tokens and the packing, so mixtures share it, and a second run only reads manifests.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.observer import Observer, ObserverGroup, SilentObserver
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.task import Step, StepInput
from datakit.errors import LoaderError, PartialError, UsageError
from datakit.loader.mixture.config import Mixture
from datakit.loader.mixture.packing_counts import HOME, CountsStep, counts_step, packed_components
from datakit.loader.sources.cache_source import CacheSource
from datakit.pipeline.graph import check_workers
from datakit.pipeline.lazy_executor import LazyExecutor
from datakit.pipeline.packing_stage import PackedTokens, plan
from datakit.pipeline.root_layout import check_root, run_directory
from datakit.storage import urls
from datakit.storage.manifest import Manifest, read_manifest


@dataclass(frozen=True)
class PackingResult:
    """A finished packing step. `reused` is True if it was done before; `seconds` is what this run spent on it."""

    component: str
    length: int
    directory: str
    manifest: Manifest
    reused: bool
    seconds: float


def pack_mixture(
    mixture: Mixture, root: str, *, workers: int | None = None, observer: Observer | None = None
) -> list[PackingResult]:
    """Count the sequences of every packed component's blocks at every length.

    `workers` is the number of concurrent tasks, one for each usable CPU by default. Raises LoaderError for a component
    that cannot be packed or is not a token cache, PartialError if tasks failed, StepFailedError if a step failed.
    """
    check_workers(workers)
    root = urls.absolute(root)
    check_root(root)
    steps = _steps(mixture, root)
    executor, options = LazyExecutor(workers, None, root), RunOptions()
    observer = observer or SilentObserver()
    if any(counted.manifest() is None for _, counted, _ in steps):
        observer = ObserverGroup([observer, EventLog(run_directory(root, HOME, options.driver))])
    results, partial = [], []
    try:
        for name, counted, step in steps:
            started, reused = time.monotonic(), counted.manifest() is not None
            try:
                manifest = run_step(step, plan(step), executor.get, options, observer)
            except PartialError as error:
                partial.append(f"{counted.stage} of {name}: {error}")
                continue
            seconds, length = time.monotonic() - started, counted.parameters.length
            results.append(PackingResult(name, length, counted.directory, manifest, reused, seconds))
    finally:
        executor.close()
    if partial:
        raise PartialError("\n".join(["packing is partial", *partial]))
    return results


def _steps(mixture: Mixture, root: str) -> list[tuple[str, CountsStep, Step]]:
    """(component, counting step, the engine's step), by component name and length."""
    steps = []
    for name, packing, source, lengths in packed_components(mixture):
        size = mixture.components[name].shuffle.block_tokens
        for length in lengths:
            if length > size:
                raise LoaderError(
                    f"component {name!r}: sequences of {length:,} tokens do not fit in blocks of {size:,}; "
                    "raise block_tokens"
                )
            counted = counts_step(root, source, size, length, packing)
            steps.append((name, counted, _step(mixture, name, counted)))
    return steps


def _step(mixture: Mixture, name: str, counted: CountsStep) -> Step:
    component, simulate = mixture.components[name], mixture.simulate
    source = component.source
    if not isinstance(source, CacheSource):
        raise LoaderError(f"component {name!r} is not a token cache; count its blocks with count_blocks")
    if urls.protocol(source.url) != urls.protocol(counted.directory):
        raise UsageError(
            f"component {name!r}: {source.url} and {counted.directory} are on different stores; choose a root on the "
            "store of the cache"
        )
    epochs = None if simulate is None else [simulate.run_tokens, simulate.target_tokens]
    tokens = PackedTokens(name, source.url, source.source, component.validation_tokens, epochs)
    manifest = read_manifest(source.url)
    cache = StepInput(manifest.stage, source.source, source.url, manifest)
    parameters, operations = asdict(counted.parameters), asdict(tokens)
    return Step(counted.stage, HOME, counted.directory, counted.fingerprint, parameters, (cache,), operations)
