"""The effects of rules are those that the finished step states; samples are removed documents, chosen by id alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.api import run
from datakit.errors import UsageError
from datakit.pipeline.rule_effects.effects import Retained, SampleOptions, effects
from datakit.storage.manifest import totals_of
from tests.support.annotate.rules_recipe import LONG, RULES, SHARED, recipe_with
from tests.support.partitions import identity


def test_counts_and_samples(tmp_path: Path) -> None:
    result = run(recipe_with(tmp_path), root=tmp_path / "root", workers=2)
    dataset = str(tmp_path / "root" / "shelf")
    found = effects(dataset, SampleOptions(3, show_text=True))
    counts = {(one.rule, one.source): (one.decides, one.text_bytes) for one in found.rules}
    early = sorted(SHARED[:5], key=identity)
    assert counts[("early", "a")] == (5, sum(map(len, early))) and counts[("early", "b")] == (0, 0)
    assert (found.documents, found.leaving) == ({"a": 25, "b": 12}, {"a": 9, "b": 0})
    samples = [one for one in found.samples if one.rule == "early"]
    assert [(one.id, one.text) for one in samples] == [(identity(text), text) for text in early[:3]]
    assert [one.text for one in found.samples if one.rule == "long"] == [LONG]
    (cache,) = [step.manifest for step in result.steps_of("tokenize")]
    (part,) = cache.partitions_of("a")
    kept = {source: totals_of(cache.partitions_of(source)) for source in ("a", "b")}
    assert found.retained == {name: Retained(one.rows, one.text_bytes, one.tokens) for name, one in kept.items()}
    (tokens,) = [one.tokens for one in found.rules if (one.rule, one.source) == ("long", "a")]
    assert tokens == len(LONG) * (part.tokens or 0) // (part.text_bytes or 1)


def test_tokens_of_a_source_that_leaves_as_a_whole_are_estimated_from_the_others(tmp_path: Path) -> None:
    rules = RULES + "[[rules]]\nname = 'all_of_b'\nwhere = 'true'\nsources = ['b']\n"
    (cache,) = [one.manifest for one in run(recipe_with(tmp_path, rules), tmp_path / "root").steps_of("tokenize")]
    found = effects(str(tmp_path / "root" / "shelf"), SampleOptions())
    (effect,) = [one for one in found.rules if (one.rule, one.source) == ("all_of_b", "b")]
    assert effect.tokens == effect.text_bytes * (cache.totals.tokens or 0) // (cache.totals.text_bytes or 1) > 0
    assert found.retained["b"] == Retained(0, 0, 0)


def test_samples_of_one_rule_without_texts(tmp_path: Path) -> None:
    run(recipe_with(tmp_path), root=tmp_path / "root", workers=2)
    dataset = str(tmp_path / "root" / "shelf")
    found = effects(dataset, SampleOptions(10, "mail"))
    assert {one.rule for one in found.samples} == {"mail"} and len(found.samples) == 3
    assert {one.text for one in found.samples} == {None}
    with pytest.raises(UsageError, match="no rule 'mial'; did you mean 'mail'"):
        effects(dataset, SampleOptions(10, "mial"))


def test_dataset_without_rules_is_refused(tmp_path: Path) -> None:
    run(recipe_with(tmp_path, ""), root=tmp_path / "root", workers=2)
    with pytest.raises(UsageError, match="without rules"):
        effects(str(tmp_path / "root" / "shelf"), SampleOptions())
