"""A recipe is decoded completely and strictly, and every setting lands in the fingerprint or in the operations."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

import datakit
from datakit.consolidate.stage import Config as ConsolidateConfig
from datakit.dedup.minhash.signatures_stage import SignatureConfig
from datakit.dedup.stage import Config as DedupConfig
from datakit.engine.task import TOLERANCES
from datakit.errors import NoInputError, RecipeError, TokenizerError
from datakit.normalize.config import LATER as LATER_IN_NORMALIZE
from datakit.normalize.stage import Config as NormalizeConfig
from datakit.pipeline import planning
from datakit.pipeline.configuration.configure import configure
from datakit.pipeline.configuration.tables import READING_KEYS
from datakit.recipe import Source, load_recipe
from datakit.store_access import KEYS
from datakit.tokenize.config import LATER as LATER_IN_TOKENIZE
from datakit.tokenize.stage import Config as TokenizeConfig
from datakit.tokenize.train_stage import Config as TrainConfig

# Keys of later versions, which are in the fingerprint only if they are set.
LATER = {"normalize": LATER_IN_NORMALIZE, "tokenize": LATER_IN_TOKENIZE}
CONFIGS = {
    ("normalize", "letters"): NormalizeConfig,
    ("signatures", "letters"): SignatureConfig,
    ("dedup", None): DedupConfig,
    ("consolidate", None): ConsolidateConfig,
    ("train-tokenizer", None): TrainConfig,
    ("tokenize", None): TokenizeConfig,
}


@pytest.mark.parametrize(("stage", "source"), CONFIGS)
def test_every_default_is_in_the_fingerprint(shelf: Path, stage: str, source: str | None) -> None:
    settings = configure(load_recipe(shelf))[stage][source]
    names = {entry.name for entry in fields(CONFIGS[stage, source])}
    assert set(settings.content) - {"source"} == names - set(TOLERANCES) - set(LATER.get(stage, ()))
    assert set(settings.operations) == names & set(TOLERANCES)


def test_keys_of_later_versions_are_in_the_fingerprint_if_they_are_set(shelf: Path) -> None:
    """A recipe that does not use them keeps the steps that an earlier version made."""
    recipe = load_recipe(shelf)
    for setting, key, value in (
        ("extract='trafilatura'", "extract", "trafilatura"),
        ("extract_seconds=5", "extract_seconds", 5),
    ):
        content = configure(recipe.with_overrides([f"sources.letters.{setting}"]))["normalize"]["letters"].content
        assert content[key] == value and set(content) & set(LATER_IN_NORMALIZE) == {key}
    same = configure(recipe.with_overrides(["normalize.extract='resiliparse'", "normalize.extract_seconds=60"]))
    assert same["normalize"]["letters"].content == configure(recipe)["normalize"]["letters"].content


def test_settings_of_select_are_in_the_fingerprint_if_they_have_an_effect(shelf: Path) -> None:
    recipe = load_recipe(shelf)
    assert set(configure(recipe)["select"][None].content) == {"drop"}
    bucket = 'select.buckets=[{name = "high", where = "source = \'letters\'"}]'
    assert set(configure(recipe.with_overrides([bucket]))["select"][None].content) == {"drop", "buckets"}


def test_declared_types_are_in_the_fingerprint(shelf: Path) -> None:
    recipe = load_recipe(shelf).with_overrides(["normalize.where='n > 1'", 'normalize.types={n = "int64"}'])
    assert configure(recipe)["normalize"]["letters"].content["types"] == {"n": "int64"}


def test_mistakes_are_found_before_anything_runs(shelf: Path, tmp_path: Path) -> None:
    def refusal(*settings: str) -> pytest.ExceptionInfo[Exception]:
        with pytest.raises((RecipeError, NoInputError, TokenizerError)) as caught:
            planning.plan(load_recipe(shelf).with_overrides(settings), str(tmp_path))
        return caught

    for setting, message in [
        ("dedup.treshold=0.9", "[dedup]: unknown key 'treshold'; did you mean 'threshold'?"),
        ("dedup.enabeld=true", "did you mean 'enabled'?"),
        ("dedup.threshold=2", "threshold is 2"),
        ('dedup.threshold="much"', "[dedup]: threshold: Expected `float`, got `str`"),
        ("dedup.enabled=1", "[dedup]: enabled must be true or false"),
        ("tokenize.vocabulary=3", "[tokenize]: unknown key 'vocabulary'"),
        ("tokenize.train.vocab=3", "[tokenize.train]: unknown key 'vocab'; did you mean 'vocabulary'?"),
        ("tokenize.train=3", "[tokenize.train] must be a table"),
        ("tokenize.tokenizer=gpt2.json", "the recipe trains no tokenizer"),
        ("normalize.txt=body", "[normalize] of source 'novels': unknown key 'txt'; did you mean 'text'?"),
        ("sources.letters.format=pdf", "source 'letters': format 'pdf' is unknown"),
        ('select.drop=["fuzy"]', "did you mean 'fuzzy'?"),
        ('sources.letters.include=["*.parquet"]', "no files match *.parquet"),
        ("sources.letters.url=lettres", "lettres"),
        ("sources.letters.revision=abc", "cannot have a revision"),
    ]:
        assert message in str(refusal(setting).value), setting
        assert not (tmp_path / "shelf" / "shelf").exists()


def test_moved_key_is_refused_with_its_new_table(shelf: Path) -> None:
    with pytest.raises(RecipeError, match=r"\[consolidate\]: the key 'drop' is now in the table \[select\]"):
        configure(load_recipe(shelf).with_overrides(['consolidate.drop=["exact"]']))
    with pytest.raises(RecipeError, match="write must be true or false"):
        configure(load_recipe(shelf).with_overrides(["consolidate.write=1"]))
    with pytest.raises(RecipeError, match="did you mean 'write'"):
        configure(load_recipe(shelf).with_overrides(["consolidate.wirte=false"]))


@pytest.mark.parametrize("table", ["normalize", "dedup", "consolidate", "tokenize"])
@pytest.mark.parametrize("limit", ["-1", "5.0", "-0.5", "nan"])
def test_every_stage_rejects_an_invalid_limit(shelf: Path, table: str, limit: str) -> None:
    with pytest.raises(RecipeError, match=rf"max_quarantined is {limit}; it must be a number of records, or a share"):
        configure(load_recipe(shelf).with_overrides([f"{table}.max_quarantined={limit}"]))
    configure(load_recipe(shelf).with_overrides([f"{table}.max_quarantined=0.001"]))


def test_all_mistakes_of_a_recipe_are_reported_at_once(shelf: Path, tmp_path: Path) -> None:
    head, _, _ = shelf.read_text().partition("[dedup]")
    wrong = (
        head.replace('url = "letters"', 'ulr = "letters"')
        + """
