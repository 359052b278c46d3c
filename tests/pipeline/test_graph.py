"""The graph has the stages a recipe asks for, and a step's fingerprint follows its content and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.pipeline import planning
from datakit.pipeline.root_layout import STAGE_NAMES
from datakit.recipe import load_recipe
from tests.support.small_shelf import make_shelf


def test_graph_has_the_stages_of_the_recipe(shelf: Path, tmp_path: Path) -> None:
    def stages(*settings: str, until: str | None = None) -> list[str]:
        recipe = load_recipe(shelf).with_overrides(settings)
        return list(dict.fromkeys(step.stage for step in planning.plan(recipe, str(tmp_path), until=until).steps))

    everything = [name for name in STAGE_NAMES if name not in ("annotate", "rules", "passages")]
    assert stages() == everything
    without = [name for name in everything if name not in ("signatures", "dedup")]
    assert stages("dedup.enabled=false") == without
    assert stages(until="consolidate") == everything[:6]
    assert stages("annotate.script={}") == [name for name in STAGE_NAMES if name not in ("rules", "passages")]
    assert stages("consolidate.write=false") == [name for name in everything if name != "consolidate"]
    assert stages(until="download") == ["download"]
    with pytest.raises(UsageError, match="did you mean 'normalize'"):
        stages(until="normalise")
    with pytest.raises(UsageError, match=r"--until consolidate: .* leaves this stage out; "):
        stages("consolidate.write=false", until="consolidate")


def fingerprints(recipe_file: Path, root: Path, *settings: str) -> dict[str, str]:
    plan = planning.plan(load_recipe(recipe_file).with_overrides(settings), str(root))
    return {f"{step.stage} {step.source or ''}".strip(): step.fingerprint for step in plan.steps}


def changed(recipe_file: Path, root: Path, *settings: str) -> set[str]:
    before, after = fingerprints(recipe_file, root), fingerprints(recipe_file, root, *settings)
    return {name for name in after if after[name] != before.get(name)}


END = {"select", "consolidate", "train-tokenizer", "contract", "tokenize"}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("tokenize.add=both", {"contract", "tokenize"}),
        ("tokenize.train.vocabulary=500", {"train-tokenizer", "contract", "tokenize"}),
        ('select.drop=["exact"]', END),
        ("consolidate.write=false", set()),
        ("consolidate.max_quarantined=3", set()),
        ("dedup.threshold=0.7", {"dedup"} | END),
        ("dedup.bands=20", {"signatures novels", "signatures letters", "dedup"} | END),
        ("sources.letters.sample=0.5", {"normalize letters", "signatures letters", "dedup"} | END),
        ("normalize.whitespace_run=64", None),
        ("dedup.threshold=0.8", set()),
        ("normalize.format=auto", set()),
        ("normalize.max_quarantined=7", set()),
        ("dedup.max_removal=0.99", set()),
    ],
)
def test_parameter_changes_its_step_and_everything_downstream(
    shelf: Path, tmp_path: Path, setting: str, expected: set[str] | None
) -> None:
    downloads = {"download novels", "download letters"}
    everything = set(fingerprints(shelf, tmp_path)) - downloads
    assert changed(shelf, tmp_path, setting) == (everything if expected is None else expected)


def test_fingerprints_follow_content_not_names_or_times(shelf: Path, tmp_path: Path) -> None:
    before = fingerprints(shelf, tmp_path)
    twin = make_shelf(tmp_path / "elsewhere")
    assert fingerprints(twin, tmp_path / "other-root") == before
    data = (twin.parent / "novels" / "a.jsonl").read_bytes()
    (twin.parent / "novels" / "a.jsonl").write_bytes(data.replace(b"word1 ", b"word2 ", 1))
    after = fingerprints(twin, tmp_path)
    untouched = {name for name in before if after[name] == before[name]}
    assert untouched == {"download letters", "normalize letters", "signatures letters"}


def test_source_order_matters_from_dedup_on(shelf: Path, tmp_path: Path) -> None:
    document = load_recipe(shelf)
    before = fingerprints(shelf, tmp_path)
    text = shelf.read_text()
    first, second = text.index("[[sources]]"), text.rindex("[[sources]]")
    end = text.index("[dedup]")
    shelf.write_text(text[:first] + text[second:end] + text[first:second] + text[end:])
    assert load_recipe(shelf) != document
    after = fingerprints(shelf, tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"dedup"} | END
