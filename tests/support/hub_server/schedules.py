"""Random schedules of faults: each is a source, what goes wrong with which answer, and how its download must end.

A schedule ends well if all files arrive with the bytes of the listed version, or with an error of datakit. Anything
else is a loss: a file that is missing or different, an exception without a message for the user, or a file with its
final name after an error about it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from datakit.download.listing import Listing
from datakit.errors import DatakitError
from datakit.storage import urls
from tests.support.hub_server import faults
from tests.support.hub_server.downloads import VirtualClock, download, look
from tests.support.hub_server.folder_routes import WebServer, web_server
from tests.support.hub_server.hub import Hub, hub_server
from tests.support.hub_server.site import Fault, Site

PART_BYTES = 64
SIZES = (0, 1, 30, 63, 64, 65, 200, 333)
PASSING: tuple[Fault, ...] = (
    faults.status(500), faults.status(502), faults.status(503, "5"), faults.status(429, "30"),
    faults.status(429, "Wed, 01 Jul 2026 10:01:00 GMT"), faults.status(408), faults.cut_at(0.0), faults.cut_at(0.3),
    faults.cut_at(0.9), faults.chunked, faults.gzipped,
)  # fmt: skip
LASTING: tuple[Fault, ...] = (
    faults.status(404), faults.status(403), faults.status(429, "100000"), faults.damaged, faults.shorter,
    faults.status(200), faults.status(204), faults.status(416), faults.with_headers(Content_Range=""),
    faults.with_headers(Content_Range="bytes 5-9/10"), faults.with_headers(ETag='"other"'),
    faults.with_headers(ETag=""),
)  # fmt: skip
OF_LISTING: tuple[Fault, ...] = (faults.without_next_page, faults.without_last_entry, faults.other_size)
OF_HUB: tuple[Fault, ...] = (
    faults.with_headers(X_Repo_Commit="0" * 40), faults.with_headers(X_Linked_Size="7"),
    faults.with_headers(X_Linked_ETag='"' + "0" * 64 + '"'), faults.redirected("http://127.0.0.1:9/closed"),
    faults.redirected("file:///etc/passwd"),
)  # fmt: skip


class LossError(AssertionError):
    """A schedule that did not end well."""


@contextmanager
def servers() -> Iterator[tuple[Hub, WebServer]]:
    """Run the servers that all schedules use, with `hf://` leading to this machine."""
    before = os.environ.get("HF_ENDPOINT")
    with hub_server() as hub, web_server() as web:
        os.environ["HF_ENDPOINT"] = hub.hub.address
        try:
            yield hub, web
        finally:
            os.environ.pop("HF_ENDPOINT")
            if before is not None:
                os.environ["HF_ENDPOINT"] = before


def run_schedule(seed: int, hub: Hub, web: WebServer, folder: Path) -> str:
    """Run one schedule. Return "complete", or the name of the error's class. Raises LossError."""
    chance = random.Random(seed)
    names = ["a.bin", "b/c.bin", "b/d/e.bin", "f.bin", "README.md"]
    files = {name: chance.randbytes(chance.choice(SIZES)) for name in chance.sample(names, chance.randint(1, 5))}
    return _on_hub(chance, files, hub, folder) if chance.random() < 0.6 else _on_web(chance, files, web, folder)


def _some(chance: random.Random, choices: Sequence[Fault], rare: Sequence[Fault]) -> list[Fault | None]:
    share = chance.choice((0.0, 0.1, 0.4, 0.8))
    count = chance.choice((0, 3, 12, 40))
    pick = [chance.choice(rare if rare and chance.random() < 0.25 else choices) for _ in range(count)]
    return [fault if chance.random() < share else None for fault in pick]


def _on_hub(chance: random.Random, files: dict[str, bytes], hub: Hub, folder: Path) -> str:
    hub.repository.commits.clear()
    commit = hub.repository.commit(files)
    hub.routes.page_files = chance.choice((1, 2, 1000))
    hub.store_routes.refuses_ranges = chance.random() < 0.1

    def move() -> None:
        hub.repository.commit({name: content + b"!" for name, content in files.items()})

    moving = (faults.then(move),)
    hub.hub.faults = {
        "info": _some(chance, PASSING, (*LASTING, *moving)),
        "tree": _some(chance, PASSING, (*LASTING, *OF_LISTING, *moving)),
        "resolve": _some(chance, PASSING, (*LASTING, *OF_HUB, *moving)),
    }
    hub.store.faults = {"store": _some(chance, PASSING, LASTING)}
    with _faults_end(hub.hub, hub.store):
        return _outcome(lambda clock: look(hub.url, clock=clock), files, folder, commit)


def _on_web(chance: random.Random, files: dict[str, bytes], web: WebServer, folder: Path) -> str:
    web.routes.files = dict(files)
    web.routes.etags, web.routes.times = chance.random() < 0.7, chance.random() < 0.5
    web.routes.ranges = chance.random() < 0.8

    def replace() -> None:
        web.routes.files = {name: bytes(len(content)) for name, content in files.items()}

    listed = sorted(files) if chance.random() < 0.5 else None
    # a changed byte under the right ETag cannot be noticed; without an ETag, the content itself is compared
    lasting = [fault for fault in LASTING if fault is not faults.damaged or not web.routes.etags]
    web.site.faults = {"file": _some(chance, PASSING, lasting), "page": _some(chance, PASSING, LASTING[:6])}
    replaced = (faults.then(replace),) if chance.random() < 0.2 else ()
    if replaced and web.site.faults["file"]:
        web.site.faults["file"][-1] = replaced[0]
    with _faults_end(web.site):
        return _outcome(lambda clock: look(web.url, clock=clock, files=listed), files, folder)


@contextmanager
def _faults_end(*sites: Site) -> Iterator[None]:
    try:
        yield
    finally:
        for site in sites:
            site.faults = {}
            site.settle()


def _outcome(
    look_at: Callable[[VirtualClock], Listing], files: dict[str, bytes], folder: Path, commit: str = ""
) -> str:
    clock = VirtualClock()
    versions = [files, {name: bytes(len(content)) for name, content in files.items()}]
    try:
        listing = look_at(clock)
        found = download(listing, folder, clock=clock)
    except DatakitError as error:
        _require_whole_files(folder, files, versions)
        return type(error).__name__
    _require_complete(listing, found, versions, commit)
    return "complete"


def _require_complete(listing: Listing, found: dict[str, bytes], versions: list[dict[str, bytes]], commit: str) -> None:
    if found.keys() != versions[0].keys() or len(listing.files) != len(found):
        raise LossError(f"{sorted(versions[0])} were there, {sorted(found)} arrived")
    for file in listing.files:
        possible = [version[file.path] for version in versions]
        if found[file.path] not in possible or len(found[file.path]) != file.size:
            raise LossError(f"{file.path} arrived with other bytes")
    if commit and found != versions[0] and listing.resolved["commit"] == commit:
        raise LossError("the bytes are not those of the commit")


def _require_whole_files(folder: Path, files: dict[str, bytes], versions: list[dict[str, bytes]]) -> None:
    for info in urls.listing(str(folder / "raw")):
        content = Path(info.url).read_bytes()
        moved = [version[info.path] + b"!" * count for version in versions for count in range(4)]
        if info.path not in files or content not in moved:
            raise LossError(f"{info.path} has its final name, and other bytes than any version")
