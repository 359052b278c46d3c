"""A recipe can have several classifiers of one kind, each with a name, and everything else refers to these names."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pytest

from datakit.annotate.classifier.linear_model import LinearModel
from datakit.annotate.classifier.train import TrainSettings, train
from datakit.annotate.stage import FORMAT_VERSION
from datakit.api import plan, run
from datakit.errors import RecipeError, RefusedInputsError
from datakit.pipeline.configuration.configure import configure
from datakit.recipe import parse_recipe
from datakit.recipe_keys import json_schema
from datakit.storage.fingerprint import fingerprint
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate
from tests.support.command_line import invoke

HASH = "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"
LINEAR = {"model": "quality.linear", "sha256": HASH}
FASTTEXT = {"model": "quality.bin", "sha256": HASH, "labels": ["hq"]}
ONNX = {
    "model": "m.onnx", "sha256": HASH, "tokenizer": "t.json", "tokenizer_sha256": HASH, "labels": ["low", "high"],
}  # fmt: skip
WORDS = {"proof": "theorem proof lemma axiom", "shop": "buy cheap offer now", "insult": "idiot fool moron stupid"}
PER_KIND = 40
TABLES = """
[[rules]]
name = "poor"
where = "quality.score < 0.5"
[[rules]]
name = "toxic"
where = "toxic.score > 0.5"
[dedup]
prefer = ["score:quality.score"]
[[select.rules]]
name = "poor_after_edits"
where = "quality.score < 0.1"
[[select.buckets]]
name = "best"
where = "quality.score > 0.9 AND toxic.score < 0.1"
[tokenize]
tokenizer = "bytes"
"""


def made_up(kind: str, documents: int, seed: int) -> list[str]:
    """Documents of ten random words of one kind and ten common ones."""
    random = np.random.default_rng(seed)
    words, common = WORDS[kind].split(), ["one", "two", "three", "four", "five"]
    return [" ".join([*random.choice(words, 10), *random.choice(common, 10), str(n)]) for n in range(documents)]


def column(*texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(list(itertools.chain(*texts)), pa.large_string())])


@pytest.fixture(scope="module")
def models() -> dict[str, LinearModel]:
    """One model tells proofs from other texts, the other insults."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    proof, shop, insult = (made_up(kind, 200, seed) for seed, kind in enumerate(WORDS))
    settings = TrainSettings(bits=12)
    return {
        "quality": train(column(proof, insult), column(shop), settings),
        "toxic": train(column(insult), column(proof, shop), settings),
    }


