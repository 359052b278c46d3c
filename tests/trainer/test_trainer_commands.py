"""From a recipe's cache to a trained, evaluated and plotted model, through the command line's own functions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.ngram import Counts, bits_per_byte, predictions, score
from datakit.cli import main
from datakit.errors import CheckpointError, LoaderError, RecipeError, TokenizerError, UsageError
from datakit.loader import ArraySource, Component, Loader, Mixture
from datakit.toml_config import read_toml
from datakit.trainer import commands
from datakit.trainer.checkpoints.checkpoint import candidates
from datakit.trainer.commands import evaluate_file, load_run, train_file
from datakit.trainer.metrics.trackers import read_metrics
from datakit.trainer.train import train
from tests.support.trainer_runs import TextBytes, shakespeare, small_run
from tests.trainer.test_trainer_train import largest_file

pytest.importorskip("pyarrow")
from tests.support.caches import make_cache, trained
from tests.support.partitions import words

RUN = """
name = "small"
steps = 6
[model]
hidden = 32
layers = 2
heads = 2
kv_heads = 1
head_width = 16
experts = 4
experts_per_token = 2
expert_width = 32
shared_width = 32
gate_rank = 8
window = 32
compute = "float32"
[checkpoint]
interval_minutes = 1000
[evaluation]
every = 4
[data]
sequence_length = 32
batch_size = 8
[data.components.web]
cache = "{root}/cache"
source = "web"
validation_tokens = 400
[data.components.code]
cache = "{root}/cache"
source = "code"
[data.evaluation."exams/code"]
cache = "cache"
source = "code"
[[data.stages]]
weights = { web = 0.75, code = 0.25 }
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of two sources, and the run's file."""
    folder = tmp_path_factory.mktemp("commands")
    starts = {"code": 0, "web": 1000}
    make_cache(
        folder, {name: [words(start + i, 1, 20 + i % 60)[0] for i in range(120)] for name, start in starts.items()}
    )
    (folder / "run.toml").write_text(RUN + f"[log]\nprogress_seconds = 0\n# {folder}\n")
    return folder


@pytest.fixture(scope="module")
def directory(root: Path) -> str:
    """The directory of the trained run."""
    overrides = [f'compilation_cache="{root}/compiled"']
    return train_file(root / "run.toml", str(root), overrides, say=lambda _: None).directory


def test_a_trained_run_names_its_caches_and_measures_every_tag(root: Path, directory: str) -> None:
    manifest = json.loads((Path(directory) / "manifest.json").read_text())
    (reference,) = manifest["inputs"]
    assert reference["stage"] == "tokenize"
    cache = json.loads((Path(directory) / reference["path"]).read_text())
    assert cache["identity"] == reference["identity"]
    figures = manifest["details"]["figures"]
    for tag in ("web", "exams/code"):
        assert figures[f"eval/{tag}/bpb"] > 0
    assert figures["eval/exams/macro_loss"] == pytest.approx(figures["eval/exams/code/loss"])
    rows = read_metrics(directory)
    assert rows[0]["mixture/weight/web"] == 0.75
    assert "data/bytes_read" in rows[-1]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


def test_evaluating_the_checkpoint_gives_the_run_s_figures(root: Path, directory: str) -> None:
    trained_figures = json.loads((Path(directory) / "manifest.json").read_text())["details"]["figures"]
    checkpoint = f"{directory}/checkpoints/step-000000006"
    for place, devices in ((None, None), (checkpoint, jax.devices()[:1])):
        found = evaluate_file(root / "run.toml", str(root), place, devices=devices, say=lambda _: None)
        assert (found.step, found.checkpoint) == (6, checkpoint)
        for name in ("eval/web/bpb", "eval/exams/code/loss", "eval/macro_bpb"):
            assert found.figures[name] == pytest.approx(trained_figures[name], rel=1e-6)


