"""A plan's run file can be run as it is, and holds exactly what the plan says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from datakit.cache.reader import open_cache
from datakit.cli import main
from datakit.errors import UsageError
from datakit.trainer.commands import train_file
from datakit.trainer.load_run import load_run
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.sizes import run_file, scaling
from tests.support.trainer.trainer_runs import silent

pytest.importorskip("pyarrow")
from tests.support.caches import make_cache
from tests.support.partitions import words

BUDGET = 3e8  # of which a step with batches of 8 x 32 tokens takes most


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in a folder whose name is no bare key of TOML."""
    folder = tmp_path_factory.mktemp("data") / "my books"
    make_cache(folder, {"web": [words(start, 1, 40)[0] for start in range(150)]})
    return folder / "cache"


@pytest.mark.parametrize("kind", ["dense", "grug", "latent_moe", "olmoe"])
def test_a_run_file_holds_the_plan(kind: str, cache: Path, tmp_path: Path) -> None:
    plan, text = run_file.sized(BUDGET, 256, str(cache), kind=kind, sequence=32)
    path = tmp_path / "run.toml"
    path.write_text(text)
    run, data = load_run(path)
    assert (run.kind, run.model, run.steps, run.optimizer) == (kind, plan.model, plan.steps, plan.optimizer)
    assert run.model.vocabulary == data.vocabulary == 512  # 400 tokens and the end of a document, rounded up
    with data.loader() as loader:
        assert loader.outline(run.steps) == [(plan.steps, plan.batch, 32)]
    (component,) = data.mixture.components.values()
    assert component.validation_tokens == open_cache(str(cache)).tokens // 100
    assert all(len(line) <= 120 for line in text.splitlines())
    assert tomllib.loads(text)["model"].keys().isdisjoint({"remat", "moe_backend", "loss_piece"})


