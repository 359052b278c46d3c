"""Makes a batch of a training run again from its caches, and compares it with the digest that the run logged.

The mixture is rebuilt from its description in the run's manifest or newest checkpoint, not from a run file, and the
rebuilt mixture must have the recorded fingerprint. A digest covers the rows of the run's first process.

By default, no batch is read. With `--deep`, the batch of the last logged step is made again; with `--training-step`,
that of the given step. Cost: reading the windows of blocks from which the batch is drawn, and as much memory as
training needs for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from datakit.cache.reader import Cache, open_cache
from datakit.errors import DatakitError, LoaderError, UsageError
from datakit.loader import Component, Exclusion, Loader, Mixture, Packing, Schedule, Shuffle
from datakit.loader.mixture.config import SimulatedEpochs, Stage
from datakit.loader.mixture.validation_split import training_source
from datakit.loader.reading.digest import batch_digest
from datakit.loader.sources.cache_source import CacheSource
from datakit.trainer.metrics.json_lines import FILE_NAME
from datakit.validate.finding import Result
from datakit.validate.subject import Subject
from datakit.validate.training.metrics import read_rows

DIGEST, ROWS = "data/batch_xxh3", "data/batch_rows"
MEMORY = 1 << 40  # in effect no limit: the sizes of the recorded windows decide
REMEDY = "check the run's caches with `datakit validate`; if they are sound, the metrics were altered"


def check(step: Subject, result: Result) -> None:
    """Make one logged batch again, and compare its digest."""
    if not step.deep and step.training_step is None:
        return result.skip("without --deep or --training-step, no batch is made again")
    if not step.finished:
        return _cannot(step, f"{step.directory} is unfinished, so no manifest names its caches", result)
    if missing := step.missing("tokenize"):
        return _cannot(step, missing, result)
    rows = read_rows(step.url(FILE_NAME))
    logged = [number for number, row in rows.items() if DIGEST in row]
    number = step.training_step if step.training_step is not None else max(logged, default=0)
    if number not in logged:
        return _unlogged(step, logged, result)
    try:
        found = _digest(step, number, int(rows[number][ROWS]))
    except LoaderError as error:
        return result.find(step.manifest_url, f"describes a mixture that its caches cannot give: {error}", REMEDY)
    result.count("batch")
    if found != rows[number][DIGEST]:
        difference = f"says that the batch of step {number} has the digest {rows[number][DIGEST]}; it has {found}"
        result.find(step.url(FILE_NAME), difference, REMEDY)
    return None


def _cannot(step: Subject, reason: str, result: Result) -> None:
    """Report why no batch can be made again. Raises UsageError if the user asked for that of a certain step."""
    if step.training_step is not None:
        raise UsageError(f"--training-step {step.training_step}: {reason}")
    result.skip(reason)


def _unlogged(step: Subject, logged: list[int], result: Result) -> None:
    known = f"steps {min(logged)} to {max(logged)} have rows" if logged else "an earlier version trained this run"
    _cannot(step, f"{step.url(FILE_NAME)} holds no digest of this step's batch; {known}", result)


def _digest(step: Subject, number: int, rows: int) -> str:
    record = step.manifest.details["mixture"]
    mixture = mixture_of(record, [open_cache(one.directory) for one, _ in step.inputs_of("tokenize")])
    size = mixture.batches.at(number - 1)
    with Loader(mixture, host=0, hosts=max(1, size // rows)) as loader:
        if loader.record()["fingerprint"] != record["fingerprint"]:
            raise LoaderError("the fingerprint of the rebuilt mixture differs from the recorded one")
        return batch_digest(loader[number - 1])


def mixture_of(record: Mapping[str, Any], caches: list[Cache]) -> Mixture:
    """Rebuild a mixture from its description. Raises LoaderError if no cache holds the tokens of a component."""
    simulate = SimulatedEpochs(*record["simulate"]) if record["simulate"] else None
    components = {
        name: _component(name, said, simulate, caches) for name, said in record["components"].items()
    }  # fmt: skip
    return Mixture(
        components,
        [Stage(weights, start_slot=slot) for slot, weights in record["stages"]],
        seed=record["seed"],
        sequence_length=_schedule(record["sequence_length"]),
        batch_size=_schedule(record["batch_size"]),
        block=record["block"],
        stop=record["stop"],
        final_batch=record["final_batch"],
        simulate=simulate,
        memory_bytes=MEMORY,
        exclusions=[Exclusion(documents, step) for step, documents in record.get("exclusions", [])],
    )


def _schedule(pairs: list[list[int]]) -> Schedule:
    return Schedule(tuple((step, value) for step, value in pairs))


def _component(name: str, said: Mapping[str, Any], simulate: SimulatedEpochs | None, caches: list[Cache]) -> Component:
    shuffle = Shuffle(said["shuffle"], said["block_tokens"], said["window_blocks"])
    for source in _sources(caches):
        component = Component(source, _packing(said["packing"]), shuffle, said["validation_tokens"], said["max_epochs"])
        try:
            if training_source(component, name, simulate).identity == said["identity"]:
                return component
        except DatakitError:  # too small to hold out that many tokens, so it is not the run's source
            continue
    raise LoaderError(f"none of the run's caches holds the tokens of component {name!r}")


def _sources(caches: list[Cache]) -> Iterator[CacheSource]:
    for cache in caches:
        yield CacheSource(cache)
        yield from (CacheSource(cache, source) for source in cache.part_names())


def _packing(said: str | None) -> Packing | None:
    if said is None:
        return None
    policy, _, most = said.partition("-")
    return Packing(policy, int(most or 0))
