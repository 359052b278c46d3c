"""Scores equal those of numpy, do not depend on neighbors, and wrong models are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data
from tokenizers import Tokenizer

from datakit.annotate.onnx_classifier.annotator import BYTES_PER_TOKEN, scores_of
from datakit.annotate.onnx_classifier.config import OnnxClassifierConfig
from datakit.api import plan, run
from datakit.errors import (
    ChangedInputError,
    NoInputError,
    RecipeError,
    RefusedError,
    TaskError,
    UnreadableError,
    UsageError,
)
from datakit.pipeline.configuration.configure import configure
from datakit.recipe import load_recipe
from datakit.storage.parquet import read_shard
from tests.support.annotate.onnx_models import Files, classifier, sha256_of, write_files
from tests.support.data import need_data
from tests.support.paths import REPOSITORY

TEXTS = ["good text", "BAD bad texts", "a " * 400, "ab", "xyz 日本 " * 3, "good" * 20]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("model"))


def config_of(files: Files, **others: Any) -> OnnxClassifierConfig:
    return OnnxClassifierConfig(**{**files.settings(), "labels": ("low", "high"), **others})


def rows_of(config: OnnxClassifierConfig, texts: list[str]) -> list[dict[str, Any]]:
    found = config.annotator().annotate(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    found.validate(full=True)
    return found.to_pylist()


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "raw"])
def test_scores_equal_those_of_numpy(files: Files, kind: str) -> None:
    found = rows_of(config_of(files, scores=kind, max_tokens=64), TEXTS)
    for text, row in zip(TEXTS, found, strict=True):
        values = files.values_of(text, 64).astype(np.float64)
        powers = np.exp(values)
        wanted = {"softmax": powers / powers.sum(), "sigmoid": powers / (1 + powers), "raw": values}[kind]
        assert np.allclose([row["low"], row["high"]], wanted, rtol=1e-5, atol=1e-6)


def test_scores_do_not_depend_on_neighbors(files: Files) -> None:
    config = config_of(files)
    alone = [row for text in TEXTS for row in rows_of(config, [text])]
    assert rows_of(config, TEXTS) == alone == rows_of(config, TEXTS[::-1])[::-1]


def test_a_real_tokenizer(tmp_path: Path) -> None:
    path = need_data() / "tokenizers" / "gpt2.json"
    files = write_files(tmp_path, 3, Tokenizer.from_file(str(path)), 32)
    texts = ["Hello, wörld! 日本", " " * 5, "def f(x):\n    return x\n" * 200]
    found = rows_of(config_of(files, labels=("a", "b", "c"), scores="raw", max_tokens=128), texts)
    for text, row in zip(texts, found, strict=True):
        assert np.allclose([*row.values()], files.values_of(text, 128), rtol=1e-4, atol=1e-5)


def test_document_without_tokens_has_no_score(files: Files) -> None:
    assert rows_of(config_of(files), ["", " \n", "good"])[:2] == [{"low": None, "high": None}] * 2


def test_long_document_is_cut_at_a_character(files: Files) -> None:
    config = config_of(files, max_tokens=8, scores="raw")
    limit = 8 * BYTES_PER_TOKEN
    text = "日" * limit
    (long, short) = rows_of(config, [text, "日" * (limit // 3)])
    assert long == short


def test_extreme_values_give_finite_scores() -> None:
    values = np.array([[1e4, -1e4], [-745.0, 3.0]])
    for kind in ("softmax", "sigmoid"):
        found = scores_of(values, kind)
        assert np.isfinite(found).all() and found.min() >= 0 and found.max() <= 1


def changed(files: Files, folder: Path, model: onnx.ModelProto) -> Files:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return Files(folder / "model.onnx", files.tokenizer, files.table, files.weights)


def test_values_that_are_not_finite_are_refused(files: Files, tmp_path: Path) -> None:
    wrong = changed(files, tmp_path, classifier(files.table, files.weights * np.float32(np.nan)))
    with pytest.raises(TaskError, match="not finite"):
        rows_of(config_of(wrong), ["good"])


def test_other_files_and_operators_are_refused(files: Files, tmp_path: Path) -> None:
    model = classifier(files.table, files.weights)
    set_external_data(model.graph.initializer[0], "/etc/passwd")
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(UsageError, match="keeps tensors in other files"):
        rows_of(config_of(changed(files, tmp_path, model)), ["good"])
    model = classifier(files.table, files.weights)
    constant = helper.make_node("Constant", [], ["unused"], value=numpy_helper.from_array(np.zeros(3)))
    constant.attribute[0].t.data_location = TensorProto.EXTERNAL
    model.graph.node.append(constant)
    with pytest.raises(UsageError, match="keeps tensors in other files"):
        rows_of(config_of(changed(files, tmp_path, model)), ["good"])
    model = classifier(files.table, files.weights)
    model.opset_import.append(helper.make_opsetid("my.operators", 1))
    with pytest.raises(UsageError, match=r"uses operators of my\.operators"):
        rows_of(config_of(changed(files, tmp_path, model)), ["good"])


def test_models_of_other_kinds_are_refused(files: Files, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"logits has type .* it must hold one number for each of the 3 labels"):
        rows_of(config_of(files, labels=("a", "b", "c")), ["good"])
    with pytest.raises(UsageError, match=r"has no output 'other'; it has logits"):
        rows_of(config_of(files, output="other"), ["good"])
    with pytest.raises(UsageError, match=r"input_ids has type .* and any number of tokens"):
        rows_of(config_of(changed(files, tmp_path, classifier(files.table, files.weights, 16))), ["good"])
    model = classifier(files.table, files.weights)
    model.graph.input[1].name = model.graph.node[1].input[0] = "pixels"
    with pytest.raises(UsageError, match="has the inputs input_ids, pixels; it must have input_ids"):
        rows_of(config_of(changed(files, tmp_path, model)), ["good"])


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x09"])
def test_damaged_files_are_refused(files: Files, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    wrong = Files(tmp_path / "model.onnx", files.tokenizer, files.table, files.weights)
    with pytest.raises((UnreadableError, UsageError)):
        rows_of(config_of(wrong), ["good"])
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(UnreadableError, match="not a file of the tokenizers library"):
        rows_of(config_of(Files(files.model, tmp_path / "t.json", files.table, files.weights)), ["good"])


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ({"labels": ()}, "labels is"),
        ({"labels": ("a", "A")}, "labels is"),
        ({"labels": ("a",)}, "always 1 for one label"),
        ({"scores": "logit"}, "scores is 'logit'"),
        ({"max_tokens": 4}, "max_tokens is 4"),
        ({"sha256": "1"}, "sha256 is '1'"),
        ({"tokenizer": ""}, "model or tokenizer is empty"),
    ],
)
def test_wrong_settings_are_refused(files: Files, others: dict[str, Any], named: str) -> None:
    with pytest.raises((RecipeError, ValueError), match=named):
        config_of(files, **others)


def recipe_of(folder: Path, files: Files, names: tuple[str, ...] = ("",), /, **others: str) -> Path:
    """Write a recipe with a classifier of each name; "" stands for one without a name."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**files.settings(), **others}.items()]
    records = [{"text": f"good text {number}"} for number in range(20)]
    (folder / "docs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    path = folder / "shelf.toml"
    headers = [f"annotate.classifier_onnx.{name}".removesuffix(".") for name in names]
    tables = [f'[{header}]\nlabels = ["low", "high"]\n' + "\n".join(lines) + "\n" for header in headers]
    path.write_text('name = "shelf"\n[[sources]]\nname = "docs"\nurl = "docs.jsonl"\n' + "".join(tables))
    return path


def test_named_classifiers_give_the_scores_of_one_without_a_name(files: Files, tmp_path: Path) -> None:
    single = run(recipe_of(tmp_path, files), root=tmp_path / "single", workers=1, until="annotate")
    several = run(recipe_of(tmp_path, files, ("one", "two")), root=tmp_path / "several", workers=2, until="annotate")
    tables = {
        path.parent.name: path.read_bytes()
        for result in (single, several)
        for path in Path(result.steps_of("annotate")[0].directory).glob("data/docs/*/*")
    }
    assert tables.keys() == {"classifier_onnx", "one", "two"} and len(set(tables.values())) == 1
    with pytest.raises(ChangedInputError, match=r"\[annotate\.classifier_onnx\.one\], tokenizer"):
        plan(recipe_of(tmp_path, files, ("one", "two"), tokenizer_sha256="0" * 64), tmp_path / "root")


def test_run_scores_every_document(files: Files, tmp_path: Path) -> None:
    """The fork server would refuse to fork if it had loaded onnxruntime, which starts threads."""
    results = [run(recipe_of(tmp_path, files), root=tmp_path / str(n), workers=n, until="annotate") for n in (1, 2)]
    tables = []
    for result in results:
        (step,) = result.steps_of("annotate")
        paths = sorted(Path(step.directory).glob("data/docs/classifier_onnx/*"))
        tables.append([row for path in paths for row in read_shard(str(path)).to_pylist()])
    assert tables[0] == tables[1] and len(tables[0]) == 20
    assert all(abs(row["low"] + row["high"] - 1) < 1e-6 for row in tables[0])


def test_paths_are_no_part_of_the_fingerprint(files: Files, tmp_path: Path) -> None:
    settings = configure(load_recipe(recipe_of(tmp_path, files)))["annotate"]["docs"]
    content = json.dumps(settings.content)
    assert str(files.model) not in content and str(files.tokenizer) not in content
    assert sha256_of(files.model) in content and sha256_of(files.tokenizer) in content


@pytest.mark.parametrize("command", [plan, run])
def test_missing_and_changed_files_are_refused_before_anything_runs(files: Files, tmp_path: Path, command: Any) -> None:
    for others, error in (
        ({"sha256": "0" * 64}, RefusedError),
        ({"tokenizer_sha256": "0" * 64}, ChangedInputError),
        ({"tokenizer": "gone.json"}, (NoInputError, RefusedError)),
    ):
        with pytest.raises(error, match=r"classifier_onnx"):
            command(recipe_of(tmp_path, files, **others), tmp_path / "root")
    assert not list((tmp_path / "root").rglob("manifest.json"))


def test_driver_and_fork_server_do_not_import_onnxruntime(files: Files) -> None:
    code = (
        "import sys; from datakit.annotate.tables import built_in\n"
        f"built_in({json.dumps(json.dumps({'classifier_onnx': {**files.settings(), 'labels': ['a', 'b']}}))})\n"
        "assert 'onnxruntime' not in sys.modules and 'onnx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)
