"""Runs with sources on the Hub and on web servers: what the manifest says, what is reused, and what continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import datakit
from datakit.errors import DatakitError, RecipeError
from datakit.pipeline import running
from datakit.recipe import parse_recipe
from tests.support.hub_server import faults
from tests.support.hub_server.fixtures import TOKEN, hub
from tests.support.hub_server.folder_routes import WebServer, web_server
from tests.support.hub_server.hub import Hub
from tests.support.hub_server.repository import StoredFile
from tests.support.hub_server.site import Reply, Request, ranged
from tests.support.trees import tree

__all__ = ["hub"]  # a fixture
FILES = {
    "data/a.jsonl": b'{"text": "the first document of a large file"}\n' * 3,
    "data/b.jsonl": b'{"text": "another one"}\n',
}


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server(FILES) as server:
        yield server


def run(root: Path, url: str, until: str = "download", **source: Any) -> datakit.RunResult:
    """Run a recipe of one source."""
    table = {"name": "web", "url": url, "private_redirects": True, **source}
    recipe = parse_recipe({"name": "shelf", "sources": [table]}, "recipe", root)
    return running.run(recipe, str(root), until=until, workers=1)


def downloads(root: Path) -> list[dict[str, Any]]:
    """The manifests of all downloads."""
    return [json.loads(path.read_bytes()) for path in sorted(root.glob("sources/web/download-*/manifest.json"))]


def test_manifest_has_the_commit_and_the_hash_of_each_file(hub: Hub, tmp_path: Path) -> None:
    commit = hub.repository.commit(FILES)
    run(tmp_path, f"{hub.url}/data/*.jsonl", until="normalize")
    (manifest,) = downloads(tmp_path)
    assert manifest["details"] == {"resolved": {"commit": commit, "repository": hub.url}}
    large, small = (StoredFile(content) for content in FILES.values())
    assert [(part["path"], part["version"]) for part in manifest["partitions"]] == [
        ("a.jsonl", f"sha256:{large.sha256}"),
        ("b.jsonl", f"git-sha1:{small.blob}"),
    ]
    before, asked = tree(str(tmp_path)), hub.hub.count("resolve")
    again = run(tmp_path, f"{hub.url}/data/*.jsonl", until="normalize")
    assert again.reused and hub.hub.count("resolve") == asked and tree(str(tmp_path)) == before
    assert again.steps[-1].manifest.totals.rows == 2


def test_new_commit_is_a_new_source_unless_the_revision_is_in_the_recipe(hub: Hub, tmp_path: Path) -> None:
    hub.repository.commit(FILES)
    run(tmp_path, hub.url)
    run(tmp_path / "pinned", hub.url, revision="main")
    hub.repository.commit({"data/a.jsonl": b'{"text": "new"}\n'})
    run(tmp_path, hub.url)
    asked = len(hub.hub.log)
    assert run(tmp_path / "pinned", hub.url, revision="main").reused
    assert len(hub.hub.log) == asked
    assert (len(downloads(tmp_path)), len(downloads(tmp_path / "pinned"))) == (2, 1)


def test_unfinished_download_of_a_branch_continues_with_the_same_commit(hub: Hub, tmp_path: Path) -> None:
    commit = hub.repository.commit(FILES)
    hub.hub.faults["resolve"] = [faults.with_headers(X_Repo_Commit="0" * 40)] * 100
    with pytest.raises(DatakitError, match="the Hub now states another commit"):
        run(tmp_path, hub.url, revision="main")
    assert not downloads(tmp_path)
    hub.hub.faults.clear()
    hub.repository.commit({"data/a.jsonl": b'{"text": "new"}\n'})
    run(tmp_path, hub.url, revision="main")
    (manifest,) = downloads(tmp_path)
    assert manifest["details"]["resolved"]["commit"] == commit and len(manifest["partitions"]) == 2


def test_dry_plan_writes_nothing_and_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.repository.commit(FILES)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'name = "shelf"\n[[sources]]\nname = "web"\nurl = "{hub.url}"\nrevision = "main"\n')
    assert datakit.plan(recipe, tmp_path / "root").steps
    assert not (tmp_path / "root").exists() and not hub.hub.count("resolve")


def test_redirect_to_this_machine_needs_permission(hub: Hub, tmp_path: Path) -> None:
    hub.repository.commit(FILES)
    with pytest.raises(DatakitError, match=r"is not public; set `private_redirects = true` for this source"):
        run(tmp_path, hub.url, private_redirects=False)
    assert not downloads(tmp_path)


def test_token_is_nowhere_in_the_root(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.repository.token = TOKEN
    hub.repository.commit(FILES)
    run(tmp_path, hub.url)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 3
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    assert not [path for path in written if b"X-Amz-Signature" in path.read_bytes()]


def test_names_of_a_hostile_page_stay_below_the_step(web: WebServer, tmp_path: Path) -> None:
    name, content = "%2e%2e%2f%2e%2e%2fescaped.jsonl", b'{"text": "x"}\n'

    def escaped(request: Request) -> Reply | None:
        return ranged(request, content, {"ETag": '"x"'}, "file") if request.target.endswith(name) else None

    web.routes.files, web.routes.links = {}, [name, "../../escaped.jsonl"]
    web.site.routes.insert(0, escaped)
    run(tmp_path, f"{web.url}/")
    (found,) = tmp_path.rglob("*escaped*")
    assert found.parent.name == "raw" and found.name == name and found.read_bytes() == content


def test_manifest_has_the_versions_of_a_web_server(web: WebServer, tmp_path: Path) -> None:
    result = run(tmp_path, f"{web.url}/", until="normalize", include=["*.jsonl"])
    (manifest,) = downloads(tmp_path)
    assert [part["version"].partition(" ")[0] for part in manifest["partitions"]] == ["etag", "etag"]
    assert result.steps[-1].manifest.totals.rows == 2
    assert run(tmp_path, f"{web.url}/", until="normalize", include=["*.jsonl"]).reused
    listed = run(tmp_path, web.url, files=["data/b.jsonl", "data/a.jsonl"], include=["*.jsonl"])
    assert listed.reused, "the same files, by a list"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"url": "texts", "files": ["a"]}, "`files` lists the files of a web server; set `url` to an http://"),
        ({"url": "hf://datasets/a/b", "files": ["a"]}, "`files` lists the files of a web server"),
        ({"url": "https://host/a?b=1", "files": ["a"]}, "URL without a query string"),
        ({"url": "https://host/a", "files": ["a"], "revision": "1"}, "cannot be used with a revision; remove one"),
    ],
)
def test_lists_belong_to_web_servers(source: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=words):
        parse_recipe({"name": "shelf", "sources": [{"name": "web", **source}]}, "recipe", tmp_path)
