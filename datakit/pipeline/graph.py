"""Determines a recipe's steps (up to `--until`) and their order, inputs, fingerprints and directories; refuses a
directory that holds a step with other settings.

    download, normalize, signatures     one per source
    annotate                            one per source: normalized texts
    rules                               all sources together: normalized texts (only their ids and columns), attributes
    dedup                               all sources together: normalized texts, signatures, what the rules remove; if
                                        `prefer` names a column of an annotator, also the output of annotate
    passages                            all sources together: normalized texts, and what the rules and dedup remove
    select                              normalized texts (only their ids), and what the rules and dedup remove; if texts
                                        are edited, also the texts and the spans of annotate and passages; for rules and
                                        buckets of [select], also the output of annotate
    consolidate                         normalized texts and the selection; no other stage reads its output
    train-tokenizer                     normalized texts and the selection
    contract                            the trained tokenizer, if the recipe trains one; otherwise nothing
    tokenize                            normalized texts, the selection and the contract

A step's directory depends on the identities of its inputs. The identity of an input is final only once that input is
finished, because quarantined records change it. So directories are determined node by node: `Graph.locate` is given the
upstream steps that are already located, and assumes that unfinished upstream steps will quarantine no records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from datakit.annotate import stage as annotate
from datakit.annotate.model_server.phase import ANSWERS
from datakit.cache.layout import TOKENIZER_FILE
from datakit.consolidate import stage as consolidate
from datakit.dedup import stage as dedup
from datakit.dedup.minhash import signatures_stage as signatures
from datakit.dedup.survivors import score_columns
from datakit.download import stage as download
from datakit.download.hub_tokenizer import hub_tokenizer
from datakit.engine.disk_limits import DiskLimits
from datakit.engine.ledger.code_changes import made_with_other_code
from datakit.engine.task import Step, StepInput
from datakit.engine.user_modules import CODE_FOLDER, hash_of
from datakit.errors import (
    ChangedInputError,
    CorruptError,
    RefusedError,
    TokenizerError,
    UsageError,
    refuse_all,
    suggestion,
)
from datakit.normalize import stage as normalize
from datakit.passages import stage as passages
from datakit.pipeline.configuration.configure import configure, disk_limits
from datakit.pipeline.configuration.settings import Configuration, Settings
from datakit.pipeline.configuration.tokenizer_file import CHOICES
from datakit.pipeline.earlier_steps import EarlierStep, find_earlier
from datakit.pipeline.recipe_checks.rule_tables import annotators_of
from datakit.pipeline.resolve_sources import ListingOptions, SourceState, resolve_source
from datakit.pipeline.root_layout import TOKENIZERS, answers_of, check_root, step_directory
from datakit.recipe import Recipe, is_hub_name
from datakit.rules import stage as rules
from datakit.select import stage as select
from datakit.select.final.plan import RULES
from datakit.select.plan_edits import EDITS
from datakit.storage import urls
from datakit.storage.fingerprint import fingerprint
from datakit.storage.latest import current_cache
from datakit.storage.manifest import Manifest, find_manifest, manifest_url
from datakit.storage.selection.buckets import FOLDER as BUCKETS
from datakit.tokenize import contract_stage, train_stage
from datakit.tokenize import stage as tokenize
from datakit.tokenize.chat_format import TEMPLATE

ROOT = "{root}/"  # a tokenizer that begins so is that of a dataset in the command's root
# stage -> the stages whose output it reads if they are enabled, in the order of its inputs
READS: dict[ModuleType, tuple[ModuleType, ...]] = {
    download: (),
    normalize: (download,),
    annotate: (normalize,),
    signatures: (normalize,),
    rules: (normalize, annotate),
    dedup: (normalize, signatures, rules, annotate),  # annotate only if `prefer` names a column of an annotator
    passages: (normalize, rules, dedup),
    select: (normalize, rules, dedup, annotate, passages),  # the last two only if its tables need them
    consolidate: (normalize, select),
    train_stage: (normalize, select),
    contract_stage: (train_stage,),
    tokenize: (normalize, select, contract_stage),
}


@dataclass(frozen=True)
class Node:
    """A step of a recipe. `upstream` holds the nodes whose output the step reads, in the order of its inputs."""

    module: ModuleType  # the stage's module, with NAME, FORMAT_VERSION and plan
    source: str | None  # None for a step of the whole dataset
    dataset: str  # the source's name or, without a source, the recipe's
    settings: Settings
    upstream: tuple[Node, ...] = ()
    state: SourceState | None = None  # only for a download

    @property
    def stage(self) -> str:
        """The stage's name."""
        return self.module.NAME

    @property
    def label(self) -> str:
        """The name shown to users, for example `normalize novels` or `dedup`."""
        return f"{self.stage} {self.source}" if self.source else self.stage


