"""A local server that answers questions about the files of one Hub dataset from a recorded listing. It serves no file:
it is for plans, which only list.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@contextmanager
def recorded_hub(recorded: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Serve a recorded listing; yield the endpoint for `HF_ENDPOINT`, and the paths that were requested so far."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(recorded, asked))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(recorded: dict[str, Any], asked: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self._answer(_reply(recorded, self.path))

        def do_POST(self) -> None:
            asked.append(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            is_json = "json" in self.headers.get("Content-Type", "")
            paths = json.loads(body)["paths"] if is_json else parse_qs(body).get("paths", [])
            wanted = [path.strip("/") for path in ([paths] if isinstance(paths, str) else paths)]
            self._answer([entry for entry in recorded["tree"] if entry["path"] in wanted])

        def do_HEAD(self) -> None:
            self._answer(_reply(recorded, self.path))

        def _answer(self, value: Any) -> None:
            body = json.dumps(value if value is not None else {"error": "Entry not found"}).encode()
            self.send_response(200 if value is not None else 404)
            if value is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _reply(recorded: dict[str, Any], target: str) -> Any:
    """Return what the Hub answers to a GET request; None for "not found"."""
    path, query = unquote(urlsplit(target).path), parse_qs(urlsplit(target).query)
    about = f"/api/datasets/{recorded['repository']}"
    if path in (about, f"{about}/revision/{recorded['revision']}"):
        siblings = [_sibling(entry) for entry in recorded["tree"] if entry["type"] == "file"]
        return {"id": recorded["repository"], "sha": recorded["revision"], "private": False, "siblings": siblings}
    start = f"{about}/tree/{recorded['revision']}"
    if not path.startswith(start):
        return None
    folder = path.removeprefix(start).strip("/")
    below = [one for one in recorded["tree"] if one["path"].startswith(f"{folder}/" if folder else "")]
    deep = query.get("recursive") in (["true"], ["True"], ["1"])
    return [one for one in below if deep or one["path"].rpartition("/")[0] == folder] or None


def _sibling(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a file as the Hub describes it in the description of a repository, if it is asked for hashes and sizes."""
    found: dict[str, Any] = {"rfilename": entry["path"], "blobId": entry["oid"], "size": entry["size"]}
    if "lfs" in entry:
        lfs = entry["lfs"]
        found["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
    return found
