"""Runs a mixture's packing steps (one per packed component and sequence length), and rejects unsuitable components.

    pack_mixture(load_mixture("mix.toml"), "data", workers=4)
    Loader(load_mixture("mix.toml", packing_root="data"))

A step depends only on the tokens, the length of a block or sequence and the packing, so several mixtures can share it.
Finished steps are reused: a second run only reads manifests.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from datakit.engine.ledger.ledger import driver_name
from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.observer import Observer, RunStart
from datakit.engine.observe.run_report import RunReport
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Step, StepInput
from datakit.errors import LoaderError, PartialError, UsageError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import USE
from datakit.loader.mixture.config import Mixture
from datakit.loader.mixture.packing_counts import FORMAT_VERSION, HOME, CountsStep, counts_step, packed_components
from datakit.loader.sources.cache_source import CacheSource
from datakit.pipeline.graph import check_workers
from datakit.pipeline.lazy_executor import LazyExecutor
from datakit.pipeline.packing_stage import PackedTokens, plan
from datakit.pipeline.root_layout import check_root, require_writable, run_directory
from datakit.storage import urls
from datakit.storage.manifest import Manifest, read_manifest


@dataclass(frozen=True)
class PackingResult:
    """A finished packing step. `reused` is True if it was already done; `seconds` is the time that this run spent on
    it.
    """

    component: str
    length: int
    directory: str
    manifest: Manifest
    reused: bool
    seconds: float


def pack_mixture(
    mixture: Mixture, root: str, *, workers: int | None = None, observer: Observer | None = None
) -> list[PackingResult]:
    """Count the sequences in each block of every packed component, for every sequence length that the mixture uses.

    `workers` is the number of tasks that run at a time, by default one per usable CPU. Raises LoaderError for a
    component that cannot be packed or is not a token cache, PartialError if tasks failed, and StepFailedError if a step
    cannot continue.
    """
    check_workers(workers)
    root = urls.absolute(root)
    check_root(root, HOME)
    steps = _steps(mixture, root)
    driver = driver_name()
    log = EventLog(run_directory(root, HOME, driver))
    start = RunStart(driver, log.url, HOME, root, options={"workers": workers})
    executor = LazyExecutor(workers, None, root)
    results, partial = [], []
    with (
        RunReport(start, observer or Observer(), [log]) as report,
        Lease(root, USE, "datakit mixture pack", report.note) as lease,
    ):
        try:
            lease.hold(packing.counts.directory for packing in steps)
            lease.hold_finished(cache.directory for packing in steps for cache in packing.step.inputs)
            if any(packing.counts.manifest() is None for packing in steps):
                require_writable(root)
                report.begin()
                lease.begin()
            for packing in steps:
                try:
                    results.append(_run(packing, executor, report.observer, driver))
                except PartialError as error:
                    partial.append(f"{packing.counts.stage} of {packing.component}: {error}")
        finally:
            executor.close()
        if partial:
            raise PartialError("\n".join(["packing is partial", *partial]))
    return results


@dataclass(frozen=True)
class _PackingStep:
    """A step that counts one component's sequences for one length. counts: its description for the loader. step: its
    description for the engine.
    """

    component: str
    counts: CountsStep
    step: Step


def _run(packing: _PackingStep, executor: LazyExecutor, observer: Observer, driver: str) -> PackingResult:
    started, reused = time.monotonic(), packing.counts.manifest() is not None
    manifest = run_step(packing.step, plan(packing.step), executor.get, observer, driver)
    seconds, length = time.monotonic() - started, packing.counts.parameters.length
    return PackingResult(packing.component, length, packing.counts.directory, manifest, reused, seconds)


def _steps(mixture: Mixture, root: str) -> list[_PackingStep]:
    steps = []
    for name, packing, source, lengths in packed_components(mixture):
        size = mixture.components[name].shuffle.block_tokens
        for length in lengths:
            if length > size:
                raise LoaderError(
                    f"component {name!r}: sequences of {length:,} tokens do not fit in blocks of {size:,}; "
                    "increase block_tokens"
                )
            counted = counts_step(root, source, size, length, packing)
            steps.append(_PackingStep(name, counted, _step(mixture, name, counted)))
    return steps


def _step(mixture: Mixture, name: str, counted: CountsStep) -> Step:
    component, simulate = mixture.components[name], mixture.simulate
    source = component.source
    if not isinstance(source, CacheSource):
        raise LoaderError(f"component {name!r} is not a token cache; count its sequences with count_blocks")
    if urls.protocol(source.url) != urls.protocol(counted.directory):
        raise UsageError(
            f"component {name!r}: {source.url} and {counted.directory} are on different stores; choose a root on the "
            "same store as the cache"
        )
    epochs = None if simulate is None else [simulate.run_tokens, simulate.target_tokens]
    tokens = PackedTokens(name, source.url, source.source, component.validation_tokens, epochs)
    manifest = read_manifest(source.url)
    # the fingerprint need not cover the cache, because the step's parameters identify the tokens
    cache = StepInput(manifest.stage, source.source, source.url, manifest, covered=False)
    parameters, operations = asdict(counted.parameters), asdict(tokens)
    return Step(
        counted.stage, HOME, counted.directory, counted.fingerprint, parameters, (cache,), operations, FORMAT_VERSION
    )