@dataclass(frozen=True)
class LocatedStep:
    """A node and the directory of its step. `manifest` is None until the step is done. `settled` is True if all inputs
    of the step are done.
    """

    node: Node
    fingerprint: str
    directory: str
    manifest: Manifest | None
    settled: bool
    earlier: tuple[EarlierStep, ...] = ()  # predecessors from earlier versions of datakit; empty if the step is done

    @property
    def identity(self) -> str:
        """The step's identity, from which downstream fingerprints are computed; for an unfinished step, its
        fingerprint.
        """
        return self.manifest.identity if self.manifest is not None else self.fingerprint


@dataclass(frozen=True)
class Graph:
    """All nodes of a recipe, upstream nodes first. notes: messages for the user. limits: the limits on disk use."""

    dataset: str
    root: str
    nodes: tuple[Node, ...]
    notes: tuple[str, ...]
    limits: DiskLimits = field(default_factory=DiskLimits)

    def directories(self) -> list[str]:
        """Return the directory of every step, assuming that no step quarantines records. Reads no manifest."""
        numbers: dict[str, str] = {}
        for node in self.nodes:
            numbers[node.label] = _number(node, [numbers[above.label] for above in node.upstream])
        return [self._directory(node, numbers[node.label]) for node in self.nodes]

    def directory(self, node: Node, located: Mapping[str, LocatedStep]) -> str:
        """Return the directory of the node's step without reading its manifest. located: as in `locate`."""
        return self._directory(node, _number(node, [located[above.label].identity for above in node.upstream]))

    def _directory(self, node: Node, number: str) -> str:
        return step_directory(self.root, node.dataset, node.source, node.stage, number)

    def locate(self, node: Node, located: Mapping[str, LocatedStep]) -> LocatedStep:
        """Return the node with the directory of its step and, if the step is done, the step's manifest. located: the
        steps of the upstream nodes, by label. Raises CorruptError if the manifest belongs to another step.
        """
        inputs = [located[above.label] for above in node.upstream]
        number = _number(node, [above.identity for above in inputs])
        directory = self._directory(node, number)
        manifest = find_manifest(directory)
        if manifest is not None and manifest.fingerprint != number:
            raise CorruptError(
                f"{manifest_url(directory)} belongs to step {manifest.fingerprint}, but {number} was expected; was the "
                "directory renamed? Remove it and run again"
            )
        settled = all(above.manifest is not None for above in inputs)
        labels = dict.fromkeys(above.label for above in _upstream(node))
        earlier = () if manifest is not None else _earlier(node, directory, [located[label] for label in labels])
        return LocatedStep(node, number, directory, manifest, settled, earlier)


def _number(node: Node, identities: Sequence[str]) -> str:
    """Return the fingerprint of the node's step. identities: those of its inputs."""
    return fingerprint(node.stage, node.module.FORMAT_VERSION, node.settings.content, identities)


def _upstream(node: Node) -> Iterator[Node]:
    """Yield all nodes upstream of a node; a node may be yielded several times."""
    for above in node.upstream:
        yield above
        yield from _upstream(above)


def _earlier(node: Node, directory: str, upstream: Sequence[LocatedStep]) -> tuple[EarlierStep, ...]:
    remade = {step.identity for above in upstream for step in above.earlier if step.identity is not None}
    current = {above.identity for above in upstream}
    content = node.settings.content
    return tuple(
        find_earlier(directory, node.stage, node.module.FORMAT_VERSION, content, inputs=current, remade=remade)
    )


def check_workers(workers: int | None) -> None:
    """Raise UsageError if the number of workers is below 1."""
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers}; it must be at least 1")


