"""Recipes are read strictly: nothing is ignored, and every mistake is reported with its place and the nearest name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import full_run
from datakit.errors import RecipeError
from datakit.recipe import CATALOG, Recipe, Source, catalog_names, load_recipe, parse_recipe
from tests.support.data import data_dir

SHELF = """
name = "shelf"

[[sources]]
name = "novels"
url = "texts/novels"
include = ["**/*.jsonl.gz"]

[[sources]]
name = "web"
url = "s3://bucket/web"
revision = "v1"
text = "body"
sample = 0.5

[dedup]
threshold = 0.9

[tokenize]
tokenizer = "gpt2.json"
"""


def written(folder: Path, text: str = SHELF) -> Path:
    path = folder / "shelf.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(written(folder, text))
    assert str(folder / "shelf.toml") in str(caught.value), "the message names the file"
    return str(caught.value)


def test_recipe_keeps_source_order_and_raw_tables(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path))
    assert recipe.name == "shelf"
    assert [source.name for source in recipe.sources] == ["novels", "web"]
    assert recipe.dedup == {"threshold": 0.9}
    assert recipe.normalize == {}


def test_paths_are_relative_to_the_file_and_urls_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.chdir("/")
    recipe = load_recipe(path)
    assert recipe.sources[0].url == str(tmp_path / "texts/novels")
    assert recipe.sources[1].url == "s3://bucket/web"
    assert recipe.tokenize == {"tokenizer": str(tmp_path / "gpt2.json")}


def test_optional_stage_needs_its_table(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, SHELF.partition("[dedup]")[0]))
    assert recipe.dedup is None
    assert recipe.tokenize is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('nmae = "x"', "unknown key 'nmae'; did you mean 'name'?"),
        ("[dedupe]", "unknown key 'dedupe'; did you mean 'dedup'?"),
        ('[[sources]]\nname = "x"\nulr = "y"', "source 'x': unknown key 'ulr'; did you mean 'url'?"),
        ('[[sources]]\nname = "x"', "source 'x': 'url' is missing"),
        ('[[sources]]\nurl = "x"', "source 2: 'name' is missing"),
        ('[[sources]]\nname = "x"\nurl = 3', "source 'x': url: Expected `str`, got `int`"),
        ('[[sources]]\nname = "web"\nurl = "x"', "two sources are named 'web'"),
        ('[[sources]]\nname = "../x"\nurl = "x"', "source name '../x' is not a valid directory name"),
        ("dedup = 3", "dedup: Expected `object | null`, got `int`"),
    ],
)
def test_every_mistake_is_reported_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    head = 'name = "shelf"\n' if not line.startswith("nmae") else ""
    body = '\n[[sources]]\nname = "web"\nurl = "s3://bucket/web"\n'
    text = head + line + body if not line.startswith("[") else head + body + line
    assert message in refusal(tmp_path, text)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 101, "sources", "naïve"])
def test_invalid_directory_name_is_rejected(tmp_path: Path, name: str) -> None:
    assert "name" in refusal(tmp_path, SHELF.replace("shelf", name))


def test_recipe_without_sources_is_an_error(tmp_path: Path) -> None:
    assert "no source" in refusal(tmp_path, 'name = "shelf"')


def test_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'demo'"):
        load_recipe("dmeo")
    with pytest.raises(RecipeError, match=r"absent\.toml does not exist"):
        load_recipe("absent.toml")


def test_overrides_are_toml_values_applied_in_order(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path)).with_overrides(
        [
            "dedup.threshold=0.7",
            "dedup.threshold=0.8",
            "normalize.text=[1, 2]",
            "sources.web.sample=0.25",
            "sources.web.text=content",
            'tokenize.train.note="a = b"',
        ]
    )
    assert recipe.dedup == {"threshold": 0.8}
    assert recipe.normalize == {"text": [1, 2]}
    assert recipe.sources[1].sample == 0.25
    assert recipe.sources[1].text == "content", "a bare word is a string"
    assert recipe.tokenize is not None
    assert recipe.tokenize["train"] == {"note": "a = b"}


def test_override_enables_a_stage_and_is_checked(tmp_path: Path) -> None:
    plain = load_recipe(written(tmp_path, SHELF.partition("[dedup]")[0]))
    assert plain.with_overrides(["dedup.bands=20"]).dedup == {"bands": 20}
    for assignment, message in [
        ("dedup.threshold", "is not of the form"),
        ("=3", "is not of the form"),
        ("sources.wbe.text=body", "did you mean 'web'"),
        ("sources.web=3", "names no key"),
        ("sources.web.txet=body", "did you mean 'text'"),
        ("dedupe.threshold=0.9", "did you mean 'dedup'"),
        ("name.x=1", "'name' is a value"),
    ]:
        with pytest.raises(RecipeError, match=message):
            plain.with_overrides([assignment])


def test_recipe_is_immutable(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path))
    recipe.with_overrides(["dedup.threshold=0.1", "sources.web.sample=0.1"])
    assert recipe == load_recipe(written(tmp_path))
    with pytest.raises(AttributeError):
        recipe.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
sources = st.builds(
    Source,
    name=names,
    url=st.sampled_from(["s3://bucket/x", "{stdlib}/json", "/texts"]),
    include=st.none() | st.lists(st.text(min_size=1), max_size=2).map(tuple),
    sample=st.none() | st.floats(0.01, 1),
    where=st.none() | st.text(),
    transform_version=st.none() | st.integers(0, 9) | st.text(max_size=3),
)


@settings(max_examples=50)
@given(name=names, some=st.lists(sources, min_size=1, max_size=3, unique_by=lambda source: source.name))
def test_recipe_survives_a_round_trip_as_a_document(name: str, some: list[Source]) -> None:
    recipe = Recipe(f"d{name}"[:50], tuple(some), dedup={}, tokenize={"tokenizer": "train"})
    again = parse_recipe(recipe.document(), "again", Path("/"))
    assert replace(again, origin="") == recipe


def test_every_catalog_recipe_loads() -> None:
    assert {"demo", "demo-sft", "fineweb-edu-10bt"} <= set(catalog_names())
    for name in catalog_names():
        recipe = load_recipe(name)
        assert recipe.name == name, "a catalog recipe has its file's name"
        assert recipe.description, "a catalog recipe has a description"
        assert recipe.origin == str(CATALOG / f"{name}.toml")


def test_full_run_finds_the_texts_where_the_tests_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (str(tmp_path), None):
        monkeypatch.delenv("DATAKIT_DATA", raising=False)
        if folder is not None:
            monkeypatch.setenv("DATAKIT_DATA", folder)
        recipe = full_run.corpus()
        assert recipe.tokenize is not None
        places = [*(source.url for source in recipe.sources), recipe.tokenize["tokenizer"]]
        assert len(places) == 9 and all(place.startswith(f"{data_dir()}/") for place in places)


def test_directory_of_texts_is_not_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"is a directory; `datakit init .*` writes a recipe for it"):
        load_recipe(tmp_path)