@pytest.fixture
def recipe(tmp_path: Path, models: dict[str, LinearModel]) -> Path:
    """A recipe with two linear classifiers, and as many texts of each kind."""
    texts = [text for seed, kind in enumerate(WORDS, start=10) for text in made_up(kind, PER_KIND, seed)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tables = ""
    for name, model in models.items():
        data = model.encoded()
        (tmp_path / f"{name}.linear").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        tables += f'[annotate.classifier_linear.{name}]\nmodel = "{name}.linear"\nsha256 = "{sha256}"\n'
    path = tmp_path / "shelf.toml"
    path.write_text(f'name = "shelf"\n[[sources]]\nname = "letters"\nurl = "texts.jsonl"\n{tables}{TABLES}')
    return path


def scores(step: Any, table: str) -> dict[str, float]:
    paths = sorted(Path(step.directory).glob(f"data/letters/{table}/*"))
    return {row["id"]: row["score"] for path in paths for row in read_shard(str(path)).to_pylist()}


def test_each_classifier_writes_its_table_and_rules_read_it(
    recipe: Path, models: dict[str, LinearModel], tmp_path: Path
) -> None:
    result = run(recipe, root=tmp_path / "root", workers=2)
    (annotated,), (normalized,) = result.steps_of("annotate"), result.steps_of("normalize")
    assert annotated.manifest.details["tables"] == ["quality", "toxic"]
    paths = [f"{normalized.directory}/{part.path}" for part in normalized.manifest.partitions]
    texts = {row["id"]: row["text"] for path in paths for row in read_shard(path).to_pylist()}
    quality, toxic = scores(annotated, "quality"), scores(annotated, "toxic")
    assert quality.keys() == toxic.keys() == texts.keys()
    for one, text in texts.items():
        assert (quality[one] < 0.5) == ("buy" in text or "cheap" in text or "offer" in text or "now" in text)
        assert (toxic[one] > 0.5) == any(word in text for word in WORDS["insult"].split())
    (rules,) = result.steps_of("rules")
    assert rules.manifest.counters["rules/drop_poor"] == PER_KIND
    assert rules.manifest.counters["rules/drop_toxic"] == PER_KIND
    assert validate(str(tmp_path / "root")).findings == []


def test_results_are_the_same_for_any_number_of_workers(recipe: Path, tmp_path: Path) -> None:
    found = [run(recipe, root=tmp_path / str(workers), workers=workers) for workers in (1, 4)]
    for one, other in zip(*(result.steps for result in found), strict=True):
        data = [
            {
                str(path.relative_to(step.directory)): path.read_bytes()
                for path in Path(step.directory).glob("data/**/*.*")
            }
            for step in (one, other)
        ]
        assert Path(one.directory).name == Path(other.directory).name
        assert data[0] == data[1]


def test_commands_know_the_names(recipe: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    result = run(recipe, root=root, workers=1)
    (annotated,) = result.steps_of("annotate")
    removed = min(scores(annotated, "quality").items(), key=lambda one: one[1])[0]
    commands = {
        ("attributes", "show", f"{root}/shelf"): ["quality.score", "toxic.score"],
        ("attributes", "show", f"{root}/shelf", "--column", "toxic.score", "--histogram"): ["toxic.score"],
        ("why", f"{root}/shelf", "--id", removed): ["removed  by rule poor"],
        ("validate", root): ["intact"],
    }
    for command, parts in commands.items():
        done = invoke(*command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert all(part in done.stdout for part in parts), (command, done.stdout)
    assert invoke("report", f"{root}/shelf", "--output", tmp_path, cwd=tmp_path).returncode == 0
    (page,) = tmp_path.rglob("*.html")
    assert "toxic" in page.read_text()


def configured(annotate: dict[str, Any]) -> Any:
    document = {"name": "shelf", "sources": [{"name": "a", "url": "a.jsonl"}], "annotate": annotate}
    return configure(parse_recipe(document, "example", Path("/x")))["annotate"]["a"]


def test_recipes_without_names_keep_their_fingerprints() -> None:
    """The fingerprint is that of the version before classifiers could be named."""
    settings = configured({"classifier_fasttext": FASTTEXT, "classifier_linear": LINEAR, "classifier_onnx": ONNX})
    found = fingerprint("annotate", FORMAT_VERSION, settings.content, ["0" * 32])
    assert found == "498ba7617b899f295a3462d96ef02f97"


def test_settings_of_named_classifiers_say_what_they_are() -> None:
    tables = {
        "classifier_linear": {"one": LINEAR, "two": LINEAR},
        "classifier_fasttext": {"three": FASTTEXT},
        "classifier_onnx": {"four": ONNX, "five": {**ONNX, "tokenizer": "other.json"}},
    }
    settings = configured(tables)
    kinds = {name: values["annotator"] for name, values in settings.content["annotators"].items()}
    assert kinds == {
        "one": "classifier_linear", "two": "classifier_linear", "three": "classifier_fasttext",
        "four": "classifier_onnx", "five": "classifier_onnx",
    }  # fmt: skip
    assert settings.operations["models"]["one"] == "/x/quality.linear"
    paths = {name: values["tokenizer"] for name, values in settings.operations["paths"].items()}
    assert paths == {"four": "/x/t.json", "five": "/x/other.json"}
    document = {"name": "shelf", "sources": [{"name": "a", "url": "a.jsonl"}], "annotate": tables}
    jsonschema.validate(document, json_schema())


@pytest.mark.parametrize(
    ("annotate", "problem"),
    [
        ({"classifier_linear": {**LINEAR, "toxic": LINEAR}},
         r"\[annotate.classifier_linear\] holds keys of a classifier \(model, sha256\) beside .* \(toxic\); move the "
         r"keys into a table \[annotate.classifier_linear.NAME\]"),
        ({"classifier_linear": {"a": LINEAR}, "classifier_onnx": {"a": ONNX}}, "two annotators have the name 'a'"),
        ({"classifier_linear": {"a": LINEAR}, "user": {"a": {"function": "m:f"}}}, "two annotators have the name 'a'"),
        ({"classifier_linear": {"Good": LINEAR}}, "'Good' cannot be the name .* use letters a-z"),
        ({"classifier_linear": {"x.good": LINEAR}}, "cannot be the name .* use letters a-z"),
        ({"classifier_linear": {"words": LINEAR}}, "a built-in annotator has this name"),
        ({"classifier_linear": {"document": LINEAR}}, "expressions of rules give this name another meaning"),
        ({"classifier_linear": {"model": LINEAR}}, "'model' cannot be the name .* it is a key of the classifier"),
        ({"classifier_linear": {"a": {"model": "x"}}}, r"\[annotate.classifier_linear.a\].*sha256"),
        ({"classifier_linear": {"a": {**LINEAR, "modle": 1}}}, r"\[annotate.classifier_linear.a\].*modle"),
        ({"classifier_linear": {}}, r"\[annotate.classifier_linear\].*model"),
        ({"language": {"a": {}}}, r"\[annotate.language\].*'a'"),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_are_refused(annotate: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        configured(annotate)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('where = "toxic.score > 0.5"', 'where = "toxic.scroe > 0.5"', "'toxic' has no column 'scroe'"),
        ('where = "toxic.score > 0.5"', 'where = "toxik.score > 0.5"', "did you mean 'toxic'"),
        ("score:quality.score", "score:quality.scroe", "'quality' has no column 'scroe'"),
        ("score:quality.score", "score:classifier_linear.score", "write quality.score or toxic.score"),
        ("quality.score < 0.1", "quality.scroe < 0.1", "'quality' has no column 'scroe'"),
    ],
)
def test_unknown_columns_are_found_before_a_run(
    recipe: Path, tmp_path: Path, before: str, after: str, message: str
) -> None:
    text = recipe.read_text()
    assert before in text
    recipe.write_text(text.replace(before, after))
    with pytest.raises(RecipeError, match=message):
        plan(recipe, root=tmp_path / "root")


def test_missing_models_are_named_by_their_tables(recipe: Path, tmp_path: Path) -> None:
    for name in ("quality", "toxic"):
        (tmp_path / f"{name}.linear").unlink()
    with pytest.raises(RefusedInputsError) as caught:
        plan(recipe, root=tmp_path / "root")
    tables = [f"[annotate.classifier_linear.{name}]" for name in ("quality", "toxic")]
    assert all(table in message for table, message in zip(tables, caught.value.messages, strict=True))
