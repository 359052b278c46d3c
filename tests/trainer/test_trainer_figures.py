"""Figures are exact, settings are checked, and a training machine needs none of the pipeline's libraries."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import tomllib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from datakit.errors import RecipeError, TokenizerError, UsageError
from datakit.trainer.config import Evaluation, Run, parse_run
from datakit.trainer.device_feed import Feed, place, stage_at
from datakit.trainer.evaluate import Totals, count, evaluate, summary, token_byte_lengths
from datakit.trainer.metrics import trackers
from datakit.trainer.models import grug, olmoe, weights
from datakit.trainer.norms import alarms
from datakit.trainer.train import trainer_of
from tests.support.data import need_data
from tests.support.trainer_runs import Rows, TextBytes, small_run

SENTENCE = b"It was the best of times, it was the worst of times. " * 40


def test_bits_per_byte_are_total_bits_over_total_bytes() -> None:
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 9, (4, 6))
    losses = generator.random((4, 6)).astype(np.float32)
    weights_ = (generator.random((4, 6)) < 0.7).astype(np.float32)
    lengths = np.arange(9) % 4
    whole = count(losses, weights_, tokens, lengths)
    nats = bytes_ = predicted = 0.0
    for row in range(4):
        for position in range(5):
            if weights_[row, position]:
                nats += float(losses[row, position])
                bytes_ += float(lengths[tokens[row, position + 1]])
                predicted += 1
    assert (whole.tokens, whole.bytes) == (predicted, bytes_)
    assert whole.bits_per_byte == pytest.approx(nats / math.log(2) / bytes_, rel=1e-12)
    halves = sum((count(losses[i : i + 2], weights_[i : i + 2], tokens[i : i + 2], lengths) for i in (0, 2)), Totals())
    assert halves.nats == pytest.approx(whole.nats, rel=1e-12)
    assert (halves.tokens, halves.bytes) == (whole.tokens, whole.bytes)


def test_tags_have_parents_and_macro_means() -> None:
    totals = {
        "code/python": Totals(100.0, 50, 80),
        "code/c": Totals(30.0, 10, 20),
        "web": Totals(400.0, 200, 900),
    }
    figures = summary(totals)
    assert figures["eval/code/python/loss"] == 2.0
    assert figures["eval/code/micro_loss"] == pytest.approx(130 / 60)
    assert figures["eval/code/macro_loss"] == 2.5
    assert figures["eval/code/bpb"] == pytest.approx(130 / math.log(2) / 100)
    assert figures["eval/code/macro_bpb"] == pytest.approx((100 / 80 + 30 / 20) / 2 / math.log(2))
    assert figures["eval/loss"] == pytest.approx(530 / 260)
    assert figures["eval/macro_loss"] == pytest.approx(7 / 3)
    assert figures["eval/macro_bpb"] == pytest.approx((100 / 80 + 30 / 20 + 400 / 900) / 3 / math.log(2))
    assert not any("bpb" in name for name in summary({"web": Totals(4.0, 2, 0)}))


def test_evaluation_does_not_depend_on_batches_or_devices() -> None:
    run = small_run()
    text, lengths = TextBytes(SENTENCE, rows=16), np.ones(256, np.int64)
    rows = text.batch(0)
    padding = Rows(np.zeros_like(rows.tokens), np.zeros_like(rows.segments), np.zeros_like(rows.loss_mask))

    def halves() -> Iterator[Rows]:
        for part in (slice(0, 8), slice(8, 16)):
            yield Rows(rows.tokens[part], rows.segments[part], rows.loss_mask[part])

    found = []
    for devices, batches in ((1, [rows]), (8, list(halves())), (2, [rows, padding])):
        trainer = trainer_of(run, jax.devices()[:devices])
        with jax.set_mesh(trainer.mesh):
            state = trainer.fresh(0)
        found.append(evaluate(trainer, state["params"], state["model"], {"it": lambda b=batches: b}, lengths))
    for figures in found[1:]:
        assert figures["eval/it/bpb"] == pytest.approx(found[0]["eval/it/bpb"], rel=1e-6)
    with pytest.raises(UsageError, match="'it' holds no token"):
        evaluate(trainer, state["params"], state["model"], {"it": lambda: [padding]}, lengths)


@pytest.mark.parametrize("name", ["gpt2.json", "gpt-neox-olmo-dolma-v1_5.json"])
def test_bytes_of_tokens_sum_to_the_bytes_of_the_text(name: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = need_data() / "tokenizers" / name
    lengths = token_byte_lengths(path.read_bytes(), name)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    for text in (
        "plain words\n\n\tand  runs   of spaces",
        "naïve — 東京タワー 🗼",
        "def f(x):\n    return x**2\n" * 50,
    ):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert lengths[ids].sum() == len(text.encode())
    assert lengths[tokenizer.token_to_id("<|endoftext|>")] == 0


def test_other_vocabularies_are_refused() -> None:
    data = json.dumps({"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}).encode()
    with pytest.raises(TokenizerError, match=r"my.json is no byte-level vocabulary"):
        token_byte_lengths(data, "my.json")


def test_rows_of_figures_are_json_whatever_they_hold(tmp_path: Path) -> None:
    opened = trackers.open_metrics(str(tmp_path), 0, (), "project", "run", {})
    flat = trackers.flatten("train", {"router/load": np.eye(2), "router/routing_entropy": np.ones(2), "z_loss": 0.5})
    opened.log(1, flat | {"train/loss": float("nan")})
    opened.log(2, {"train/loss": 1.0})
    opened.log(1, {"train/loss": 2.0})
    opened.close()
    assert trackers.read_metrics(str(tmp_path)) == [
        {"global_step": 1, "train/loss": 2.0},
        {"global_step": 2, "train/loss": 1.0},
    ]
    first = json.loads((tmp_path / trackers.FILE_NAME).read_text().splitlines()[0])
    assert first["train/loss"] is None
    assert first["train/router/layer_1/load"] == [0.0, 1.0]
    assert first["train/router/routing_entropy_mean"] == 1.0
    with pytest.raises(UsageError, match=r"is .* the directory of a training run"):
        trackers.read_metrics(str(tmp_path / "elsewhere"))


def test_a_torn_last_row_is_taken_off(tmp_path: Path) -> None:
    whole, torn = '{"global_step": 1, "train/loss": 2.0}\n', '{"global_step": 2, "train/lo'
    (tmp_path / trackers.FILE_NAME).write_text(whole + torn)
    assert [row["global_step"] for row in trackers.read_metrics(str(tmp_path))] == [1]
    opened = trackers.open_metrics(str(tmp_path), 1, (), "project", "run", {})
    opened.log(2, {"train/loss": 1.0})
    opened.close()
    assert [row["train/loss"] for row in trackers.read_metrics(str(tmp_path))] == [2.0, 1.0]


def test_tensorboard_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    opened = trackers.open_metrics(str(tmp_path), 0, ("tensorboard",), "project", "run", {})
    opened.log(1, {"train/loss": 2.0, "throughput/device_kind": "cpu"})
    opened.close()
    assert list((tmp_path / "tensorboard").iterdir())


def test_absent_trackers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "wandb", "a_package_that_nobody_has")
    with pytest.raises(UsageError, match="wandb is not installed; pip install a_package_that_nobody_has"):
        trackers.check_trackers(["wandb"])


def test_peaks_are_known_by_the_device_s_name() -> None:
    assert trackers.peak_flops("NVIDIA H100 80GB HBM3") == 989.5e12
    assert trackers.peak_flops("NVIDIA H100 PCIe") == 756e12
    assert trackers.peak_flops("TPU v5 lite") == 197e12
    assert trackers.peak_flops("cpu") is None


def test_norms_outside_of_their_bands_are_alarms() -> None:
    begun = {"embed": 100.0, "adamh": 10.0, "router": 0.0}
    calm = {"embed": 480.0, "adamh": 10.05, "router": 3.0}
    assert alarms(calm, begun, (0.2, 5.0), fixed=True) == {}
    drifted = {"embed": 2100.0, "adamh": 10.2, "router": 3.0}
    assert alarms(drifted, begun, (0.2, 5.0), fixed=True) == pytest.approx({"embed": 21.0, "adamh": 1.02})
    assert alarms(drifted, begun, (0.2, 5.0), fixed=False) == pytest.approx({"embed": 21.0})


def test_stages_follow_the_sequences() -> None:
    record = {"stages": [[0, {"web": 1.0}], [100, {"web": 0.5, "code": 0.5}]]}
    assert stage_at(record, 99) == (0, {"web": 1.0})
    assert stage_at(record, 100) == (1, {"web": 0.5, "code": 0.5})
    assert stage_at({}, 5) is None


def test_a_feed_keeps_order_passes_errors_on_and_ends_its_thread() -> None:
    text, mesh = TextBytes(SENTENCE), weights.make_mesh()
    with Feed(text, mesh, 256, 3, 6) as feed:
        for step in (3, 4, 5):
            placed = feed.next()
            assert placed is not None
            np.testing.assert_array_equal(placed.batch.tokens, text.batch(step).tokens)
        assert feed.next() is None
        assert feed.waited >= 0

    class Broken(TextBytes):
        def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Rows, None, None]:
            yield self.batch(0)
            raise OSError("the disk is gone")

    with Feed(Broken(SENTENCE), mesh, 256, 0, 9) as feed:
        feed.next()
        with pytest.raises(OSError, match="the disk is gone"):
            feed.next()
    with Feed(text, mesh, 256, 0, 10**6):
        pass  # left early
    assert not [thread for thread in threading.enumerate() if thread.name == "datakit-loader-batches"]


def test_padding_is_not_counted() -> None:
    rows = TextBytes(SENTENCE).batch(0)
    segments = rows.segments.copy()
    segments[:, 16:] = 0
    placed = place(Rows(rows.tokens, segments, rows.loss_mask), weights.make_mesh(), 256)
    assert (placed.sequences, placed.tokens) == (8, 8 * 16)


def test_flops_are_those_of_the_matrix_products() -> None:
    config = grug.Config(vocabulary=64, hidden=32, layers=1, heads=2, kv_heads=1, head_width=16, experts=0, gate_rank=1)
    dense = 6 * 32 * 1024 + 2 * 32 * (32 + 32) + 2 * 32 * 32 + 128 * (4 * 32 + 3 * 2)
    assert grug.flops_per_token(config, 128, with_head=False) == dense
    assert grug.flops_per_token(config, 128) == dense + 2 * 32 * 64
    assert olmoe.active_parameters(olmoe.Config()) == pytest.approx(1.28e9, rel=0.01)  # "1B-7B"
    assert weights.parameter_count(olmoe.weights(olmoe.Config())) == pytest.approx(6.92e9, rel=0.01)


TOML = """
name = "small"
steps = 20
expect = {"train/loss" = 3}
[model]
hidden = 64
layers = 2
[optimizer]
learning_rate = 0.02
ema = 0.99
[checkpoint]
load = true
[evaluation]
every = 10
[log]
watch = ["grad"]
"""


def test_a_run_from_toml() -> None:
    run = parse_run(tomllib.loads(TOML), "small.toml")
    assert isinstance(run, Run)
    assert isinstance(run.model, grug.Config)
    assert (run.model.hidden, run.optimizer.ema, run.checkpoint.load) == (64, 0.99, True)
    assert run.evaluation == Evaluation(every=10)
    assert (run.log.watch, run.expect) == (("grad",), {"train/loss": 3.0})
    family = parse_run({"name": "o", "steps": 1, "model": {"kind": "olmoe"}}, "o.toml")
    assert isinstance(family.model, olmoe.Config)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"stepz": 3}, "unknown key 'stepz'; did you mean 'steps'"),
        ({"model": {"hiden": 3}}, r"\[model\]: unknown key 'hiden'; did you mean 'hidden'"),
        ({"optimizer": {"learning_rate": "fast"}}, "optimizer.learning_rate: Expected `float`"),
        ({"model": {"kind": "grugg"}}, "no model 'grugg'; did you mean 'grug'"),
        ({"steps": 0}, "steps is 0"),
        ({"name": "../x"}, "a name has letters, digits"),
        ({"replicas": 0}, "replicas is 0"),
        ({"norm_band": [5.0, 0.2]}, "the band lies around 1"),
        ({"peak_flops": -1.0}, "peak_flops is -1.0"),
        ({"model": {"hidden": -3}}, "model.hidden is -3"),
        ({"model": {"kind": "olmoe", "layers": 0}}, "model.layers is 0"),
        ({"optimizer": {"learning_rate": float("nan")}}, "learning_rate is nan"),
        ({"optimizer": {"router_learning_rate": -1.0}}, "router_learning_rate is -1.0"),
        ({"checkpoint": {"interval_minutes": -1.0}}, "interval_minutes is -1.0"),
        ({"checkpoint": {"keep_temporary": 0}}, "keep_temporary is at least 1"),
        ({"checkpoint": {"keep_every": 0}}, "keep_every is 0"),
        ({"evaluation": {"every": 0}}, "evaluation.every is 0"),
        ({"log": {"profile": [5, 2]}}, r"log.profile is \[5, 2\]"),
        ({"log": 3}, r"\[log\] is a table"),
    ],
)
def test_mistakes_in_toml_are_named(broken: dict[str, Any], message: str) -> None:
    with pytest.raises((RecipeError, UsageError), match=message):
        parse_run({"name": "x", "steps": 1} | broken, "x.toml")


def test_operation_is_no_part_of_what_a_run_is() -> None:
    run = parse_run(tomllib.loads(TOML), "small.toml")
    mixture = {"fingerprint": "a"}
    other = parse_run(tomllib.loads(TOML.replace("ema = 0.99", "ema = 0.98")), "small.toml")
    logged = parse_run(tomllib.loads(TOML.replace("every = 10", "every = 5")), "small.toml")
    assert run.fingerprint(mixture) == logged.fingerprint(mixture)
    assert len({run.fingerprint(mixture), other.fingerprint(mixture), run.fingerprint({"fingerprint": "b"})}) == 3


ALLOWED = """
import importlib, importlib.abc, pkgutil, sys

class Absent(importlib.abc.MetaPathFinder):
    names = {"jaxtyping", "beartype", "pyarrow", "duckdb", "numba", "tokenizers", "fastokens", "fsspec", "rich",
             "cyclopts", "orjson", "zstandard", "isal", "psutil", "scipy", "ray", "matplotlib", "safetensors"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"no {name} on a training machine", name=name)

sys.meta_path.insert(0, Absent())
import datakit.trainer
for module in pkgutil.walk_packages(datakit.trainer.__path__, "datakit.trainer."):
    importlib.import_module(module.name)
"""


def test_the_trainer_imports_without_the_pipeline_s_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOWED], capture_output=True, text=True, check=False)
    # jax and orbax import some of these themselves where they find them; they must do without, too
    assert done.returncode == 0, done.stderr
