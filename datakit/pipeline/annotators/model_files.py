"""Checks the models of a recipe's annotators when a run or a plan begins, so that a wrong file is refused before any
stage runs, and not when the first task loads it.

The sha256 of a model is stored in the root with the file's size, times, inode and device, like the hashes of sources
(`download/hashes.py`), so an unchanged model is hashed only once: at about 1 GB per second, before the first stage.
`datakit plan` uses stored hashes, but stores none. A task compares the sha256 once more when it loads the model.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from datakit.annotate import stage as annotate
from datakit.annotate.model_file import ModelFile
from datakit.annotate.tables import TABLES, annotator_of, heading
from datakit.download import stage as download
from datakit.download.hashes import HashCache
from datakit.errors import RefusedError, UsageError, refuse_all
from datakit.normalize import stage as normalize
from datakit.pipeline.annotators.input_files import refused_inputs
from datakit.pipeline.configuration.settings import Settings
from datakit.pipeline.graph import Graph, LocatedStep
from datakit.regular_files import open_regular
from datakit.storage import urls
from datakit.storage.fingerprint import config_of

KIND = "models"  # the stored hashes are in <root>/.cache/models-<dataset>.json
NEEDED = (download.NAME, normalize.NAME, annotate.NAME)


def require_models(graph: Graph, place: str, frozen: bool = False) -> Graph:
    """Raise RefusedError if a model that the run needs is missing or has another sha256 than the recipe says, or if
    another of its files cannot be used. If all annotate steps are done, neither is needed; then return the graph with a
    note about each such model.

    place: the recipe's, for the messages. frozen: store no hash.
    """
    nodes = [node for node in graph.nodes if node.stage == annotate.NAME]
    if not nodes:
        return graph
    refused = refused_models(nodes[0].settings, place, HashCache(graph.root, graph.dataset, frozen, KIND))
    if not all_annotated(graph):
        refuse_all([*refused, *refused_inputs(nodes[0].settings, place)])
    notes = [f"{error} (not needed now: all annotate steps are done)" for error in refused]
    return replace(graph, notes=(*graph.notes, *notes))


def all_annotated(graph: Graph) -> bool:
    """Return True if all annotate steps of a run are done."""
    located: dict[str, LocatedStep] = {}
    for node in graph.nodes:
        if node.stage in NEEDED:
            located[node.label] = graph.locate(node, located)
    return all(step.manifest is not None for step in located.values() if step.node.stage == annotate.NAME)


def model_files(settings: Settings) -> dict[str, ModelFile | UsageError]:
    """Return the model of each annotator that needs one, by the annotator's name; an error for a built-in model that is
    not installed. settings: those of the annotate stage.
    """
    found: dict[str, ModelFile | UsageError] = {}
    for name, chosen in annotate.with_files(settings.content["annotators"], settings.operations).items():
        annotator = annotator_of(name, chosen)
        if annotator is None or not hasattr(TABLES[annotator].kind, "model_file"):
            continue
        try:
            found[name] = config_of(chosen, TABLES[annotator].kind).model_file()
        except UsageError as error:
            found[name] = error
    return found


def refused_models(settings: Settings, place: str, cache: HashCache) -> list[RefusedError]:
    """Return an error for each model that is missing or has another sha256 than the recipe says. place: the recipe's,
    for the messages.
    """
    refused = list[RefusedError]()
    for name, model in model_files(settings).items():
        table = f"{place}, {heading(name, settings.content['annotators'][name])}"
        if isinstance(model, UsageError):
            refused.append(RefusedError(f"{table}: {model}"))
        else:
            refused += [RefusedError(f"{table}: {problem}") for problem in _problems(model, cache)]
    cache.save()
    return refused


def _problems(model: ModelFile, cache: HashCache) -> Iterator[str]:
    """Yield what is wrong with a model's file, and what to do."""
    path = model.path
    if not urls.is_local(path):
        yield f"the model {path} is not a file on this machine; copy it to a local path, and set `model` to this path"
        return
    try:
        found = _sha256(path, cache)
    except FileNotFoundError:
        yield f"the model {path} does not exist (expected sha256 {model.sha256}); restore it, or change `model`"
    except RefusedError as error:
        yield f"the model {path} cannot be read: {error}"
    except OSError as error:
        yield f"the model {path} cannot be read: {error.strerror}; give the path of a readable file"
    else:
        if found != model.sha256:
            yield (
                f"the sha256 of the model {path} is {found}, but {model.sha256} is expected; use the file with the "
                "expected sha256, or change `sha256` if this file is the right one"
            )


def _sha256(path: str, cache: HashCache) -> str:
    """Return the sha256 of a file, from the cache if the file is unchanged."""
    status = os.stat(path)
    known = cache.get(path, status)
    if known is not None:
        return known
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        found = hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
        after = os.fstat(file.fileno())
    if _stamp(status) != _stamp(after):
        raise RefusedError(f"{path} changed while it was read; run again once nothing is writing to it")
    cache.put(path, status, found)
    return found


def _stamp(status: os.stat_result) -> Sequence[int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
