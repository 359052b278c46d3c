"""A tokenizer can be named after a model on the Hub; a root keeps the revision that the name had in the first run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import datakit
from datakit.errors import TokenizerError
from datakit.pipeline.configuration.tables import TRAIN
from tests.support.tokens.bpe_tokenizers import tokenizer_of

OLD, NEW = "a" * 40, "b" * 40
MODEL = "lab/words"


class Hub(ThreadingHTTPServer):
    """The endpoints of the Hub that loading a file takes. `newest`: the commit that the branch main stands for."""

    newest = OLD
    requests = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        definition = json.loads(tokenizer_of("gpt2", None).reference.to_str())
        self.files = {commit: json.dumps(definition, indent=space).encode() for commit, space in ((OLD, 1), (NEW, 2))}

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        self.requests += 1
        missing = 404, {"X-Error-Code": "RepoNotFound"}, b""
        if path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            if name != MODEL:
                return missing
            found = self.newest if revision in ("", "main") else OLD
            return 200, {"Content-Type": "application/json"}, json.dumps({"id": MODEL, "sha": found}).encode()
        name, _, rest = path[1:].partition("/resolve/")
        commit, _, file = rest.partition("/")
        if name != MODEL or commit not in self.files:
            return missing
        if file != "tokenizer.json":
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{commit}"'}, self.files[commit]


class Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Hub)
        status, headers, body = self.server.answer(self.path)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server
        server.shutdown()


def plan_with(shelf: Path, tokenizer: str, root: Path, offline: bool = False) -> datakit.RunPlan:
    head = shelf.read_text().partition("[tokenize]")[0]
    shelf.write_text(f'{head}[tokenize]\nadd = "none"\ntokenizer = "{tokenizer}"\n')
    return datakit.plan(shelf, root, offline=offline)


def test_name_stands_for_the_revision_of_the_first_run(shelf: Path, tmp_path: Path, hub: Hub) -> None:
    root = tmp_path / "root"
    planned = plan_with(shelf, MODEL, root)
    assert any(f"revision {OLD}" in line for line in planned.notes) and not root.exists()
    done = datakit.run(shelf, root, workers=1)
    kept = root / "shelf" / "tokenizers" / f"lab--words@{OLD}.json"
    assert kept.read_bytes() == hub.files[OLD]
    assert done.cache == planned.steps[-1].directory
    hub.newest, hub.requests = NEW, 0
    assert datakit.run(shelf, root, workers=1).reused
    assert datakit.run(shelf, root, workers=1, offline=True).reused
    assert hub.requests == 0
    assert any(f"revision {NEW}" in line for line in plan_with(shelf, MODEL, tmp_path / "other").notes)
    assert any(f"revision {OLD}" in line for line in plan_with(shelf, f"{MODEL}@{OLD}", tmp_path / "other").notes)
    assert any(f"revision {NEW}" in line for line in plan_with(shelf, f"{MODEL}@main", root).notes)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("lab/none", "the Hub has no such model"), (f"{MODEL}@{'c' * 40}", "the Hub has no such model|no revision")],
)
def test_unknown_names_are_one_clear_error(shelf: Path, tmp_path: Path, hub: Hub, name: str, reason: str) -> None:
    with pytest.raises(TokenizerError, match=rf"^tokenizer {name} was not found: there is no such file, .*({reason})"):
        plan_with(shelf, name, tmp_path)


def test_offline_run_needs_an_earlier_one(shelf: Path, tmp_path: Path, hub: Hub) -> None:
    with pytest.raises(TokenizerError, match="has not been loaded from the Hub yet; run once without --offline"):
        plan_with(shelf, MODEL, tmp_path, offline=True)
    assert hub.requests == 0


def test_files_and_keywords_are_no_names(shelf: Path, tmp_path: Path, hub: Hub) -> None:
    for tokenizer in (TRAIN, "bytes"):
        plan_with(shelf, tokenizer, tmp_path)
    (shelf.parent / "lab").mkdir()
    (shelf.parent / "lab" / "words").write_bytes(hub.files[OLD])
    plan_with(shelf, MODEL, tmp_path)
    assert hub.requests == 0
