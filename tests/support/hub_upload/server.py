"""A local HTTP server that speaks the part of the Hub's API with which `huggingface_hub` publishes a dataset: whoami,
creation and description of a repository, its tree (in pages), preupload, LFS batches, uploads at once and in parts,
commits, and the download of files, also by `datasets`. Xet is not offered; the client must have it disabled.

    with hub_server() as server:
        server.fault(r"PUT /lfs/", status=500, times=2)
        ...
        server.count(r"PUT /lfs/"), server.sent(r"PUT /lfs/")

Faults are chosen by a pattern of the request's method and path, and happen a given number of times. All requests are
counted with the bytes of their bodies, so tests can tell what was transferred.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

from tests.support.hub_upload.repositories import Hub, RefusedError

TOKEN = "hf_" + "Aa0" * 8
PAGE = 5  # entries of a tree in one answer
PART_BYTES = 64 << 10  # larger objects are uploaded in parts of this size


@dataclass
class Fault:
    """A fault in the next `times` requests that match. The server answers with `status`, cuts the connection after
    `cut_after` bytes of the body, loses the answer to a request that it has carried out, or calls `then`.
    """

    pattern: str
    times: int = 1
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    lost: bool = False
    then: Callable[[], None] | None = None


@dataclass(frozen=True)
class Request:
    """A request as the server saw it. received: the bytes of its body that arrived."""

    line: str
    received: int
    authorization: str | None


class Server(ThreadingHTTPServer):
    """The server with its state, its faults and the requests that it has seen."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.faults, self.requests = Hub(), list[Fault](), list[Request]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()

    def fault(self, pattern: str, **facts: Any) -> None:
        """Make requests that match a pattern of "METHOD path" fail."""
        self.faults.append(Fault(pattern, **facts))

    def next_fault(self, line: str) -> Fault | None:
        """Return the fault of a request, and count it."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, line):
                    fault.times -= 1
                    return fault
        return None

    def matching(self, pattern: str) -> list[Request]:
        """The requests that match a pattern."""
        return [one for one in self.requests if re.search(pattern, one.line)]

    def count(self, pattern: str) -> int:
        """The number of requests that match a pattern."""
        return len(self.matching(pattern))

    def sent(self, pattern: str) -> int:
        """The bytes of all bodies of requests that match a pattern."""
        return sum(one.received for one in self.matching(pattern))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about connections that clients cut, as killed clients do."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise, the body of each answer would wait for 40 ms
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        """Answer a request."""
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        line = f"{self.command} {urlsplit(self.path).path}"
        fault = self.server.next_fault(line)
        body = self._body(fault.cut_after if fault else None)
        with self.server.lock:
            self.server.requests.append(Request(line, len(body), self.headers.get("Authorization")))
        if fault is not None:
            if fault.then is not None:
                fault.then()
            if fault.cut_after is not None:
                return self._cut()
            if fault.status is not None:
                return self._send(fault.status, {"error": "made to fail"}, fault.headers)
        try:
            status, answer, headers = self._route(self.command, unquote(urlsplit(self.path).path), body)
        except RefusedError as refused:
            status, answer, headers = refused.status, refused.body, refused.headers
        if fault is not None and fault.lost:
            return self._cut()
        return self._send(status, answer, headers)

    def _body(self, most: int | None) -> bytes:
        """Read the request's body, or only its first bytes."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return b"".join(self._chunks())
        length = int(self.headers.get("Content-Length", 0))
        return self.rfile.read(length if most is None else min(most, length))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().strip() or b"0", 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, answer: Any, headers: dict[str, str]) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _route(self, method: str, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        if path.startswith("/lfs/"):  # as on the real Hub, these URLs are signed and need no token
            return self._object(method, path, body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise RefusedError(401, "Invalid credentials in Authorization header")
        for pattern, answer in ROUTES:
            if found := re.fullmatch(pattern, f"{method} {path}"):
                return answer(self, body, *found.groups())
        raise RefusedError(404, f"unknown: {method} {path}")

    def _object(self, method: str, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        if parse_qs(urlsplit(self.path).query).get("X-Amz-Signature") != ["0a1b2c3d"]:
            raise RefusedError(403, "the URL is not signed")
        _, _, oid, *more = path.split("/")
        hub = self.server.hub
        if method == "PUT" and more:
            with hub.lock:
                hub.parts.setdefault(oid, {})[int(more[0])] = body
            return 200, b"", {"ETag": f'"{len(body)}-{more[0]}"'}
        if method == "POST":
            listed = [part["partNumber"] for part in json.loads(body)["parts"]]
            hub.keep(oid, b"".join(hub.parts[oid][number] for number in listed))
            return 200, {}, {}
        hub.keep(oid, body)
        return 200, b"", {}

    def _whoami(self, body: bytes) -> tuple[int, Any, dict[str, str]]:
        return 200, {"type": "user", "name": "tester", "auth": {"accessToken": {"role": "write"}}}, {}

    def _create(self, body: bytes) -> tuple[int, Any, dict[str, str]]:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        private = asked.get("visibility", "private") == "private" and asked.get("private", True)
        self.server.hub.create(name, private)
        return 200, {"url": f"{self.server.url}/datasets/{name}"}, {}

    def _describe(self, body: bytes, name: str, revision: str) -> tuple[int, Any, dict[str, str]]:
        found = self.server.hub.find(name)
        found.at(revision)
        return 200, {"id": name, "sha": found.head, "private": found.private, "tags": [], "downloads": 0}, {}

    def _tree(self, body: bytes, name: str, revision: str, folder: str) -> tuple[int, Any, dict[str, str]]:
        files = self.server.hub.find(name).at(revision)
        files = {path: file for path, file in files.items() if path.startswith(folder)}
        entries = [files[path].entry(path) for path in sorted(files)]
        folders = sorted({path.rpartition("/")[0] for path in files} - {"", folder.rstrip("/")})
        entries += [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders]
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        more = {}
        if start + PAGE < len(entries):
            place = f"{self.server.url}/api/datasets/{name}/tree/{revision}?recursive=true&cursor={start + PAGE}"
            more = {"Link": f'<{place}>; rel="next"'}
        return 200, entries[start : start + PAGE], more

    def _preupload(self, body: bytes, name: str, revision: str) -> tuple[int, Any, dict[str, str]]:
        files = self.server.hub.find(name).at(revision)
        answers = []
        for asked in json.loads(body)["files"]:
            path, known = asked["path"], files.get(asked["path"])
            entry = known.entry(path) if known else {}
            oid = entry.get("lfs", {}).get("oid") or entry.get("oid")
            mode = "lfs" if path.endswith(".parquet") or asked["size"] > 5 << 20 else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return 200, {"files": answers}, {}

    def _batch(self, body: bytes, name: str) -> tuple[int, Any, dict[str, str]]:
        return 200, {"transfer": "basic", "objects": [self._place(one) for one in json.loads(body)["objects"]]}, {}

    def _place(self, asked: dict[str, Any]) -> dict[str, Any]:
        oid, size = asked["oid"], asked["size"]
        if oid in self.server.hub.objects:
            return {"oid": oid, "size": size}  # without actions: it is there
        href = f"{self.server.url}/lfs/{oid}"
        upload: dict[str, Any] = {"href": f"{href}?X-Amz-Signature=0a1b2c3d"}
        if size > PART_BYTES:
            parts = range(1, -(-size // PART_BYTES) + 1)
            header = {str(number): f"{href}/{number}?X-Amz-Signature=0a1b2c3d" for number in parts}
            upload["header"] = {"chunk_size": str(PART_BYTES), **header}
        return {"oid": oid, "size": size, "actions": {"upload": upload}}

    def _check_card(self, body: bytes) -> tuple[int, Any, dict[str, str]]:
        facts = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
        errors = [{"message": f"{key} is missing"} for key in ("license", "configs") if key not in facts]
        return (400 if errors else 200), {"errors": errors, "warnings": []}, {}

    def _commit(self, body: bytes, name: str, revision: str) -> tuple[int, Any, dict[str, str]]:
        oid = self.server.hub.commit(name, body)
        return 200, {"commitUrl": f"{self.server.url}/datasets/{name}/commit/{oid}", "commitOid": oid}, {}

    def _download(self, body: bytes, name: str, revision: str, path: str) -> tuple[int, Any, dict[str, str]]:
        found = self.server.hub.find(name)
        file = found.at(revision).get(path)
        if file is None:
            raise RefusedError(404, "Entry not found", "EntryNotFound")
        head = found.head if revision == "main" else revision
        return 200, file.content, {"ETag": f'"{file.entry(path)["oid"]}"', "X-Repo-Commit": head}


NAME, REVISION = r"([\w.-]+/[\w.-]+)", r"([\w.-]+)"
ROUTES: list[tuple[str, Callable[..., tuple[int, Any, dict[str, str]]]]] = [
    (r"GET /api/whoami-v2", Handler._whoami),
    (r"POST /api/repos/create", Handler._create),
    (r"POST /api/validate-yaml", Handler._check_card),
    (rf"GET /api/datasets/{NAME}/revision/{REVISION}", Handler._describe),
    (rf"GET /api/datasets/{NAME}/tree/{REVISION}/?(.*)", Handler._tree),
    (rf"POST /api/datasets/{NAME}/preupload/{REVISION}", Handler._preupload),
    (rf"POST /datasets/{NAME}\.git/info/lfs/objects/batch", Handler._batch),
    (rf"POST /api/datasets/{NAME}/commit/{REVISION}", Handler._commit),
    (rf"(?:GET|HEAD) /datasets/{NAME}/resolve/{REVISION}/(.+)", Handler._download),
]


@contextmanager
def hub_server() -> Iterator[Server]:
    """Start a server; inside the block, HF_ENDPOINT and HF_TOKEN lead to it, and the client's Xet is off."""
    from huggingface_hub import constants

    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", server.url)
        patch.setenv("HF_TOKEN", TOKEN)
        patch.setenv("HF_HUB_DISABLE_XET", "1")
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        try:
            yield server
        finally:
            server.shutdown()
            server.server_close()
