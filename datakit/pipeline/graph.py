"""From a recipe to its steps, in the order in which they run: what each reads, its parameters, its place.

    download, normalize, signatures     one a source
    dedup                               all sources together: normalized texts and signatures
    consolidate                         normalized texts and what dedup found
    train-tokenizer, tokenize           the consolidated dataset

A node says what a step will be; where it lies depends on the identities of what it reads, and one of these is final
only when that step is done (quarantined records change it). So places are found node by node: `locate` takes what is
known of the upstream nodes, and assumes that an unfinished one will lose no record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from datakit.consolidate import stage as consolidate
from datakit.dedup import stage as dedup
from datakit.dedup.minhash import signatures_stage
from datakit.download import stage as download
from datakit.engine.task import Plan, Step, StepInput
from datakit.errors import CorruptError, NotFoundError, TokenizerError, UsageError, suggestion
from datakit.normalize import stage as normalize
from datakit.pipeline.configure import TRAIN, Configuration, configure, parameters, tolerances
from datakit.pipeline.root_layout import STAGE_NAMES, check_root, dataset_home, source_home, stage_order, step_directory
from datakit.pipeline.sources import Look, SourceState, look_at
from datakit.recipe import Recipe
from datakit.storage import urls
from datakit.storage.fingerprint import fingerprint
from datakit.storage.manifest import Manifest, find_manifest, manifest_url
from datakit.tokenize import stage as tokenize
from datakit.tokenize import train_stage
from datakit.tokenize.encoders.custom import is_custom


@dataclass(frozen=True)
class Node:
    """A step to be: `upstream` holds (role, label) of the nodes that it reads, in the order in which it reads them."""

    stage: str
    source: str | None
    dataset: str
    home: str
    version: int
    plan: Callable[[Step], Plan]
    parameters: dict[str, Any]
    operations: dict[str, Any] = field(default_factory=dict)
    upstream: tuple[tuple[str, str], ...] = ()
    state: SourceState | None = None  # of a download

    @property
    def label(self) -> str:
        """How people and other nodes call it: `normalize novels`, `dedup`."""
        return f"{self.stage} {self.source}" if self.source else self.stage


@dataclass(frozen=True)
class Located:
    """A node in its place. `manifest` is None while the step is unfinished; `settled`: its inputs are all done."""

    node: Node
    fingerprint: str
    directory: str
    manifest: Manifest | None
    settled: bool

    @property
    def identity(self) -> str:
        """What downstream builds on; assumed to be the fingerprint while the step is unfinished."""
        return self.manifest.identity if self.manifest is not None else self.fingerprint


@dataclass(frozen=True)
class Graph:
    """All nodes of a recipe, upstream first; `notes` are for people."""

    recipe: Recipe
    root: str
    nodes: tuple[Node, ...]
    notes: tuple[str, ...]


def check_workers(workers: int | None) -> None:
    """Raises UsageError where nothing could run."""
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers}; it must be at least 1")


def build(recipe: Recipe, look: Look, until: str | None = None) -> Graph:
    """The graph of a recipe, up to and with stage `until`. Lists sources; raises InputError where one is wrong."""
    settings = configure(recipe)
    wanted = _wanted(settings, until, recipe)
    check_root(look.root)
    states = {source.name: look_at(source, settings.download[source.name], look) for source in recipe.sources}
    nodes = [*_source_nodes(recipe, settings, states, look.root), *_dataset_nodes(recipe, settings, look.root)]
    nodes.sort(key=lambda node: stage_order(node.stage))  # stable: sources stay in the order of the recipe
    notes = tuple(state.note for state in states.values() if state.note)
    return Graph(recipe, look.root, tuple(node for node in nodes if node.stage in wanted), notes)


def _wanted(settings: Configuration, until: str | None, recipe: Recipe) -> list[str]:
    """The stages that the recipe has, up to and with `until`."""
    off = [(dedup, settings.dedup), (signatures_stage, settings.signatures), (train_stage, settings.train)]
    left_out = [module.NAME for module, config in [*off, (tokenize, settings.tokenize)] if config is None]
    names = [name for name in STAGE_NAMES if name not in left_out]
    if until is None:
        return names
    if until not in names:
        raise UsageError(f"--until {until}: {recipe.place} has no such stage; {suggestion(until, names)}")
    return names[: names.index(until) + 1]


def _source_nodes(recipe: Recipe, settings: Configuration, states: dict[str, SourceState], root: str) -> Iterator[Node]:
    for source in recipe.sources:
        name, home, state = source.name, source_home(root, source.name), states[source.name]

        def node(module: ModuleType, content: dict[str, Any], *roles: str, **more: Any) -> Node:
            upstream = tuple((role, f"{role} {name}") for role in roles)  # noqa: B023 - called in this round only
            return _node(module, content, upstream, source=name, dataset=name, home=home, **more)  # noqa: B023

        yield node(download, state.parameters, operations=state.operations(), state=state)
        reading = settings.normalize[name]
        content = {**parameters(reading), "source": name}
        yield node(normalize, content, download.NAME, operations=tolerances(reading))
        if settings.signatures is not None:
            limits = tolerances(settings.signatures)
            yield node(signatures_stage, parameters(settings.signatures), normalize.NAME, operations=limits)


def _dataset_nodes(recipe: Recipe, settings: Configuration, root: str) -> Iterator[Node]:
    mine = {"source": None, "dataset": recipe.name, "home": dataset_home(root, recipe.name)}
    normalized = tuple((normalize.NAME, f"{normalize.NAME} {source.name}") for source in recipe.sources)
    signed = tuple((signatures_stage.NAME, f"{signatures_stage.NAME} {source.name}") for source in recipe.sources)
    removals: tuple[tuple[str, str], ...] = ()
    if settings.dedup is not None:
        content, limits = parameters(settings.dedup), tolerances(settings.dedup)
        yield _node(dedup, content, (*normalized, *signed), operations=limits, **mine)
        removals = ((dedup.NAME, dedup.NAME),)
    content, limits = parameters(settings.consolidate), tolerances(settings.consolidate)
    yield _node(consolidate, content, (*normalized, *removals), operations=limits, **mine)
    clean = ((consolidate.NAME, consolidate.NAME),)
    trained: tuple[tuple[str, str], ...] = ()
    if settings.train is not None:
        yield _node(train_stage, parameters(settings.train), clean, **mine)
        trained = ((train_stage.NAME, train_stage.NAME),)
    if settings.tokenize is not None:
        content, operations = _tokenizer(settings)
        yield _node(tokenize, content, (*clean, *trained), operations=operations, **mine)


def _node(module: ModuleType, content: dict[str, Any], upstream: tuple[tuple[str, str], ...], **more: Any) -> Node:
    return Node(
        stage=module.NAME,
        version=module.FORMAT_VERSION,
        plan=module.plan,
        parameters=content,
        upstream=upstream,
        **more,
    )


def _tokenizer(settings: Configuration) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tokenize's content parameters and operations: a tokenizer file is known by its content, never by its path."""
    content, limits = parameters(settings.tokenize), tolerances(settings.tokenize)
    path = content["tokenizer"]
    if path == TRAIN or is_custom(path):
        return content, limits
    try:
        data = urls.read_bytes(path)
    except (NotFoundError, OSError) as error:
        raise TokenizerError(f'{path}: no tokenizer can be read there; give a tokenizer.json, or "train"') from error
    del content["tokenizer"]
    return {**content, "tokenizer_sha256": hashlib.sha256(data).hexdigest()}, {**limits, "tokenizer_path": path}


