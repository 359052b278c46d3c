"""A Hub and its store of large files, at two ports of this machine.

with hub_server() as hub:
    commit = hub.repository.commit({"data/a.jsonl": b"..."})
    hub.hub.faults["resolve"] = [faults.status(500)]        # what happens to the next request for a file
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.hub_server.hub_routes import HubRoutes
from tests.support.hub_server.repository import Repository
from tests.support.hub_server.site import Site, running
from tests.support.hub_server.store_routes import StoreRoutes

NAME = "lab/words"


@dataclass(frozen=True)
class Hub:
    """The two running servers, what they answer from, and the first repository."""

    hub: Site
    store: Site
    routes: HubRoutes
    store_routes: StoreRoutes
    repository: Repository

    @property
    def url(self) -> str:
        """The repository's address for datakit."""
        return f"hf://datasets/{self.repository.name}"


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Run both servers for the block."""
    repositories = [Repository(NAME)]
    routes, store_routes = HubRoutes(repositories), StoreRoutes(repositories)
    with running(routes) as hub, running(store_routes) as store:
        routes.address, routes.store = hub.address, store.address
        yield Hub(hub, store, routes, store_routes, repositories[0])