def test_long_caches_hold_out_a_bounded_number_of_tokens(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = open_cache(str(cache)).tokens
    for most, held_out in ((10**6, tokens // run_file.HELD_OUT_SHARE), (7, 7)):
        monkeypatch.setattr(run_file, "HELD_OUT_TOKENS", most)
        _, text = run_file.sized(BUDGET, 256, str(cache), sequence=32)
        (component,) = tomllib.loads(text)["data"]["components"].values()
        assert component["validation_tokens"] == held_out


def test_a_sized_run_trains(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, root = tmp_path / "sized.toml", str(tmp_path / "root")
    sizes = ["--flops", f"{BUDGET}", "--hidden", "128", "--sequence", "32", "--cache", str(cache)]
    small = ["data.batch_size=8", "steps=2", "model.moe_backend=dense", "compilation_cache=''", "evaluation.every=2"]
    changes = [part for change in small for part in ("--set", change)]
    command = ["train", *sizes, "--output", str(path), "--root", root, *changes]
    assert main(command) == 0
    captured = capsys.readouterr()
    directory = captured.out.strip()
    assert Path(directory).parent == tmp_path / "root" / "cache-3e08-128"
    assert f"run file    {path}" in captured.err
    assert "kernels on cpu: experts by dense" in captured.err
    assert [row["global_step"] for row in read_metrics(directory)] == [1, 2]

    assert main(["size", *sizes, "--toml"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert train_file(path, root, small, say=silent).directory == directory
    assert main(command) == 0  # the same command finds its file and its finished run
    assert "already finished" in capsys.readouterr().err

    path.write_text(path.read_text() + "# edited\n")
    assert main(command) == 2
    assert f"datakit train {path}" in capsys.readouterr().err


def test_a_dry_run_reports_and_writes_nothing(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, root = tmp_path / "run.toml", tmp_path / "root"
    path.write_text(run_file.sized(BUDGET, 128, str(cache), sequence=32)[1])
    small = ["data.batch_size=8", "steps=2", "model.moe_backend=dense", "compilation_cache=''", "evaluation.every=2"]
    changes = [part for change in small for part in ("--set", change)]
    assert main(["train", str(path), "--root", str(root), "--dry-run", *changes]) == 0
    captured = capsys.readouterr()
    assert "needs, MB" in captured.out
    assert "a step needs" in captured.err
    assert f"datakit train {path} --root {root} --set data.batch_size=8" in captured.err
    assert not root.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train"], "give a run file"),
        (["train", "--flops", "1e18", "--hidden", "512"], "or else all of --flops, --hidden, --cache"),
        (["train", "demo", "--sequence", "32"], "--sequence: these options size a new run, but demo is given"),
        (["size", "--flops", "1e18", "--hidden", "512", "--toml"], "needs --cache"),
        (["size", "--flops", "1", "--hidden", "512", "--cache", "c", "--vocabulary", "9"], "would contradict"),
        (["size", "--flops", "1e18", "--hidden", "512", "--kind", "grugg"], "did you mean 'grug'"),
        (["size", "--flops", "1e18", "--hidden", "200", "--kind", "olmoe"], "must be a positive multiple of 128"),
    ],
)
def test_incomplete_or_contradictory_options_are_refused(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_of_width_cannot_be_sized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(scaling.load_model("olmoe").__file__).read_text()
    (tmp_path / "unsized_model.py").write_text(source.replace("def of_width(", "def another("))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"'unsized_model' cannot be sized, .* use dense or grug or lat"):
        scaling.size(1e18, 512, kind="unsized_model")


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a copy of dense.py, relative to the current directory."""
    (tmp_path / "here/parts").mkdir(parents=True)
    (tmp_path / "here/parts/my model.py").write_text(Path(scaling.load_model("dense").__file__).read_text())
    monkeypatch.chdir(tmp_path / "here")
    return "parts/my model.py"


OWN = ["--flops", f"{BUDGET}", "--hidden", "128", "--sequence", "32"]
SHORT = ["--set", "data.batch_size=8", "--set", "steps=1", "--set", "compilation_cache=''"]


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ([], "parts/my model.py"),
        (["--output", "elsewhere/x.toml"], "../parts/my model.py"),
        (["--output", "link/x.toml"], "../../here/parts/my model.py"),
    ],
    ids=["here", "elsewhere", "through-a-link"],
)
def test_a_run_of_a_model_file_is_sized_and_trains_from_any_folder(
    output: list[str], kind: str, own_model: str, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "here/elsewhere").mkdir()
    (tmp_path / "far/away").mkdir(parents=True)
    Path("link").symlink_to(tmp_path / "far/away")
    command = ["train", *OWN, "--cache", str(cache), "--kind", own_model, "--root", str(tmp_path / "root"), *SHORT]
    assert main([*command, *output]) == 0
    written = output[-1] if output else "cache-3e08-128-my-model.toml"
    assert tomllib.loads(Path(written).read_text())["model"]["kind"] == kind
    (directory,) = (tmp_path / "root").glob("cache-3e08-128-my-model/train-*")
    assert [row["global_step"] for row in read_metrics(str(directory))] == [1]


def test_a_printed_run_file_of_a_model_file_works_in_any_folder(
    own_model: str, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["size", *OWN, "--cache", str(cache), "--kind", own_model, "--toml"]) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["model"]["kind"] == str(tmp_path / "here" / own_model)
    (tmp_path / "run.toml").write_text(text)
    monkeypatch.chdir("/")
    run, _ = load_run(tmp_path / "run.toml")
    assert run.model == scaling.size(BUDGET, 128, kind=run.kind, vocabulary=512, sequence=32).model


def test_other_kinds_are_sized_by_their_own_flops() -> None:
    plan = scaling.size(1e18, 2048, kind="olmoe")
    model = scaling.load_model("olmoe")
    assert plan.model == model.Config(vocabulary=128_256)  # OLMoE-1B-7B, with the vocabulary of the fit
    assert plan.tokens * 3 * model.flops_per_token(plan.model, 4096, with_head=False) == pytest.approx(1e18)
    assert any("fitted on Grug models" in warning for warning in plan.warnings)
    assert "olmoe, hidden 2048, 16 layers" in plan.lines()[1]
    assert plan.document()["active_parameters"] == model.active_parameters(plan.model)