def locate(node: Node, upstream: dict[str, Located]) -> Located:
    """The node's place, and its manifest if it is done there. Raises CorruptError if another step's lies there."""
    above = [upstream[label] for _, label in node.upstream]
    number = fingerprint(node.stage, node.version, node.parameters, [entry.identity for entry in above])
    directory = step_directory(node.home, node.stage, number)
    manifest = find_manifest(directory)
    if manifest is not None and manifest.fingerprint != number:
        raise CorruptError(
            f"{manifest_url(directory)} is of step {manifest.fingerprint}, but {number} belongs there; was the "
            "directory renamed? Remove it and run again"
        )
    return Located(node, number, directory, manifest, all(entry.manifest is not None for entry in above))


def step_of(located: Located, upstream: dict[str, Located]) -> Step:
    """The step as the engine runs it; everything that it reads must be done."""
    node = located.node
    inputs = []
    for role, label in node.upstream:
        above = upstream[label]
        assert above.manifest is not None
        inputs.append(StepInput(role, above.node.source, above.directory, above.manifest))
    operations = dict(node.operations)
    if node.stage == normalize.NAME:
        above = upstream[node.upstream[0][1]]
        assert above.node.state is not None
        operations["base"] = download.files_base(above.node.state.base, above.directory)
        operations["listed"] = above.node.state.listed()
    return Step(
        node.stage, node.dataset, located.directory, located.fingerprint, node.parameters, tuple(inputs), operations
    )


def finished(located: Located, manifest: Manifest) -> Located:
    """The same step, done."""
    return replace(located, manifest=manifest)
