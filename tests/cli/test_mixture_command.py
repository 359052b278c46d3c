"""A mixture file says the same to the command line and to Python; its packing is counted once; mistakes are named."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from datakit.cli.app import main
from datakit.errors import CorruptError, LoaderError
from datakit.loader import (
    Component,
    Loader,
    Mixture,
    Packing,
    Plan,
    Schedule,
    Shuffle,
    Stage,
    contributions,
    load_mixture,
    load_mixture_file,
    open_source,
)
from datakit.pipeline import packing_stage
from datakit.pipeline.mixture_packing import pack_mixture
from tests.support.caches import make_cache
from tests.support.command_line import command
from tests.support.partitions import words
from tests.support.small_shelf import changes, step, tree

MIXTURE = """
sequence_length = [[0, 64], [40, 128]]
batch_size = 8
seed = 5
steps = 60

[components.web]
cache = "cache"
source = "web"
validation_tokens = 2_000

[components.code]
cache = "cache"
source = "code"
packing = { too_long = "split", max_documents = 6 }
max_epochs = 40
validation_tokens = 1_000
shuffle = { block_tokens = 512 }

[[stages]]
weights = { web = 0.9, code = 0.1 }

[[stages]]
start_step = 30
weights = { web = 1, code = 1 }
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources in four shards each."""
    texts = {
        name: [words(seed * 1000 + i, 1, 5 + i % 60)[0] for i in range(300)]
        for seed, name in enumerate(("code", "web"))
    }
    return make_cache(tmp_path_factory.mktemp("mixture"), texts, bits=2)


@pytest.fixture
def mixture(cache: Path) -> Path:
    """The mixture's file, beside the cache."""
    path = cache.parent / "mix.toml"
    path.write_text(MIXTURE)
    return path


