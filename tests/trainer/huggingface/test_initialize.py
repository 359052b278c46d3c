"""A run starts from a model of the hub: with its settings, its weights, and a tokenizer that fits."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("safetensors")
from datakit.errors import CheckpointError, TokenizerError, UsageError
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.huggingface import initialize
from datakit.trainer.huggingface.export_checkpoint import tensors_to_hub
from datakit.trainer.models import olmoe
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.optimizers import adamh
from datakit.trainer.run_file import RunFile, read_run_file
from datakit.trainer.train import train, trainer_of
from tests.support.hub_models.folders import DESCRIPTION, write_folder
from tests.support.trainer.trainer_runs import TextBytes, checkpoints_of, small_run

pytestmark = pytest.mark.xdist_group("hub-runs")
FAST = {"compute": "float32", "remat": "none", "moe_backend": "dense"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with two files of tensors. Tests must not change it."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    write_folder(folder, 2)
    return folder


def run_file(folder: Path, table: dict[str, Any], place: str = "hf:model") -> RunFile:
    return RunFile(folder / "run.toml", {"name": "x", "steps": 2, "initialize_from": place, "model": table}, {})


def test_config_json_gives_the_settings(model: Path) -> None:
    run = run_file(model.parent, {}).run(999)
    assert (run.kind, run.initialize_from) == ("olmoe", f"hf:{model}")
    assert (run.model.vocabulary, run.model.query_key_norm, run.model.norm_epsilon) == (512, "head", 1e-6)
    chosen = run_file(model.parent, {"kind": "olmoe", "balance_loss": 0.5, "hidden": 16, **FAST}).run(999)
    assert (chosen.model.balance_loss, chosen.model.compute, chosen.model.hidden) == (0.5, "float32", 16)


def test_a_run_may_choose_how_to_train(model: Path, tmp_path: Path) -> None:
    """A capacity limits what the experts accept in training; the weights of a published model stay valid."""
    table = {"capacity_factor": 0.5, "capacity_rows": 4, "capacity_groups": 2, "router_z_loss": 0.1, "z_loss": 0.1}
    run = run_file(model.parent, table | {"attention_backend": "dense", "loss_piece": 8}).run(999)
    assert dataclasses.asdict(run.model).items() >= table.items()
    trained = dataclasses.replace(hub_run(model), model=dataclasses.replace(run.model, **FAST))
    directory = train(trained, TextBytes(rows=8), str(tmp_path), say=lambda _: None).directory
    row = json.loads((Path(directory) / "metrics.jsonl").read_text().splitlines()[0])
    assert row["train/router/capacity_overflow_rate_mean"] > 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"hidden": 32, "layers": 2}, r"model.hidden is 32 instead of 16; remove these settings"),
        ({"init_std": 0.5}, "model.init_std is 0.5 instead of 0.02"),
        ({"window": 16, "capacity_factor": 1.0}, r"another model: model.window is 16 instead of None; remove"),
        ({"rope_theta": 5.0}, r"model.rope_theta is 5.0 instead of 10000.0; .*capacity_factor"),
        ({"kind": "grug"}, 'one of kind = "olmoe", but .* "grug"'),
    ],
)
def test_another_model_is_refused(table: dict[str, Any], message: str, model: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run_file(model.parent, table).run(999)


def test_a_name_on_the_hub_is_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder; download the model first"):
        run_file(tmp_path, {}, "hf:allenai/OLMoE-1B-7B-0924").run(999)


def hub_run(model: Path, **changes: Any) -> Any:
    config = dataclasses.replace(run_file(model.parent, {}).run(999).model, **FAST)
    checkpoint = Checkpoints(interval_minutes=1e9)
    optimizer = adamh.Config(ema=0.9)
    settings = {"kind": "olmoe", "model": config, "steps": 1, "checkpoint": checkpoint, "optimizer": optimizer}
    return small_run(**settings | {"initialize_from": f"hf:{model}"} | changes)


def test_the_first_step_starts_from_the_weights(model: Path, tmp_path: Path, lines: list[str]) -> None:
    """The first logged loss is that of the folder's weights; the manifest records the files."""
    run, source = hub_run(model), TextBytes(rows=8)
    directory = train(run, source, str(tmp_path), say=lines.append).directory
    assert f"fresh start with the weights of {model}" in lines
    trainer = trainer_of(run, jax.devices()[:2])
    expected, record = initialize.load_weights(model, trainer.fresh(1)["params"], run.model)
    first = next(source.iterate(0, 1))
    batch = jax.tree.map(jnp.asarray, (first.tokens, first.segments, first.loss_mask))
    output = jax.jit(lambda p: olmoe.apply(p, {}, Tokens(*batch), run.model))(expected)
    loss = float((output.losses * output.weights).sum() / output.weights.sum() + output.auxiliary)
    row = json.loads((Path(directory) / "metrics.jsonl").read_text().splitlines()[0])
    assert row["train/loss"] == pytest.approx(loss, rel=1e-5)
    origin = json.loads((Path(directory) / "manifest.json").read_text())["details"]["origin"]
    assert origin == record == {"by": "initialize_from", **initialize.opened(model).record}
    assert checkpoints_of(directory)[0].marker.origin == origin