[normalize]
txt = "body"
sample = "all"

[dedup]
treshold = 0.9
bands = "many"

[tokenize]
tokenizer = "train"
ad = "eos"

[tokenize.train]
vocab = 3
"""
    )
    expected = [
        "[normalize]: unknown key 'txt'; did you mean 'text'?", "[normalize]: sample: Expected `float`, got `str`",
        "[dedup]: unknown key 'treshold'; did you mean 'threshold'?", "[dedup]: bands: Expected `int`, got `str`",
        "[tokenize]: unknown key 'ad'; did you mean 'add'?", "[tokenize.train]: unknown key 'vocab'",
    ]  # fmt: skip
    shelf.write_text(wrong)
    with pytest.raises(RecipeError) as caught:
        datakit.plan(shelf, tmp_path)
    message = str(caught.value)
    assert message.startswith("8 mistakes:\n")
    assert "source 'letters': unknown key 'ulr'; did you mean 'url'?" in message
    assert "source 'letters': 'url' is missing" in message
    assert [part for part in expected if part not in message] == []
    shelf.write_text(wrong.replace("ulr", "url"))
    with pytest.raises(RecipeError) as caught:
        datakit.plan(shelf, tmp_path)
    message = str(caught.value).replace(" of source 'novels'", "")
    assert message.startswith("6 mistakes:\n")
    assert [part for part in expected if part not in message] == []


def test_unknown_tokenizer_says_what_can_be_given(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing answers there
    head = shelf.read_text().partition("[tokenize]")[0]
    shelf.write_text(head + '[tokenize]\ntokenizer = "gpt2"\n')
    with pytest.raises(
        TokenizerError, match=r"gpt2 was not found.*the download from the Hub failed.*can be\n(.*\n)*.*hf://openai"
    ):
        planning.plan(load_recipe(shelf), str(tmp_path))
    (shelf.parent / "gpt2").mkdir()
    (shelf.parent / "gpt2" / "tokenizer.json").touch()
    with pytest.raises(TokenizerError, match=r"is a directory; set tokenize\.tokenizer = '.*gpt2/tokenizer\.json'"):
        planning.plan(load_recipe(shelf), str(tmp_path))


def test_missing_tokenizer_file_is_an_input_error(shelf: Path, tmp_path: Path) -> None:
    shelf.write_text(shelf.read_text().partition("[tokenize]")[0] + '[tokenize]\ntokenizer = "absent.json"\n')
    with pytest.raises(TokenizerError, match=r"absent\.json"):
        planning.plan(load_recipe(shelf), str(tmp_path))


def test_every_source_key_has_a_meaning() -> None:
    places = {"url", "include", "exclude", "splits", "outside_links", "revision", "files", "private_redirects", *KEYS}
    used = {*READING_KEYS, *places, "name", "license", "history"}
    assert {entry.name for entry in fields(Source)} == used