@pytest.fixture
def several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan small tasks; their children read what they shall do from their arguments."""
    monkeypatch.setattr(packing_stage, "BLOCKS_A_TASK", 7)


def called(*arguments: str) -> int:
    """The exit code of `datakit ...`, run in this process."""
    try:
        return main(arguments)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def written(path: Path, old: str, new: str) -> Path:
    """A mixture file with one thing changed."""
    assert old in MIXTURE
    changed = path.with_name("changed.toml")
    changed.write_text(MIXTURE.replace(old, new))
    return changed


def test_a_file_is_the_mixture_that_it_spells_out(cache: Path, mixture: Path) -> None:
    by_hand = Mixture(
        {
            "web": Component(open_source(str(cache), "web"), validation_tokens=2_000),
            "code": Component(
                open_source(str(cache), "code"),
                packing=Packing("split", 6),
                max_epochs=40,
                validation_tokens=1_000,
                shuffle=Shuffle(block_tokens=512),
            ),
        },
        [Stage({"web": 0.9, "code": 0.1}), Stage({"web": 1, "code": 1}, start_step=30)],
        seed=5,
        sequence_length=Schedule(((0, 64), (40, 128))),
        batch_size=8,
    )
    with Loader(load_mixture(mixture)) as loader, Loader(by_hand) as expected:
        assert loader.record() == expected.record()
        for step in (0, 29, 30, 45):
            assert np.array_equal(loader[step].tokens, expected[step].tokens)


def test_every_setting_has_its_name_in_the_file(mixture: Path) -> None:
    more = (
        'block = 64\nstop = "first_exhausted"\nmemory_bytes = 1_000_000\nfinal_batch = "pad"\npad_id = 3\n'
        "simulate = { run_tokens = 1, target_tokens = 2 }\nbatch_size = [[0, 8], [10, 16]]\n"
    )
    found = load_mixture_file(written(mixture, "batch_size = 8\nseed = 5\nsteps = 60\n", more))
    assert found.steps is None
    assert (found.mixture.block, found.mixture.stop) == (64, "first_exhausted")
    assert (found.mixture.memory_bytes, found.mixture.final_batch, found.mixture.pad_id) == (1_000_000, "pad", 3)
    assert found.mixture.simulate is not None
    assert found.mixture.batches.pairs == ((0, 8), (10, 16))
    assert found.mixture.components["code"].packing == Packing("split", 6)
    words_only = load_mixture(written(mixture, '{ too_long = "split", max_documents = 6 }', '"drop"'))
    assert words_only.components["code"].packing == Packing("drop")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seed = 5", "sed = 5", "unknown key 'sed'; did you mean 'seed'?"),
        ("max_epochs = 40", "max_epoch = 40", "component 'code': unknown key 'max_epoch'; did you mean 'max_epochs'?"),
        ("start_step = 30", "start_stp = 30", "stage 1: unknown key 'start_stp'; did you mean 'start_step'?"),
        ("max_documents = 6", "most = 6", "component 'code', packing: unknown key 'most'"),
        ("block_tokens = 512", "blocks = 512", "component 'code', shuffle: unknown key 'blocks'"),
        ('too_long = "split"', 'too_long = "cut"', "component 'code': too_long is 'cut'"),
        ("weights = { web = 0.9,", "weights = { wbe = 0.9,", "stage 0 weighs 'wbe': did you mean 'web'?"),
        ("web = 0.9,", "web = -0.9,", "stage 0: the weight of 'web' is -0.9"),
        ("web = 0.9,", "web = nan,", "stage 0: the weight of 'web' is nan"),
        ("web = 0.9,", 'web = "much",', "weights"),
        ("{ web = 0.9, code = 0.1 }", "{ web = 0, code = 0 }", "stage 0: no component has a weight above 0"),
        ("start_step = 30", "start_step = 0", "stages ascend"),
        ("[[0, 64], [40, 128]]", "[[5, 64]]", "a schedule begins at step 0"),
        ("[[0, 64], [40, 128]]", '"long"', "sequence_length: Expected"),
        ("steps = 60", "steps = 0", "steps is 0"),
        ('source = "web"', 'source = "wob"', "component 'web': "),
        ('cache = "cache"\nsource = "web"\n', 'source = "web"\n', "component 'web': 'cache' is missing"),
        ('cache = "cache"\nsource = "web"', 'cache = "nowhere"', "nowhere holds no finished token cache"),
        ("seed = 5", "seed = ", "is not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(mixture: Path, old: str, new: str, says: str) -> None:
    changed = written(mixture, old, new)
    with pytest.raises(LoaderError) as caught:
        load_mixture(changed)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(changed))


def test_an_unfinished_cache_is_refused(cache: Path, mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = cache.with_name("unfinished")
    shutil.copytree(cache, unfinished, dirs_exist_ok=True)
    (unfinished / "manifest.json").unlink()
    changed = written(mixture, 'cache = "cache"\nsource = "web"', 'cache = "unfinished"\nsource = "web"')
    assert called("mixture", "preview", str(changed)) == 2
    said = capsys.readouterr().err
    assert "component 'web'" in said
    assert "no finished token cache" in said


def test_the_preview_is_that_of_the_plan(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("mixture", "preview", str(mixture), "--points", "4", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    view = contributions(Plan(load_mixture(mixture)), 60, 5)
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


def test_a_mixture_that_ends_early_says_so(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = written(mixture, "max_epochs = 40", "max_epochs = 1")
    assert called("mixture", "preview", str(changed), "--steps", "5000") == 0
    said = capsys.readouterr()
    assert "of 5,000 steps: component 'code' has given 1 epoch" in said.err
    assert "ends after" in said.out


def test_a_mixture_without_an_end_needs_one(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endless = written(mixture, "steps = 60", "")
    endless.write_text(endless.read_text().replace("max_epochs = 40", ""))
    assert called("mixture", "preview", str(endless)) == 2
    assert "--steps" in capsys.readouterr().err
    assert called("mixture", "preview", str(endless), "--steps", "10") == 0
    assert "10 steps (it never ends)" in capsys.readouterr().out


def test_the_plot_is_a_picture(mixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "mix.png"
    assert called("mixture", "preview", str(mixture), "--plot", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert called("mixture", "preview", str(mixture), "--plot", str(tmp_path / "mix.bmp")) == 2
    assert ".png, .svg or .pdf" in capsys.readouterr().err


def test_without_matplotlib_the_plot_says_how_to_get_it(
    mixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert called("mixture", "preview", str(mixture), "--plot", str(tmp_path / "mix.png")) == 2
    assert "pip install 'datakit[report]'" in capsys.readouterr().err


@pytest.mark.usefixtures("several_tasks")
def test_packing_gives_the_same_bytes_for_any_number_of_workers(mixture: Path) -> None:
    roots = [mixture.parent / f"roots{workers}" for workers in (1, 4)]
    for root, workers in zip(roots, (1, 4), strict=True):
        results = pack_mixture(load_mixture(mixture), str(root), workers=workers)
        assert [(result.component, result.length, result.reused) for result in results] == [
            ("code", 64, False),
            ("code", 128, False),
        ]
        assert results[0].manifest.totals.rows > 3 * packing_stage.BLOCKS_A_TASK
    one, four = map(tree, roots)
    assert one == four
    assert sorted(Path(path).name for path in one) == ["counts.npy", "counts.npy", "manifest.json", "manifest.json"]


@pytest.mark.usefixtures("several_tasks")
def test_stored_counts_are_those_that_the_loader_would_count(mixture: Path, tmp_path: Path) -> None:
    root = mixture.parent / "counted"
    results = pack_mixture(load_mixture(mixture), str(root), workers=2)
    with Loader(load_mixture(mixture)) as counted, Loader(load_mixture(mixture, packing_root=str(root))) as stored:
        assert stored.packing_report() == {"code": {}}  # it counted nothing itself
        assert set(counted.packing_report()["code"]) == {64, 128}
        for step in (0, 35, 41, 59):
            assert np.array_equal(counted[step].tokens, stored[step].tokens)
            assert np.array_equal(counted[step].segments, stored[step].segments)
        for length, result in zip((64, 128), results, strict=True):
            layout = counted.plan.streams[0].layout(length)
            assert result.manifest.details["sequences"] == layout.total
            slots = layout.total * length
            counters = result.manifest.counters
            assert slots == counters["packing/kept"] + counters["packing/padding"]
            assert counters["packing/tokens"] == counted.plan.streams[0].source.tokens


def test_packing_is_found_done_and_shared_by_mixtures_over_the_same_tokens(mixture: Path) -> None:
    folder = mixture.parent
    first = command("mixture", "pack", "mix.toml", "--root", "found", "--workers", "2", cwd=folder)
    assert first.returncode == 0, first.stderr
    before = changes(folder / "found")
    other = written(mixture, "{ web = 0.9, code = 0.1 }", "{ web = 0.2, code = 0.8 }")
    other.write_text(other.read_text().replace("seed = 5", "seed = 6"))
    for name in ("mix.toml", "changed.toml"):
        again = command("mixture", "pack", name, "--root", "found", "--json", cwd=folder)
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["reused"] is True
    assert changes(folder / "found") == before
    shown = command("mixture", "preview", "mix.toml", "--root", "found", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    status = command("status", "found", cwd=folder)
    assert status.returncode == 0, status.stderr


def test_a_root_with_packing_in_it_still_shows_its_dataset(finished_copy: Path) -> None:
    made = step(finished_copy, "root/shelf/tokenize-*")
    (finished_copy / "mix.toml").write_text(
        f'steps = 4\nsequence_length = 64\n[components.all]\ncache = "{made.relative_to(finished_copy)}"\n'
        'packing = "truncate"\n'
        "[[stages]]\nweights = { all = 1 }\n"
    )
    before = tree(finished_copy / "root")
    packed = command("mixture", "pack", "mix.toml", "--root", "root", cwd=finished_copy)
    assert packed.returncode == 0, packed.stderr
    after = tree(finished_copy / "root")
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[0] for name in set(after) - set(before)} == {"packing"}
    described = json.loads(command("inspect", "root", "--json", cwd=finished_copy).stdout)
    assert described["stage"] == "tokenize"
    counted = step(finished_copy, "root/packing/packing-64-truncate-*").relative_to(finished_copy)
    described = json.loads(command("inspect", str(counted), "--json", cwd=finished_copy).stdout)
    assert described["stage"] == "packing-64-truncate"
    assert command("gc", "root", cwd=finished_copy).stderr.startswith("0 leftovers")


def _no_root(root: Path, mixture: Path) -> None:
    shutil.rmtree(root)


def _other_documents(root: Path, mixture: Path) -> None:
    mixture.write_text(MIXTURE.replace("validation_tokens = 1_000", "validation_tokens = 1_500"))


def _other_blocks(root: Path, mixture: Path) -> None:
    mixture.write_text(MIXTURE.replace("block_tokens = 512", "block_tokens = 1024"))


def _other_packing(root: Path, mixture: Path) -> None:
    mixture.write_text(MIXTURE.replace('"split"', '"truncate"'))


@pytest.mark.parametrize("change", [_no_root, _other_documents, _other_blocks, _other_packing])
def test_counts_of_something_else_are_not_found(mixture: Path, change: Callable[[Path, Path], None]) -> None:
    root = mixture.parent / "changed-root"
    pack_mixture(load_mixture(mixture), str(root), workers=1)
    load_mixture(mixture, packing_root=str(root))
    change(root, mixture)
    with pytest.raises(LoaderError, match="datakit mixture pack"):
        load_mixture(mixture, packing_root=str(root))


def test_altered_counts_are_refused(mixture: Path) -> None:
    root = mixture.parent / "altered"
    (result, _) = pack_mixture(load_mixture(mixture), str(root), workers=1)
    counts = Path(result.directory) / "counts.npy"
    data = bytearray(counts.read_bytes())
    data[-1] ^= 1
    counts.write_bytes(data)
    with pytest.raises(CorruptError, match="checksum"):
        load_mixture(mixture, packing_root=str(root))


def test_nothing_to_pack_is_said(mixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = written(mixture, 'packing = { too_long = "split", max_documents = 6 }\n', "")
    assert called("mixture", "pack", str(plain), "--root", str(tmp_path / "root")) == 0
    assert "no component is packed" in capsys.readouterr().out
    assert not (tmp_path / "root").exists()