def test_all_weights_are_those_of_the_folder_on_every_mesh(model: Path) -> None:
    from datakit.trainer.huggingface.folder import open_folder

    run = hub_run(model)
    for devices in (jax.devices()[:1], jax.devices()[:4]):
        trainer = trainer_of(run, devices)
        params, _ = initialize.load_weights(model, trainer.fresh(1)["params"], run.model)
        assert jax.tree.map(lambda x: x.sharding, params) == trainer.shardings["params"]
        theirs = open_folder(model).tensors
        ours = dict(tensors_to_hub(jax.tree.map(np.asarray, params), run.model))
        assert ours.keys() == {*theirs}
        for name, array in ours.items():
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_the_fingerprint_covers_the_contents_and_not_the_place(model: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "same", 2)
    write_folder(tmp_path / "other", 1)
    mixture = {"fingerprint": "a"}
    prints = [
        hub_run(model, initialize_from=f"hf:{place}").fingerprint(mixture)
        for place in (model, tmp_path / "same", tmp_path / "other")
    ]
    assert prints[0] == prints[1] != prints[2]
    (tmp_path / "same/config.json").write_text(json.dumps(DESCRIPTION | {"use_cache": False}))
    assert hub_run(model, initialize_from=f"hf:{tmp_path / 'same'}").fingerprint(mixture) != prints[0]


def test_the_model_of_a_run_in_python_is_checked(model: Path, tmp_path: Path) -> None:
    run = hub_run(model)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, rope_theta=5.0))
    with pytest.raises(UsageError, match=r"model.rope_theta is 5.0 instead of 10000.0"):
        train(run, TextBytes(), str(tmp_path))
    with pytest.raises(UsageError, match="has a model of kind 'olmoe', but the run has kind 'grug'"):
        train(small_run(initialize_from=f"hf:{model}"), TextBytes(), str(tmp_path))


def test_a_damaged_folder_ends_the_run_before_training(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", 2)
    run, shard = hub_run(tmp_path / "model"), next((tmp_path / "model").glob("model-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{shard.name} is not a valid safetensors file"):
        train(run, TextBytes(), str(tmp_path))


TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<e>"}],
}


def encoded(**changes: Any) -> bytes:
    return json.dumps(TOKENIZER | {"model": TOKENIZER["model"] | changes.pop("model", {})} | changes).encode()


def compared(theirs: bytes | None, ours: bytes, folder: Path) -> tuple[str, ...]:
    write_folder(folder / "model", tokenizer=theirs)
    return initialize.check_tokenizer(folder / "model", ours, "cache/tokenizer.json")


def test_equal_tokenizers_pass(tmp_path: Path) -> None:
    assert compared(encoded(), encoded(), tmp_path / "a") == ()
    pairs = {"merges": [["a", "b"]]}  # newer files have pairs
    assert compared(encoded(), encoded(model=pairs), tmp_path / "b") == ()


def test_differences_between_tokenizers_are_named(tmp_path: Path) -> None:
    assert "has no tokenizer.json" in compared(None, encoded(), tmp_path / "none")[0]
    more = [{"id": 3, "content": "<e>"}, {"id": 4, "content": "<chat>"}]
    (note,) = compared(encoded(), encoded(added_tokens=more), tmp_path / "more")
    assert "lacks 1 token ids of the caches' tokenizer, such as '<chat>' (id 4)" in note
    (note,) = compared(encoded(), encoded(normalizer={"type": "NFC"}, model={"merges": []}), tmp_path / "cuts")
    assert "differs from" in note and "in normalizer, model.merges" in note
    with pytest.raises(TokenizerError, match=r"2 token ids mean something else .*: id 0 is 'b' instead of 'a'"):
        compared(encoded(), encoded(model={"vocab": {"b": 0, "a": 1, "ab": 2}}), tmp_path / "swapped")
    with pytest.raises(TokenizerError, match=r"is not a tokenizer.json that can be compared"):
        compared(b"{}", encoded(), tmp_path / "empty")


def test_a_run_file_names_a_folder_beside_it(model: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('name = "x"\nsteps = 1\ninitialize_from = "hf:sub/../model"\n')
    write_folder(tmp_path / "model")
    (tmp_path / "sub").mkdir()
    assert read_run_file(tmp_path / "run.toml").run(1).model.hidden == 16
