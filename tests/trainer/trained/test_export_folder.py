"""An exported folder holds exactly the checkpoint's weights, appears as a whole, and never replaces anything."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

pytest.importorskip("pyarrow")
from datakit.errors import CheckpointError, UsageError
from datakit.storage.manifest import read_manifest, write_manifest
from datakit.trainer.huggingface.folder import INDEX, open_folder
from datakit.trainer.huggingface.import_checkpoint import config_from_hub, parameters_from_hub
from datakit.trainer.load_run import load_run
from datakit.trainer.models import grug
from datakit.trainer.models.weights import make_mesh
from datakit.trainer.run_directory.run_lock import exclusive
from datakit.trainer.trained import export_folder as exporting
from datakit.trainer.trained.export_folder import Options, Origins, export_folder
from datakit.trainer.trained.find import TrainedRun, find_trained
from datakit.trainer.trained.model_card import Source
from tests.support.hub_models.runs import directory_of_run, finished_run
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.xdist_group("hub-runs")


@pytest.fixture(scope="module")
def run() -> TrainedRun:
    return find_trained(str(directory_of_run(finished_run())))


def weights(run: TrainedRun, averaged: bool = False) -> Any:
    return run.restore(make_mesh(1, jax.devices()[:1]), averaged)[0]


def imported(folder: Path | str) -> Any:
    found = open_folder(Path(folder))
    return parameters_from_hub(found.tensors, config_from_hub(found.description))


def assert_same(ours: Any, theirs: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("shard_bytes", [1, 50_000, 10**9])
def test_the_tensors_are_those_of_the_checkpoint(shard_bytes: int, run: TrainedRun, tmp_path: Path) -> None:
    done = export_folder(run, str(tmp_path / "out"), Options("float32", shard_bytes=shard_bytes))
    assert (done.created, done.step, done.folder) == (True, 3, str(tmp_path / "out"))
    assert_same(imported(done.folder), weights(run))
    files = open_folder(tmp_path / "out").files
    assert all(file.tensor_bytes <= shard_bytes or len(file.entries) == 1 for file in files.values())
    assert (len(files) > 1) == (tmp_path / "out" / INDEX).exists() == (shard_bytes < 10**9)
    if len(files) == 1:
        assert [*files] == ["model.safetensors"]
    else:
        assert sorted(files)[-1] == f"model-{len(files):05d}-of-{len(files):05d}.safetensors"


def test_bfloat16_and_averages(run: TrainedRun, tmp_path: Path) -> None:
    done = export_folder(run, str(tmp_path / "out"), Options(averaged=True))
    averages = weights(run, averaged=True)
    assert not np.array_equal(averages["head"], weights(run)["head"])
    assert_same(imported(done.folder), jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), averages))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"


def test_the_settings_survive_and_the_special_tokens_are_the_contract_s(run: TrainedRun, tmp_path: Path) -> None:
    done = export_folder(run, str(tmp_path / "out"))
    found = config_from_hub(open_folder(Path(done.folder)).description)
    training = dict.fromkeys(("compute", "remat", "moe_backend", "init_std"))
    assert dataclasses.asdict(found) | training == dataclasses.asdict(run.config) | training
    read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
    eos = run.contract.eos
    assert eos is not None and run.contract.bos is None
    for name in ("config.json", "generation_config.json"):
        assert (read[name]["bos_token_id"], read[name]["eos_token_id"], read[name]["pad_token_id"]) == (
            None,
            eos.id,
            None,
        )
    assert read["special_tokens_map.json"] == {"eos_token": eos.token}
    assert read["tokenizer_config.json"]["eos_token"] == eos.token
    assert read["config.json"]["max_position_embeddings"] == 32  # the sequences that the run trained on
    assert (tmp_path / "out/tokenizer.json").read_bytes() == run.tokenizer


def test_an_export_is_a_model_to_start_from(run: TrainedRun, tmp_path: Path) -> None:
    folder = finished_run()
    done = export_folder(run, str(tmp_path / "out"))
    text = (folder / "run.toml").read_text()
    first, last = text.index("[model]"), text.index("[optimizer]")
    (folder / "second.toml").write_text(f'initialize_from = "hf:{done.folder}"\n{text[:first]}{text[last:]}')
    try:
        second, data = load_run(folder / "second.toml", str(folder))
    finally:
        (folder / "second.toml").unlink()
    assert (second.kind, second.model.experts, second.model.compute) == ("olmoe", 4, "bfloat16")
    assert data.notes == ()  # the tokenizers are equal


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_is_made_once(run: TrainedRun, tmp_path: Path) -> None:
    first = export_folder(run, str(tmp_path / "out"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = export_folder(run, str(tmp_path / "out"))
    assert (first.created, again.created, again.bytes, again.files) == (True, False, first.bytes, first.files)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    other = export_folder(run, str(tmp_path / "other"))
    assert contents(tmp_path / "out") == contents(Path(other.folder))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda place: (place / "notes.txt").write_text("mine"), "exists and is not an export of datakit"),
        (lambda place: (place / "datakit.json").write_text("{}"), "exists and is not an export of datakit"),
    ],
)
def test_nothing_else_is_overwritten(
    prepare: Callable[[Path], object], message: str, run: TrainedRun, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    prepare(tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(UsageError, match=message):
        export_folder(run, str(tmp_path / "out"))
    assert contents(tmp_path / "out") == before


def test_a_changed_or_different_export_is_refused(run: TrainedRun, tmp_path: Path) -> None:
    place = tmp_path / "out"
    export_folder(run, str(place))
    with pytest.raises(UsageError, match=r"another export \(step 3 of run \w+, bfloat16\); give another --output"):
        export_folder(run, str(place), Options("float32"))
    (place / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"config\.json has changed since it was exported"):
        export_folder(run, str(place))


def test_an_interrupted_export_leaves_no_folder_and_is_repeated(
    run: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Exception):
        """Stands for a kill in the middle of the export."""

    def stop(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(exporting, "_write_texts", stop)
        export_folder(run, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".")
    (left / "junk.safetensors").write_bytes(b"x")
    with exclusive(str(left)), pytest.raises(UsageError, match="is in use by process"):
        export_folder(run, str(tmp_path / "out"))
    export_folder(run, str(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not {"junk.safetensors", "running.lock"} & {*contents(tmp_path / "out")}


def test_the_default_place_is_in_the_run_s_directory(tmp_path: Path) -> None:
    shutil.copytree(finished_run(), tmp_path / "copy")
    directory = directory_of_run(tmp_path / "copy")
    found = find_trained(str(directory))
    assert export_folder(found).folder == str(directory / "huggingface/step-000000003")
    older = find_trained(str(directory), checkpoint=str(directory / "checkpoints/step-000000002"))
    done = export_folder(older, options=Options("float32", averaged=True))
    assert (done.folder, done.step) == (str(directory / "huggingface/step-000000002-ema-float32"), 2)


def test_runs_are_found_by_directory_or_file(tmp_path: Path) -> None:
    folder = finished_run()
    directory = directory_of_run(folder)
    by_file, by_directory = find_trained(str(folder / "run.toml"), str(folder)), find_trained(str(directory))
    assert (by_file.directory, by_file.name) == (by_directory.directory, by_directory.name) == (str(directory), "small")
    assert by_file.contract == by_directory.contract
    assert by_file.averages and by_directory.averages
    assert_same(weights(by_file), weights(by_directory))
    shutil.copytree(folder, tmp_path / "copy")
    copy = directory_of_run(tmp_path / "copy")
    (copy / "manifest.json").unlink()
    with pytest.raises(UsageError, match="is not the directory of a finished training run"):
        find_trained(str(copy))
    assert find_trained(str(tmp_path / "copy/run.toml"), str(tmp_path / "copy")).manifest is None
    with pytest.raises(UsageError, match="--set has no effect"):
        find_trained(str(directory), overrides=["steps=3"])
    with pytest.raises(CheckpointError, match="no valid checkpoint in"):
        find_trained(str(directory), checkpoint=str(tmp_path))


def test_a_directory_does_not_decide_which_code_is_imported(tmp_path: Path) -> None:
    shutil.copytree(finished_run(), tmp_path / "copy")
    directory = directory_of_run(tmp_path / "copy")
    manifest = read_manifest(str(directory))
    changed = msgspec.structs.replace(manifest, parameters={**manifest.parameters, "kind": "antigravity"})
    (directory / "manifest.json").unlink()
    write_manifest(changed, str(directory))
    with pytest.raises(UsageError, match=r"has its own model, 'antigravity', .*; give the run file of this run"):
        find_trained(str(directory))
    assert "antigravity" not in sys.modules


def test_models_without_a_published_class_are_refused(run: TrainedRun, tmp_path: Path) -> None:
    other = dataclasses.replace(run, kind="grug", config=grug.Config())
    with pytest.raises(UsageError, match=r"grug cannot be exported.*kinds dense and olmoe can be exported, as .*qwen3"):
        export_folder(other, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    plain = dataclasses.replace(run, averages=False)
    with pytest.raises(UsageError, match="has no averaged weights"):
        export_folder(plain, options=Options(averaged=True))
    with pytest.raises(UsageError, match="the maximum size of a file is 0 bytes"):
        Options(shard_bytes=0)


def test_the_card_states_data_metrics_and_licenses(run: TrainedRun, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    sources = [Source("web", "ODC-By-1.0", "https://host/web"), Source("a|b\n", None)]
    export_folder(run, str(tmp_path / "out"), origins=Origins(sources, ["license: odc-by"]))
    card = (tmp_path / "out/README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "odc-by",
        "tags": ["datakit", "qwen3_moe"],
    }
    assert "| web | ODC-By-1.0 | https://host/web | not recorded |" in text
    assert "| a\\|b\\n | not recorded |" in text
    assert f"`{run.caches[0].manifest.identity}` | 120 |" in text
    assert "each document ends with `<|endoftext|>` (id 0)" in text
    assert run.manifest is not None
    figures = run.manifest.details["figures"]
    assert f"| eval/web/bpb | {figures['eval/web/bpb']:.4f} |" in text
    assert "eval/ema" not in text
    export_folder(run, str(tmp_path / "ema"), Options(averaged=True))
    averaged = (tmp_path / "ema/README.md").read_text()
    assert f"| eval/ema/loss | {figures['eval/ema/loss']:.4f} |" in averaged
    assert "| eval/loss |" not in averaged


def test_the_run_file_in_the_documentation_starts_from_an_export(run: TrainedRun, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/huggingface.md").read_text()
    (tmp_path / "more.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    export_folder(run, str(tmp_path / "models/base"))
    (tmp_path / "texts").symlink_to(finished_run() / "cache")
    started, data = load_run(tmp_path / "more.toml", str(tmp_path))
    assert (started.initialize_from, started.model.hidden) == (f"hf:{tmp_path}/models/base", 64)
    assert data.notes == ()
