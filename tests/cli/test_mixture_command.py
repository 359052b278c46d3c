"""`datakit mixture`: previews, plots, warnings and errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from datakit.cache.reader import open_cache
from datakit.cli import mixture_command
from datakit.cli.console import WIDTH
from datakit.loader import CacheSource, Loader, SequenceOrder, contributions, load_mixture
from datakit.loader.mixture.preview import Preview
from tests.support.loader.mixture_files import cache, called, changed, mixture, unfinished_copy

__all__ = ["cache", "mixture"]  # fixtures


def test_unfinished_cache_is_refused(cache: Path, mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished_copy(cache, mixture.parent)
    other = changed(mixture, 'cache = "cache"\nsource = "web"', 'cache = "unfinished"\nsource = "web"')
    assert called("mixture", "preview", str(other)) == 2
    said = capsys.readouterr().err
    assert "component 'web'" in said
    assert "no finished token cache" in said


def test_preview_matches_contributions(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("mixture", "preview", str(mixture), "--points", "4", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    view = contributions(SequenceOrder(load_mixture(mixture)), 60, 5)
    assert said["components"] == ["code", "web"]
    assert said["steps"] == [0, 15, 30, 40, 45, 60]
    assert said["tokens"] == view.tokens.tolist()
    assert said["epochs"] == view.epochs.tolist()
    assert sum(said["tokens"][-1]) == 8 * (40 * 64 + 20 * 128)
    assert [change["step"] for change in said["changes"]] == [30, 40]
    assert called("mixture", "preview", str(mixture)) == 0
    shown = capsys.readouterr().out
    for part in ("code share", "step 30: stage 2: code 0.5, web 0.5", "step 40: sequence length 128", "60 steps"):
        assert part in shown


def test_preview_shows_exclusions(cache: Path, mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Loader(load_mixture(mixture)) as loader:
        part = loader.places(0)[0]
        source = loader.order.mixture.components[part.component].source
    assert isinstance(source, CacheSource)
    opened = open_cache(str(cache))
    identity = opened[opened.row_at(source.start + part.position)].id
    table = f'[[exclusions]]\nstart_step = 35\ndocuments = ["{identity}"]\n\n[components.web]'
    other = changed(mixture, "[components.web]", table)
    assert called("mixture", "preview", str(other)) == 0
    shown = capsys.readouterr().out.splitlines()
    (line,) = [line for line in shown if "the loss leaves out 1 document from here on (" in line]
    assert line.startswith("step 35: ")
    assert [row.partition(":")[0] for row in shown if row.startswith("step ")] == ["step 30", "step 35", "step 40"]
    assert called("mixture", "preview", str(other), "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)["exclusions"]
    assert (listed["start_step"], listed["documents"]) == (35, [identity])
    assert sum(listed["tokens"].values()) > 0


def test_preview_warns_if_the_mixture_ends_early(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = changed(mixture, "max_epochs = 40", "max_epochs = 1")
    assert called("mixture", "preview", str(other), "--steps", "5000") == 0
    said = capsys.readouterr()
    assert "of 5,000 steps: component 'code' has completed 1 epoch" in said.err
    assert "ends after" in said.out


def test_endless_mixture_needs_steps(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endless = changed(mixture, "steps = 60", "")
    endless.write_text(endless.read_text().replace("max_epochs = 40", ""))
    assert called("mixture", "preview", str(endless)) == 2
    assert "--steps" in capsys.readouterr().err
    assert called("mixture", "preview", str(endless), "--steps", "10") == 0
    assert "10 steps (the mixture has no end of its own)" in capsys.readouterr().out


def test_plot_is_written(mixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "mix.png"
    assert called("mixture", "preview", str(mixture), "--plot", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert called("mixture", "preview", str(mixture), "--plot", str(tmp_path / "mix.bmp")) == 2
    assert ".png, .svg or .pdf" in capsys.readouterr().err


def test_plot_without_matplotlib_says_how_to_install(
    mixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert called("mixture", "preview", str(mixture), "--plot", str(tmp_path / "mix.png")) == 2
    assert "pip install '.[report]'" in capsys.readouterr().err


def test_pack_without_packed_components_does_nothing(
    mixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = changed(mixture, 'packing = { too_long = "split", max_documents = 6 }\n', "")
    assert called("mixture", "pack", str(plain), "--root", str(tmp_path / "root")) == 0
    assert "no component is packed" in capsys.readouterr().out
    assert not (tmp_path / "root").exists()


def run_file(mixture: Path, data: str) -> Path:
    """A run file beside the mixture file."""
    path = mixture.with_name("run.toml")
    path.write_text(f'name = "small"\nsteps = 60\n[model]\nhidden = 32\n{data}')
    return path


def inline(mixture: Path) -> str:
    """The mixture as the table [data] of a run file, with a validation set."""
    text = mixture.read_text().replace("steps = 60\n", "")
    text = text.replace("[components.", "[data.components.").replace("[[stages]]", "[[data.stages]]")
    text = text.replace('"cache"', '"{root}/cache"')
    return f'[data]\n{text}\n[data.evaluation.exams]\ncache = "{{root}}/cache"\n'


@pytest.mark.parametrize("kind", ["inline", "named"])
def test_run_file_is_previewed_like_its_mixture(mixture: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert called("mixture", "preview", str(mixture), "--json") == 0
    expected = capsys.readouterr().out
    run = run_file(mixture, inline(mixture) if kind == "inline" else '[data]\nmixture = "mix.toml"\n')
    assert called("mixture", "preview", str(run), "--root", str(mixture.parent), "--json") == 0
    assert capsys.readouterr().out == expected


def test_run_file_is_packed_for_its_training(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, root = run_file(mixture, inline(mixture)), str(mixture.parent)
    assert called("mixture", "pack", str(run), "--root", root) == 0
    shown = capsys.readouterr().out
    table, rest = shown.split("\n\n")
    assert max(map(len, table.splitlines())) <= WIDTH
    assert table.splitlines()[0].split() == [*mixture_command.PACK_HEADERS]
    assert "packing-64-split-6-" in table.splitlines()[2]
    assert rest.splitlines()[-1] == f"train:     datakit train {run} --root {root}"
    assert called("mixture", "pack", str(mixture), "--root", root) == 0
    assert "everything was already done" in capsys.readouterr().out


def test_mistake_in_the_data_of_a_run_file_is_named(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_file(mixture, inline(mixture).replace("batch_size", "batchsize"))
    assert called("mixture", "preview", str(run)) == 2
    assert "run.toml: unknown key 'batchsize'; did you mean 'batch_size'?" in capsys.readouterr().err
    run.write_text(run.read_text().replace("steps = 60", ""))
    assert called("mixture", "pack", str(run)) == 2
    assert "steps is None; a run file must set steps" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_tables_over_time_fit_any_number_of_components(count: int) -> None:
    names = [f"a-component-with-a-long-name-{number}" for number in range(count)]
    tokens = np.arange(3 * count).reshape(3, count) * 10**9
    share = np.full((2, count), 1 / count)
    view = Preview(names, np.array([0, 10**6, 2 * 10**6]), tokens, tokens / 10**9, share, [], "")
    shown = mixture_command.over_time(view)
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert shown.count(f"{1 / count:.2%}") == 2 * count