def build(recipe: Recipe, root: str, options: ListingOptions, until: str | None = None) -> Graph:
    """List the files of a recipe's sources, and build the recipe's graph, up to and including stage `until`. Raises
    InputError.
    """
    recipe, notes = _with_tokenizer_file(recipe, root, options)
    configuration = configure(recipe)
    modules = _modules(configuration, until, recipe.place)
    check_root(root, recipe.name)
    selections = configuration[download.NAME]
    states, refused = list[SourceState](), list[RefusedError]()
    for source in recipe.sources:
        try:
            states.append(resolve_source(source, selections[source.name].content, root, options))
        except RefusedError as error:
            refused.append(error)
    refuse_all(refused)
    return _graph(recipe, root, configuration, modules, states=states, notes=notes)


def build_listed(recipe: Recipe, root: str, states: Sequence[SourceState], until: str | None = None) -> Graph:
    """Build the recipe's graph from the given states of its sources, without listing the sources. Raises InputError."""
    recipe, notes = _with_tokenizer_file(recipe, root, ListingOptions(dry_run=True))
    configuration = configure(recipe)
    modules = _modules(configuration, until, recipe.place)
    return _graph(recipe, root, configuration, modules, states=states, notes=notes)


def _graph(
    recipe: Recipe,
    root: str,
    configuration: Configuration,
    modules: Sequence[ModuleType],
    *,
    states: Sequence[SourceState],
    notes: Sequence[str],
) -> Graph:
    """Return the graph of a recipe. states: the states of its sources, in order. notes: messages for the user."""
    nodes = [
        Node(download, state.name, state.name, Settings(state.content, state.operations()), state=state)
        for state in states
    ]
    for module in modules[1:]:
        for source, settings in configuration[module.NAME].items():
            reads = _reads(module, settings, annotators_of(recipe))
            upstream = tuple(node for read in reads for node in nodes if _feeds(node, read, source))
            nodes.append(Node(module, source, source or recipe.name, settings, upstream))
    notes = (*notes, *(state.note for state in states if state.note))
    return Graph(recipe.name, root, tuple(nodes), notes, disk_limits(recipe))


def _reads(module: ModuleType, settings: Settings, annotators: Sequence[str]) -> tuple[ModuleType, ...]:
    """Return the stages whose output a step reads. select reads the tables of annotate only for edits of their spans,
    and for rules and buckets of its own, and those of passages only for edits of their spans; dedup reads those of
    annotate only if `prefer` names a column of an annotator. annotators: those of the recipe.
    """
    content, unread = settings.content, list[ModuleType]()
    if module is select:
        tables = {edit["spans"].partition(".")[0] for edit in content.get(EDITS, {}).values()}
        unread += [] if tables - {passages.NAME} or {RULES, BUCKETS} & set(content) else [annotate]
        unread += [] if passages.NAME in tables else [passages]
    scores = [column.partition(".") for column in score_columns(content.get("prefer", ()))] if module is dedup else []
    if module is dedup and not any(dot and name in annotators for name, dot, _ in scores):
        unread.append(annotate)
    return tuple(read for read in READS[module] if read not in unread)


