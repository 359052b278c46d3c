"""Settings of access: valid only where they mean something, and never with credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datakit.errors import RecipeError
from datakit.recipe import load_recipe, parse_recipe
from datakit.store_access import USUAL, StoreAccess, access_mistake, access_of


def mistake(url: str, **settings: Any) -> str:
    return access_mistake({"name": "s", "url": url, **settings})


@pytest.mark.parametrize("url", ["s3://bucket/a", "s3a://bucket/a", "gs://bucket", "gcs://bucket/*.txt"])
def test_buckets_have_these_settings(url: str) -> None:
    assert mistake(url, anonymous=True, endpoint="https://store.example.org") == ""
    assert mistake(url, requester_pays=True, endpoint="https://store.example.org:9000/") == ""
    assert mistake(url) == mistake(url, anonymous=False, endpoint=None) == ""


@pytest.mark.parametrize(
    "url", ["texts", "/data", "https://host/a", "hf://datasets/a/b", "{stdlib}/json", "memory://a"]
)
def test_other_sources_have_none_of_them(url: str) -> None:
    assert mistake(url, anonymous=True).startswith("`anonymous` is for sources in buckets (s3:// and gs://), which ")
    assert mistake(url, requester_pays=True, endpoint="https://host").startswith("`requester_pays` and `endpoint` are ")
    assert mistake(url, anonymous=False) == ""


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("s3://b", {"anonymous": True, "requester_pays": True}, "nobody can be charged"),
        ("s3://b", {"endpoint": ""}, "is not an http:// or https:// URL"),
        ("s3://b", {"endpoint": "store.example.org"}, "is not an http:// or https:// URL"),
        ("s3://b", {"endpoint": "file:///etc"}, "is not an http:// or https:// URL"),
        ("s3://b", {"endpoint": "https://:9000"}, "is not an http:// or https:// URL"),
        ("s3://b", {"endpoint": "https://host:port"}, "is not an http:// or https:// URL"),
        ("s3://b", {"endpoint": "https://host/?a=b"}, "has a query string or a fragment"),
        ("s3://b", {"endpoint": "https://me:word@host"}, "contains a user name or a password"),
        ("gs://b", {"endpoint": "https://host/path"}, "has a path"),
        ("gs://b", {"endpoint": "http://host"}, "would get your token over a connection that is not encrypted"),
    ],
)
def test_unusable_settings_are_mistakes(url: str, settings: dict[str, Any], words: str) -> None:
    assert words in mistake(url, **settings)


def test_unencrypted_endpoints_get_no_token() -> None:
    assert mistake("gs://b", endpoint="http://host", anonymous=True) == ""
    assert mistake("gs://b", endpoint="http://127.0.0.1:4443") == mistake("gs://b", endpoint="http://localhost") == ""
    assert mistake("s3://b", endpoint="http://minio:9000/s3") == "", "requests to S3 contain no secret"


def test_a_recipe_with_a_mistake_names_the_source_and_no_password(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'name = "r"\n[[sources]]\nname = "here"\nurl = "texts"\nanonymous = true\n'
        '[[sources]]\nname = "there"\nurl = "s3://b/a"\nendpoint = "https://me:pass-word-1@host"\n'
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe)
    assert "source 'here': `anonymous` is for sources in buckets" in str(caught.value)
    assert "source 'there': https://[redacted]@host contains a user name or a password" in str(caught.value)
    assert "pass-word-1" not in str(caught.value)


def test_settings_of_a_source_can_be_assigned(tmp_path: Path) -> None:
    recipe = parse_recipe({"name": "r", "sources": [{"name": "s", "url": "s3://b/a"}]}, "here", tmp_path)
    changed = recipe.with_overrides(["sources.s.anonymous=true", "sources.s.endpoint=https://host"])
    assert (changed.sources[0].anonymous, changed.sources[0].endpoint) == (True, "https://host")
    with pytest.raises(RecipeError, match=r"would get your token|has a path"):
        recipe.with_overrides(["sources.s.url=gs://b", "sources.s.endpoint=http://host/path"])


def test_access_travels_as_text() -> None:
    access = access_of("s", "s3://b/a", anonymous=False, requester_pays=True, endpoint="https://host/")
    assert access == StoreAccess(requester_pays=True, endpoint="https://host")
    assert StoreAccess.from_text(access.text()) == access
    assert USUAL.text() == ""
    assert StoreAccess.from_text("") == USUAL


def test_clients_get_the_options_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project-1")
    paid = access_of("s", "gs://b/a", anonymous=False, requester_pays=True, endpoint=None)
    assert paid.options("gs") == {"requester_pays": "project-1"}
    assert paid.options("s3") == {"requester_pays": True}
    hidden = StoreAccess(anonymous=True, endpoint="https://host")
    assert hidden.options("s3") == {"anon": True, "endpoint_url": "https://host"}
    assert hidden.options("gcs") == {"token": "anon", "endpoint_url": "https://host"}
    assert USUAL.options("s3") == USUAL.options("memory") == {}
