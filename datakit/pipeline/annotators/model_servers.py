"""Computes, before a run starts, what would be sent to the model servers of a recipe: how many documents, how much
text, to which host, and at what cost. Refuses a run whose keys are not set.

The documents are counted exactly if normalize is done: those whose answers are stored are left out. This takes reading
the ids of the documents and the stored answers, but no text. So the number of bytes is an upper limit if some documents
have been answered, or are longer than `max_bytes`. The number of tokens is guessed from the number of bytes.

Memory: the ids and the stored answers of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from datakit.annotate import stage as annotate
from datakit.annotate.model_server.answer_store import AnswerStore, open_documents
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.key import server_key
from datakit.annotate.model_server.phase import servers_of
from datakit.annotate.model_server.spending import FOLDER, UNIT, Ledger, cost_of
from datakit.errors import ModelServerError, RefusedError, refuse_all
from datakit.normalize import stage as normalize
from datakit.pipeline.annotators.model_files import all_annotated
from datakit.pipeline.configuration.settings import Settings
from datakit.pipeline.graph import Graph, LocatedStep
from datakit.pipeline.root_layout import answers_of
from datakit.storage import urls
from datakit.storage.fingerprint import config_of
from datakit.storage.manifest import Manifest
from datakit.storage.parquet import read_shard

BYTES_PER_TOKEN = 4  # a guess, about right for English


@dataclass(frozen=True)
class ServerRequests:
    """The requests that a run would send to one model server about one source.

    documents: those of the source; open: those about which the server would be asked, which is the number of requests
    if none has to be repeated; text_bytes: the most bytes of text that would be sent. All are None until normalize is
    done. cost: an estimate; None if it is unknown or no price is given. sent: the requests that the account of this
    server's answers holds so far.
    """

    name: str
    source: str
    host: str
    documents: int | None
    open: int | None
    text_bytes: int | None
    cost: float | None
    sent: int
    max_requests: int


def model_servers(settings: Settings) -> dict[str, ModelServerConfig]:
    """Return the settings of the model servers, by the annotator's name. settings: those of the annotate stage."""
    paths = settings.operations.get(annotate.PATHS, {})
    found = servers_of(settings.content["annotators"])
    return {name: config_of(values | paths.get(name, {}), ModelServerConfig) for name, values in found.items()}


def require_keys(graph: Graph, place: str, *, on_cluster: bool) -> Graph:
    """Raise RefusedError if the key of a model server that the run needs is not set here, and return the graph. On a
    cluster, only the nodes need the keys, so only a note is added. place: the recipe's, for the messages.
    """
    nodes = [node for node in graph.nodes if node.stage == annotate.NAME]
    missing = list(_missing_keys(nodes[0].settings, place)) if nodes else []
    if not missing or all_annotated(graph):
        return graph
    if not on_cluster:
        refuse_all([RefusedError(message) for message in missing])
    return replace(graph, notes=(*graph.notes, *missing))


def _missing_keys(settings: Settings, place: str) -> Iterator[str]:
    for name, config in model_servers(settings).items():
        try:
            server_key(name, config)
        except ModelServerError as error:
            yield f"{place}: {error}"


def planned_requests(graph: Graph, located: Mapping[str, LocatedStep]) -> tuple[ServerRequests, ...]:
    """Return what the unfinished annotate steps of a run would send. located: all steps, by label."""
    found = list[ServerRequests]()
    for node in graph.nodes:
        if node.stage != annotate.NAME or located[node.label].manifest is not None:
            continue
        (above,) = (located[one.label] for one in node.upstream if one.stage == normalize.NAME)
        for name, config in model_servers(node.settings).items():
            answers = answers_of(located[node.label].directory)
            found.append(_requests(name, config, str(node.source), AnswerStore.find(answers, config), above))
    return tuple(found)


def _requests(
    name: str, config: ModelServerConfig, source: str, store: AnswerStore | None, above: LocatedStep
) -> ServerRequests:
    sent = Ledger(urls.join(store.folder, FOLDER)).totals().requests if store is not None else 0
    if above.manifest is None:
        return ServerRequests(name, source, config.host, None, None, None, None, sent, config.max_requests)
    documents, left, size = 0, 0, 0
    for ids, text in _partitions(above.directory, above.manifest):
        stored = store.read(ids) if store is not None else {}
        mine = len(open_documents(ids, stored, config.attempts))
        documents, left, size = documents + len(ids), left + mine, size + min(text, mine * config.max_bytes)
    cost = None
    if config.price_per_1k_input_tokens or config.price_per_1k_output_tokens:
        prompts = len(config.prompt.encode()) + len(config.system.encode())
        tokens = (size + left * prompts) // BYTES_PER_TOKEN
        cost = cost_of(config, tokens, left * config.max_tokens) / UNIT
    return ServerRequests(name, source, config.host, documents, left, size, cost, sent, config.max_requests)


def _partitions(directory: str, manifest: Manifest) -> Iterator[tuple[list[str], int]]:
    """Yield the ids of each partition, and its bytes of text."""
    for part in manifest.partitions:
        ids = read_shard(urls.join(directory, part.path), ["id"])["id"].to_pylist()
        yield ids, part.text_bytes if part.text_bytes is not None else part.bytes