def _with_tokenizer_file(recipe: Recipe, root: str, options: ListingOptions) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe and notes for the user. If the recipe's tokenizer is the name of a model on the Hub, the name
    is replaced by the path of the model's tokenizer.json, and a note gives the revision and the folder in which
    `datakit run` keeps this file, and the chat template if the recipe needs it. If it is a dataset of the root, it is
    replaced by the tokenizer.json of the dataset's current cache.
    """
    table, name = recipe.tokenize or {}, (recipe.tokenize or {}).get("tokenizer")
    if isinstance(name, str) and name.startswith(ROOT):
        return replace(recipe, tokenize={**table, "tokenizer": _tokenizer_of(name.removeprefix(ROOT), root)}), ()
    if not is_hub_name(name):
        return recipe, ()
    folder = urls.join(root, recipe.name, TOKENIZERS)
    try:
        template = table.get("chat_format") == TEMPLATE
        commit, path = hub_tokenizer(name, folder, template=template, offline=options.offline, dry_run=options.dry_run)
    except TokenizerError as error:
        raise TokenizerError(f"{error}; {CHOICES}") from error
    note = f"tokenizer {name} of the Hugging Face Hub: revision {commit}, which `datakit run` keeps in {folder}"
    return replace(recipe, tokenize={**table, "tokenizer": path}), (note,)


def _tokenizer_of(dataset: str, root: str) -> str:
    """Return the URL of the tokenizer.json in the current cache of a dataset of the root."""
    place = urls.join(urls.absolute(root), dataset)
    found = current_cache(place)
    if found is None:
        raise TokenizerError(
            f"{place} has no token cache, whose tokenizer the recipe uses; run `datakit run {dataset}`"
        )
    return urls.join(found[0], TOKENIZER_FILE)


def _feeds(node: Node, read: ModuleType, source: str | None) -> bool:
    """Return True if `node` belongs to stage `read` and is an input of a step of `source` (None: a step of the
    whole dataset).
    """
    return node.module is read and source in (None, node.source)


def _modules(configuration: Configuration, until: str | None, place: str) -> list[ModuleType]:
    """Return the modules of the stages in the recipe, up to and including `until`."""
    modules = [module for module in READS if module.NAME in configuration]
    names = [module.NAME for module in modules]
    if until is None:
        return modules
    if until not in names:
        known = {module.NAME for module in READS}
        reason = "leaves this stage out" if until in known else "has no such stage"
        raise UsageError(f"--until {until}: {place} {reason}; {suggestion(until, names)}")
    return modules[: names.index(until) + 1]


def engine_step(located: LocatedStep, upstream: Mapping[str, LocatedStep]) -> Step:
    """Convert a step to the form that the engine runs. All inputs of the step must be done."""
    node = located.node
    inputs = [upstream[above.label] for above in node.upstream]
    operations = node.settings.operations
    if node.stage == normalize.NAME:
        operations = {**operations, **_reading(inputs[0])}
    if node.stage == annotate.NAME:
        operations = {**operations, ANSWERS: urls.relative(answers_of(located.directory), located.directory)}
    read, content = tuple(_step_input(above) for above in inputs), node.settings.content
    return Step(
        node.stage, node.dataset, located.directory, located.fingerprint, content, read, operations,
        node.module.FORMAT_VERSION, _code_hash(node),
    )  # fmt: skip


def changed_code(located: LocatedStep) -> str:
    """Return a note for the user if the file of the step's transform has changed since the step was made (in whole or
    in part) but `transform_version` has not; otherwise, return "". Raises ChangedInputError if it is the file of an
    annotator.
    """
    code, finished, content = _code_hash(located.node), located.manifest is not None, located.node.settings.content
    recorded = made_with_other_code(located.directory, code, finished=finished) if code else ""
    if not recorded:
        return ""
    made = "this step was made" if finished else "some tasks of this unfinished step were done"
    if located.node.stage == annotate.NAME:
        raise ChangedInputError(f"{located.node.label}: {annotate.changed_message(content, code, recorded, made)}")
    return (
        f"{located.node.label}: the file of transform {content['transform']!r} has changed since {made}; if the change "
        f"affects the output, change transform_version (now {content['transform_version']!r}), so that the step is "
        "made again"
    )


def _code_hash(node: Node) -> str:
    """Return the hash of the file that defines the node's transform, or the hashes of those of its annotators; "" if
    there is no function of the user or no such file.
    """
    if node.stage == annotate.NAME:
        return annotate.code_of(node.settings.operations)
    transform = node.settings.content.get("transform")
    return hash_of(transform, node.settings.operations.get(CODE_FOLDER, "")) if transform else ""


def _reading(downloaded: LocatedStep) -> dict[str, Any]:
    """Return the part of normalize's `operations` that describes its input: the directory to which the files' paths are
    relative, and the expected state of the files that are read in place.
    """
    state = downloaded.node.state
    assert state is not None
    return {"base": download.files_base(state.base, downloaded.directory), "listed": state.listed()}


def _step_input(above: LocatedStep) -> StepInput:
    assert above.manifest is not None
    return StepInput(above.node.stage, above.node.source, above.directory, above.manifest)
