"""Builds a recipe's steps in the order in which they run, each with its inputs, settings and directory.

    download, normalize, signatures     one per source
    dedup                               all sources together: normalized texts and signatures
    consolidate                         normalized texts and the removals found by dedup
    train-tokenizer, tokenize           the consolidated dataset

A step's directory depends on the identities of its inputs, and an input's identity is final only once it has finished
(quarantined records change it). So directories are found node by node: `Graph.locate` takes the located upstream
steps and assumes that an unfinished one will lose no records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from datakit.consolidate import stage as consolidate
from datakit.dedup import stage as dedup
from datakit.dedup.minhash import signatures_stage as signatures
from datakit.download import stage as download
from datakit.engine.task import Step, StepInput
from datakit.errors import CorruptError, UsageError, suggestion
from datakit.normalize import stage as normalize
from datakit.pipeline.configure import Configuration, Settings, configure
from datakit.pipeline.resolve_sources import ListingOptions, SourceState, resolve_source
from datakit.pipeline.root_layout import check_root, step_directory
from datakit.recipe import Recipe
from datakit.storage.fingerprint import fingerprint
from datakit.storage.manifest import Manifest, find_manifest, manifest_url
from datakit.tokenize import stage as tokenize
from datakit.tokenize import train_stage

READS: dict[ModuleType, tuple[ModuleType, ...]] = {  # in the order of the flow; stages that are left out are not read
    download: (),
    normalize: (download,),
    signatures: (normalize,),
    dedup: (normalize, signatures),
    consolidate: (normalize, dedup),
    train_stage: (consolidate,),
    tokenize: (consolidate, train_stage),
}


@dataclass(frozen=True)
class Node:
    """A step to run. `upstream` lists the nodes it reads, in the order in which it reads them."""

    module: ModuleType  # the stage's module, with NAME, FORMAT_VERSION and plan
    source: str | None  # None for a step of the whole dataset
    dataset: str  # the recipe's name, or the source's
    settings: Settings
    upstream: tuple[Node, ...] = ()
    state: SourceState | None = None  # only for a download

    @property
    def stage(self) -> str:
        """The stage's name."""
        return self.module.NAME

    @property
    def label(self) -> str:
        """The name shown to users: `normalize novels`, `dedup`."""
        return f"{self.stage} {self.source}" if self.source else self.stage


@dataclass(frozen=True)
class LocatedStep:
    """A node and its directory. `manifest`: None while the step is unfinished; `settled`: all its inputs are done."""

    node: Node
    fingerprint: str
    directory: str
    manifest: Manifest | None
    settled: bool

    @property
    def identity(self) -> str:
        """The identity that downstream steps build on; while the step is unfinished, the fingerprint is assumed."""
        return self.manifest.identity if self.manifest is not None else self.fingerprint


@dataclass(frozen=True)
class Graph:
    """All nodes of a recipe, upstream first; `notes` are for the user."""

    dataset: str
    root: str
    nodes: tuple[Node, ...]
    notes: tuple[str, ...]

    def locate(self, node: Node, located: Mapping[str, LocatedStep]) -> LocatedStep:
        """Find the node's directory, and the manifest if it is done. Raises CorruptError if it is another step's."""
        inputs = [located[above.label] for above in node.upstream]
        identities = [above.identity for above in inputs]
        number = fingerprint(node.stage, node.module.FORMAT_VERSION, node.settings.content, identities)
        directory = step_directory(self.root, node.dataset, node.source, node.stage, number)
        manifest = find_manifest(directory)
        if manifest is not None and manifest.fingerprint != number:
            raise CorruptError(
                f"{manifest_url(directory)} belongs to step {manifest.fingerprint}, but {number} was expected; was the "
                "directory renamed? Remove it and run again"
            )
        return LocatedStep(node, number, directory, manifest, all(above.manifest is not None for above in inputs))


def check_workers(workers: int | None) -> None:
    """Raise UsageError if the number of workers is below 1."""
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers}; it must be at least 1")


def build(recipe: Recipe, root: str, options: ListingOptions, until: str | None = None) -> Graph:
    """Build the graph of a recipe, up to and including stage `until`. Lists the sources; raises InputError."""
    configuration = configure(recipe)
    modules = _modules(configuration, until, recipe.place)
    check_root(root)
    selections = configuration[download.NAME]
    states = [resolve_source(source, selections[source.name].content, root, options) for source in recipe.sources]
    nodes = [
        Node(download, state.name, state.name, Settings(state.content, state.operations()), state=state)
        for state in states
    ]
    for module in modules[1:]:
        for source, settings in configuration[module.NAME].items():
            upstream = tuple(node for read in READS[module] for node in nodes if _feeds(node, read, source))
            nodes.append(Node(module, source, source or recipe.name, settings, upstream))
    return Graph(recipe.name, root, tuple(nodes), tuple(state.note for state in states if state.note))


def _feeds(node: Node, read: ModuleType, source: str | None) -> bool:
    """Return True if a step of `source` (None: of the dataset) that reads stage `read` reads this node."""
    return node.module is read and source in (None, node.source)


def _modules(configuration: Configuration, until: str | None, place: str) -> list[ModuleType]:
    """Return the modules of the stages in the recipe, up to and including `until`."""
    modules = [module for module in READS if module.NAME in configuration]
    names = [module.NAME for module in modules]
    if until is None:
        return modules
    if until not in names:
        raise UsageError(f"--until {until}: {place} has no such stage; {suggestion(until, names)}")
    return modules[: names.index(until) + 1]


def engine_step(located: LocatedStep, upstream: Mapping[str, LocatedStep]) -> Step:
    """Convert a step to the form the engine runs; all its inputs must be done."""
    node = located.node
    inputs = [upstream[above.label] for above in node.upstream]
    operations = node.settings.operations
    if node.stage == normalize.NAME:
        operations = {**operations, **_reading(inputs[0])}
    return Step(
        stage=node.stage,
        dataset=node.dataset,
        directory=located.directory,
        fingerprint=located.fingerprint,
        parameters=node.settings.content,
        inputs=tuple(_step_input(above) for above in inputs),
        operations=operations,
    )


def _reading(downloaded: LocatedStep) -> dict[str, Any]:
    """Return the operations of normalize: its files' base, and the expected state of files read in place."""
    state = downloaded.node.state
    assert state is not None
    return {"base": download.files_base(state.base, downloaded.directory), "listed": state.listed()}


def _step_input(above: LocatedStep) -> StepInput:
    assert above.manifest is not None
    return StepInput(above.node.stage, above.node.source, above.directory, above.manifest)