def test_evaluating_takes_an_older_checkpoint_where_the_newest_is_damaged(root: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    overrides = [f'compilation_cache="{root}/compiled"', "checkpoint.keep_every=4"]
    text = (root / "run.toml").read_text().replace("{root}/cache", f"{root}/cache")
    (tmp_path / "run.toml").write_text(text.replace('cache = "cache"', f'cache = "{root}/cache"'))
    directory = train_file(tmp_path / "run.toml", str(tmp_path), overrides, say=lambda _: None).directory
    newest, older = candidates([f"{directory}/checkpoints"], lambda _: None)
    damaged = largest_file(newest)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    found = evaluate_file(tmp_path / "run.toml", str(tmp_path), overrides=overrides, say=lines.append)
    assert (found.step, found.checkpoint) == (4, str(older.path))
    assert [line for line in lines if line.startswith(f"warning: {newest.path} is damaged")]
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        evaluate_file(tmp_path / "run.toml", str(tmp_path), str(newest.path), overrides, say=lines.append)


def call(*arguments: str) -> object:
    """A command's exit code; a group of commands leaves by SystemExit."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def test_the_command_line(root: Path, directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", f"{root}/run.toml", "--root", str(root), "--json") == 0
    assert json.loads(capsys.readouterr().out)["directory"] == directory
    assert call("eval", f"{root}/run.toml", "--root", str(root)) == 0
    assert "eval/web/bpb" in capsys.readouterr().out
    assert call("train", "plot", directory) == 0
    assert Path(capsys.readouterr().out.strip()).stat().st_size > 10_000
    assert call("size", "--flops", "1e19", "--hidden", "1024") == 0
    assert "128 sequences" in capsys.readouterr().out
    assert call("size", "--flops", "1e19", "--hidden", "1024", "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 14055
    assert call("eval", f"{root}/run.toml", "--root", str(root), "--set", "seed=5") == 1
    assert "train the run first" in capsys.readouterr().err
    assert call("train", "demoo") == 2
    assert "did you mean 'demo'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (["model.vocabulary=200"], UsageError, "model.vocabulary is 200, but the caches hold ids below 400"),
        (["data.components.web.sauce=1"], LoaderError, r"component 'web': unknown key 'sauce'; did you mean 'source'"),
        (["data.components.web.source=wbe"], LoaderError, "no source 'wbe'"),
        (["data.components.web.cache=nowhere"], UsageError, "nowhere holds no finished token cache"),
        (["data.batchsize=1"], LoaderError, "did you mean 'batch_size'"),
        (["data.evaluation.x.cash=1"], LoaderError, "did you mean 'cache'"),
        (["data.mixture=mix.toml"], RecipeError, "beside `mixture`, batch_size, components,"),
        (["data={}"], RecipeError, "no data"),
        (["data.components.code.source=web"], LoaderError, r"'code' and 'web' read the same tokens.* 0 and 400"),
        (['data.components.code={cache="cache"}'], LoaderError, r"'code' would train on documents that 'web' holds"),
        (['data.evaluation={"web/x"={cache="cache"}}'], UsageError, "'web' is the parent of 'web/x'"),
        (["data.evaluation.ema.cache=cache"], UsageError, "evaluation 'ema': eval/ema/"),
        (["nonsense"], UsageError, "is not of the form key=value"),
        (["steps.x=1"], UsageError, "'steps' is a value, not a table"),
    ],
)
def test_mistakes_are_named(root: Path, changes: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_run(root / "run.toml", str(root), changes)


def test_caches_of_two_tokenizers_do_not_mix(root: Path, tmp_path: Path) -> None:
    make_cache(tmp_path, {"code": words(1, 20)}, tokenizer=trained(300))
    with pytest.raises(TokenizerError, match="was made with the tokenizer of sha256"):
        load_run(root / "run.toml", str(root), [f'data.components.code.cache="{tmp_path}/cache"'])


def test_a_model_without_a_vocabulary_takes_the_tokenizer_s(root: Path) -> None:
    run, data = load_run(root / "run.toml", str(root))
    assert data.vocabulary == run.model.vocabulary == 512
    assert data.token_bytes is not None


def test_the_demo_s_run_is_complete() -> None:
    assert commands.run_names() == ["demo"]
    document = read_toml(commands.RUNS / "demo.toml", "")
    sources = {entry["source"] for entry in document["data"]["components"].values()}
    assert sources == {"stdlib-code", "stdlib-docs", "stdlib-encodings"}


def test_the_loader_and_a_changed_mixture(tmp_path: Path) -> None:
    tokens = np.frombuffer(shakespeare()[:60_000], np.uint8).astype(np.uint16)
    component = {"plays": Component(ArraySource(tokens, np.full(60, 1000)))}
    run = small_run(steps=3)

    def loader(**changes: Any) -> Loader:
        settings: dict[str, Any] = {"sequence_length": 32, "batch_size": 8, "seed": 1, **changes}
        return Loader(Mixture(component, {"plays": 1.0}, **settings))

    with loader() as first:
        before = train(run, first, str(tmp_path))
    later = dataclasses.replace(run, steps=4, resume_from=before.directory)
    with loader(seed=2) as other, pytest.raises(LoaderError, match="seed: 1 -> 2"):
        train(later, other, str(tmp_path))
    with loader() as same:
        assert train(later, same, str(tmp_path)).resumed_from == 3


def test_baselines_are_what_their_formulas_say() -> None:
    text = TextBytes(b"abracadabra " * 50, rows=4, length=32)
    batches, lengths = [text.batch(step) for step in range(3)], np.ones(256, np.int64)
    counts = Counts.of(batches, 256)
    assert counts.tokens == sum(len(predictions(batch)[0]) for batch in batches) == 3 * 4 * 31
    assert counts.unigram().sum() == pytest.approx(1.0)
    for token in (ord("a"), ord("z")):
        everything = counts.bigram_of(np.full(256, token), np.arange(256), 2.0)
        assert everything.sum() == pytest.approx(1.0)
    scored = score(counts, batches, lengths)
    unigram, bigram = scored["unigram"][0], scored["bigram"][0]
    assert bits_per_byte(bigram) < bits_per_byte(unigram) < 8
    assert bigram.tokens == bigram.bytes == counts.tokens
