"""A recipe says how each source's bucket is reached, and every request to the bucket is made in this way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import datakit
from datakit.errors import DatakitError, RecipeError
from datakit.pipeline import planning
from datakit.recipe import load_recipe
from datakit.storage import urls
from tests.support.buckets import orders
from tests.support.buckets.orders import reads
from tests.support.buckets.proxy import Seen
from tests.support.buckets.stores import KINDS, Store, another_store, bucket_store

PAYER = "project-that-pays"


@pytest.fixture(scope="module", params=KINDS)
def shared_stores(request: pytest.FixtureRequest) -> Iterator[tuple[Store, Store]]:
    """The usual store, and one that only an endpoint leads to; the second has public data and private data."""
    with bucket_store(request.param) as usual, another_store(request.param) as other:
        usual.put("own/a.txt", b"a text")
        for folder in ("open", "paid"):
            other.put_all({})
            other.put(f"{folder}/b.txt", b"another text of some length", public=folder == "open")
            other.put(f"{folder}/c.txt", b"a third text", public=folder == "open")
        yield usual, other


@pytest.fixture
def stores(shared_stores: tuple[Store, Store]) -> tuple[Store, Store]:
    """Both stores; their proxies have seen no request yet."""
    for store in shared_stores:
        store.proxy.reset()
    return shared_stores


def source(name: str, url: str, *settings: str) -> str:
    lines = "\n".join(settings)
    return f'[[sources]]\nname = "{name}"\nurl = "{url}"\n{lines}\n'


def write(folder: Path, *sources: str) -> Path:
    recipe = folder / "r.toml"
    recipe.write_text("\n".join(['name = "r"', *sources]))
    return recipe


def agrees_to_pay(seen: Seen) -> bool:
    return seen.headers.get("x-amz-request-payer") == "requester" or seen.query.get("userProject") == PAYER


def test_each_source_is_reached_in_its_own_way(
    stores: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, other = stores
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PAYER)
    endpoint = f'endpoint = "{other.proxy.address}"'
    recipe = write(
        tmp_path,
        source("own", f"{usual.url}/own"),
        source("open", f"{usual.url}/open", endpoint, "anonymous = true"),
        source("paid", f"{usual.url}/paid", endpoint, "requester_pays = true"),
    )
    result = datakit.run(recipe, root=tmp_path / "root", workers=2, until="download")
    assert [[part.path for part in step.manifest.partitions] for step in result.steps] == [
        ["a.txt"], ["b.txt", "c.txt"], ["b.txt", "c.txt"],
    ]  # fmt: skip
    assert usual.proxy.of("read", "own/a.txt") and not usual.proxy.of("read", "b.txt")
    of_open = [seen for seen in other.proxy.seen if "open" in seen.key or "open" in seen.query.get("prefix", "")]
    of_paid = [seen for seen in other.proxy.seen if "paid" in seen.key or "paid" in seen.query.get("prefix", "")]
    assert {seen.kind for seen in of_open} == {seen.kind for seen in of_paid} == {"list", "describe", "read"}
    assert not any("authorization" in seen.headers or agrees_to_pay(seen) for seen in of_open)
    assert all("authorization" in seen.headers and agrees_to_pay(seen) for seen in of_paid)
    assert len(of_open) + len(of_paid) == len([seen for seen in other.proxy.seen if seen.kind != "write"])
    assert all("authorization" in seen.headers for seen in usual.proxy.seen if seen.kind != "write")
    assert not any(agrees_to_pay(seen) for seen in usual.proxy.seen)


def test_how_a_source_is_reached_changes_no_fingerprint(stores: tuple[Store, Store], tmp_path: Path) -> None:
    """A finished download is found again at another address, and an unfinished one goes on there."""
    _, other = stores
    url, root = f"{other.url}/open", tmp_path / "root"
    first = write(tmp_path, source("s", url, f'endpoint = "{other.proxy.address}"', "anonymous = true"))
    other.proxy.order(reads("c.txt"), orders.refused(403, "AccessDenied"), times=100)
    with pytest.raises(DatakitError, match=r"access to \S+c\.txt was denied .*the data is not public, so remove"):
        datakit.run(first, root=root, workers=1, until="download")
    assert len(other.proxy.of("read", "b.txt")) == 1
    other.proxy.reset()
    second = write(tmp_path, source("s", url, f'endpoint = "{other.proxy.address}/"'))
    result = datakit.run(second, root=root, workers=1, until="download")
    assert [seen.key for seen in other.proxy.of("read")] == ["source/open/c.txt"], "the first copy was kept"
    third = write(tmp_path, source("s", url, f'endpoint = "{other.server}"', "anonymous = true"))
    assert datakit.run(third, root=root, workers=1, until="download").reused
    manifest = json.loads(urls.read_bytes(urls.join(result.steps[0].directory, "manifest.json")))
    assert sorted(manifest["parameters"]) == ["exclude", "include", "listing"]
    stored = [path for path in root.rglob("*") if path.is_file() and "runs" not in path.parts]
    assert not [path for path in stored if other.server.encode() in path.read_bytes()], "no file of a step names it"


def test_denied_access_says_what_to_set(stores: tuple[Store, Store], tmp_path: Path) -> None:
    usual, _ = stores
    recipe = write(tmp_path, source("s", f"{usual.url}/own"))
    usual.proxy.order(lambda seen: seen.kind == "list", orders.refused(403, "AccessDenied"), times=100)
    with pytest.raises(
        DatakitError, match=r"access to .*/own was denied .*if the owner lets readers pay, set `requester_"
    ):
        planning.plan(load_recipe(recipe), str(tmp_path / "root"))


def test_a_project_that_pays_has_to_be_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "GCSFS_DEFAULT_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    recipe = write(tmp_path, source("s", "gs://shelf/a", "requester_pays = true"))
    with pytest.raises(RecipeError, match=r"source 's': .*which project pays; set GOOGLE_CLOUD_PROJECT to its id"):
        planning.plan(load_recipe(recipe), str(tmp_path / "root"))


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_nodes_of_a_cluster_reach_a_source_in_the_same_way(
    stores: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks have neither the address of the store nor credentials in their environment."""
    _, other = stores
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    recipe = write(
        tmp_path, source("s", f"{other.url}/open", f'endpoint = "{other.proxy.address}"', "anonymous = true")
    )
    result = datakit.run(recipe, root=tmp_path / "root", workers=1, ray="local", until="download")
    assert [part.path for part in result.steps[0].manifest.partitions] == ["b.txt", "c.txt"]
    assert len(other.proxy.of("read")) == 2
    assert not any("authorization" in seen.headers for seen in other.proxy.seen)
