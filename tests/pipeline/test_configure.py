"""A recipe is decoded completely and strictly, and every setting lands in the fingerprint or in the operations."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from datakit import pipeline
from datakit.consolidate.stage import Config as ConsolidateConfig
from datakit.dedup.minhash.signatures_stage import SignatureConfig
from datakit.dedup.stage import Config as DedupConfig
from datakit.engine.task import TOLERANCES
from datakit.errors import NoInputError, RecipeError, TokenizerError
from datakit.normalize.stage import Config as NormalizeConfig
from datakit.pipeline.configure import READING_KEYS, configure
from datakit.recipe import Source, load_recipe
from datakit.tokenize.stage import Config as TokenizeConfig
from datakit.tokenize.train_stage import Config as TrainConfig

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
    assert set(settings.content) - {"source"} == names - set(TOLERANCES)
    assert set(settings.operations) == names & set(TOLERANCES)


def test_declared_types_are_in_the_fingerprint(shelf: Path) -> None:
    recipe = load_recipe(shelf).with_overrides(["normalize.where='n > 1'", 'normalize.types={n = "int64"}'])
    assert configure(recipe)["normalize"]["letters"].content["types"] == {"n": "int64"}


def test_mistakes_are_found_before_anything_runs(shelf: Path, tmp_path: Path) -> None:
    def refusal(*settings: str) -> pytest.ExceptionInfo[Exception]:
        with pytest.raises((RecipeError, NoInputError, TokenizerError)) as caught:
            pipeline.plan(load_recipe(shelf).with_overrides(settings), str(tmp_path))
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
        ('consolidate.drop=["fuzy"]', "did you mean 'fuzzy'?"),
        ('sources.letters.include=["*.parquet"]', "no files match *.parquet"),
        ("sources.letters.url=lettres", "lettres"),
        ("sources.letters.revision=abc", "cannot have a revision"),
    ]:
        assert message in str(refusal(setting).value), setting
        assert not (tmp_path / "shelf" / "shelf").exists()


@pytest.mark.parametrize("table", ["normalize", "dedup", "consolidate", "tokenize"])
@pytest.mark.parametrize("limit", ["-1", "5.0", "-0.5", "nan"])
def test_every_stage_rejects_an_invalid_limit(shelf: Path, table: str, limit: str) -> None:
    with pytest.raises(RecipeError, match=rf"max_quarantined is {limit}; it must be a number of records, or a share"):
        configure(load_recipe(shelf).with_overrides([f"{table}.max_quarantined={limit}"]))
    configure(load_recipe(shelf).with_overrides([f"{table}.max_quarantined=0.001"]))


def test_missing_tokenizer_file_is_an_input_error(shelf: Path, tmp_path: Path) -> None:
    shelf.write_text(shelf.read_text().partition("[tokenize]")[0] + '[tokenize]\ntokenizer = "absent.json"\n')
    with pytest.raises(TokenizerError, match=r"absent\.json"):
        pipeline.plan(load_recipe(shelf), str(tmp_path))


def test_every_source_key_has_a_meaning() -> None:
    used = {*READING_KEYS, "name", "url", "include", "exclude", "revision"}
    assert {entry.name for entry in fields(Source)} == used
