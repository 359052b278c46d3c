"""`datakit catalog` lists recipes and datasets, shows what is known about a dataset, and prints recipes to edit."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from datakit.datasets.lookup import dataset, dataset_names
from datakit.recipe import load_recipe
from tests.support.command_line import invoke


def test_list_names_every_recipe_and_dataset(tmp_path: Path) -> None:
    listed = invoke("catalog", "list", cwd=tmp_path, COLUMNS="80")
    first = [line.partition(" ")[0] for line in listed.stdout.splitlines()]
    assert {"demo", "demo-curated", "fineweb-edu-10bt", *dataset_names()} <= set(first)
    assert max(map(len, (listed.stdout + listed.stderr).splitlines())) <= 80
    found = json.loads(invoke("catalog", "list", "--json", cwd=tmp_path).stdout)
    assert [one["name"] for one in found["datasets"]] == dataset_names()
    assert {"demo", "fineweb-edu-10bt"} <= {one["name"] for one in found["recipes"]}


@pytest.mark.parametrize("name", dataset_names())
def test_show_states_license_link_and_what_is_not_stated(tmp_path: Path, name: str) -> None:
    entry = dataset(name)
    shown = invoke("catalog", "show", name, cwd=tmp_path, COLUMNS="80")
    words = " ".join(shown.stdout.split())
    assert entry.link in words and entry.license.shown in words and entry.license.url in words
    assert all(" ".join(trap.split()) in words for trap in (entry.title, *entry.traps))
    for title, value in (("download", entry.size.bytes), ("documents", entry.size.documents)):
        assert f"{title}: {'not stated' if value is None else f'{value:,}'}" in words
    long = [line for line in shown.stdout.splitlines() if len(line) > 80]
    assert all(len(line.split()[-1]) > 60 for line in long), "only addresses and forms are not wrapped"


def test_show_as_json_holds_the_facts(tmp_path: Path) -> None:
    found = json.loads(invoke("catalog", "show", "fineweb-2", "--json", cwd=tmp_path).stdout)
    assert found["license"]["spdx"] == "ODC-By-1.0"
    assert found["parameters"]["language"]["values"]["dan_Latn"]["bytes"] == 70_600_000_000
    assert found["size"]["documents"] is None


def test_unknown_dataset_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    refused = invoke("catalog", "show", "finweb-2", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "did you mean 'fineweb-2'?" in refused.stderr


@pytest.mark.parametrize("name", dataset_names())
def test_recipe_of_a_dataset_is_one_to_edit(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(invoke("catalog", "recipe", name, cwd=tmp_path).stdout)
    (source,) = load_recipe(path).sources
    if "url" in dataset(name).source:
        assert "{" not in source.url, "the examples of the parameters are filled in"
    assert tomllib.loads(path.read_text())["sources"][0]["catalog"] == name


def test_recipe_of_datakit_is_printed_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(invoke("catalog", "recipe", "demo", cwd=tmp_path).stdout)
    plan = json.loads(invoke("plan", "mine.toml", "--json", cwd=tmp_path).stdout)
    assert plan["dataset"] == "demo"


def test_run_of_a_dataset_tells_how_to_make_a_recipe(tmp_path: Path) -> None:
    refused = invoke("run", "finemath", cwd=tmp_path)
    assert refused.returncode == 2
    assert "`datakit catalog recipe finemath > recipe.toml`" in refused.stderr
