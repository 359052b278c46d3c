"""A tokenizer can be named after a model on the Hub; a root keeps the revision that the name had in the first run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import datakit
from datakit.cache.contract import ChatTemplate
from datakit.cache.reader import open_cache
from datakit.errors import TokenizerError
from datakit.pipeline.configuration.tables import TRAIN
from tests.support.tokens.bpe_tokenizers import tokenizer_of

OLD, NEW = "a" * 40, "b" * 40
MODEL = "lab/words"


class Hub(ThreadingHTTPServer):
    """The endpoints of the Hub that loading a file takes. `newest`: the commit that the branch main stands for."""

    newest = OLD
    requests = 0
    more: dict[str, bytes]  # the other files of both commits; COMMIT stands for the first letter of the commit

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.more = {}
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
            return 200, {"Content-Type": "application/json"}, json.dumps(self.info(found)).encode()
        name, _, rest = path[1:].partition("/resolve/")
        commit, _, file = rest.partition("/")
        if name != MODEL or commit not in self.files:
            return missing
        data = self.files[commit] if file == "tokenizer.json" else self.more.get(file)
        if data is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        data = data.replace(b"COMMIT", commit[:1].encode())
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{file}{commit}"'}, data

    def info(self, commit: str) -> dict[str, Any]:
        return {
            "id": MODEL,
            "sha": commit,
            "siblings": [{"rfilename": name} for name in ("tokenizer.json", *self.more)],
        }


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


TEMPLATE = "COMMIT{% for m in messages %}{{ m.role + m.content }}{{ eos_token }}{% endfor %}"


def chats_with(folder: Path, root: Path, **options: Any) -> datakit.RunResult:
    """Run a recipe of conversations whose tokenizer and template are those of the model."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    (folder / "chats.toml").write_text(
        'name = "chats"\n[[sources]]\nname = "chats"\nurl = "chats.jsonl"\n'
        'transform = "datakit.tokenize.chat:with_text"\ntransform_version = 1\n'
        f'[tokenize]\ntokenizer = "{MODEL}"\nadd = "none"\nchat_format = "template"\nformats = {{ chats = "chat" }}\n'
    )
    return datakit.run(folder / "chats.toml", root, workers=1, **options)


def template_of(done: datakit.RunResult) -> ChatTemplate:
    template = open_cache(done.cache or "").contract.chat_template
    assert template is not None
    return template


def test_chat_template_is_that_of_the_tokenizer_s_revision(tmp_path: Path, hub: Hub) -> None:
    root = tmp_path / "root"
    hub.more = {
        "tokenizer_config.json": json.dumps({"chat_template": TEMPLATE, "eos_token": "<e>"}).encode(),
        "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    }
    template = template_of(chats_with(tmp_path, root))
    assert template.template == TEMPLATE.replace("COMMIT", "a") and template.variables == {"eos_token": "<e>"}
    kept = root / "chats" / "tokenizers" / f"lab--words@{OLD}"
    assert {path.name for path in kept.rglob("*.*")} == {"tokenizer.json", "tokenizer_config.json", "tool_use.jinja"}
    hub.newest, hub.requests = NEW, 0
    assert chats_with(tmp_path, root, offline=True).reused and hub.requests == 0
    hub.more["chat_template.jinja"] = TEMPLATE.encode()
    other = template_of(chats_with(tmp_path, tmp_path / "other"))
    assert (other.template[0], other.tool_use) == ("b", "{{ tools }}")


def test_template_that_is_added_later_is_of_the_revision_that_is_kept(shelf: Path, tmp_path: Path, hub: Hub) -> None:
    root = tmp_path / "root"
    tokenizer = root / "chats" / "tokenizers" / f"lab--words@{OLD}.json"
    tokenizer.parent.mkdir(parents=True)
    tokenizer.write_bytes(hub.files[OLD])
    hub.newest, hub.more = NEW, {"chat_template.jinja": TEMPLATE.encode()}
    with pytest.raises(
        TokenizerError, match=r"the chat template of tokenizer lab/words has not been loaded .* --offline"
    ):
        chats_with(tmp_path, root, offline=True)
    assert template_of(chats_with(tmp_path, root)).template[0] == "a"


def test_model_without_a_chat_template_is_an_error_with_a_next_step(tmp_path: Path, hub: Hub) -> None:
    with pytest.raises(
        TokenizerError, match=r"needs a chat template, but there is neither .* set tokenize\.chat_template"
    ):
        chats_with(tmp_path, tmp_path / "root")
    hub.more = {"tokenizer_config.json": b"{}"}
    with pytest.raises(TokenizerError, match=r"has no chat template; set tokenize\.chat_template to the"):
        chats_with(tmp_path, tmp_path / "other")


def test_files_and_keywords_are_no_names(shelf: Path, tmp_path: Path, hub: Hub) -> None:
    for tokenizer in (TRAIN, "bytes"):
        plan_with(shelf, tokenizer, tmp_path)
    (shelf.parent / "lab").mkdir()
    (shelf.parent / "lab" / "words").write_bytes(hub.files[OLD])
    plan_with(shelf, MODEL, tmp_path)
    assert hub.requests == 0
