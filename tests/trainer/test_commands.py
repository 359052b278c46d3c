"""`datakit train` and `datakit eval`: from a recipe's cache to a trained, evaluated and plotted model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import psutil
import pytest

from datakit.cache.reader import open_cache
from datakit.cli import main
from datakit.errors import CheckpointError, LoaderError, UsageError
from datakit.leases.lease_files import USE, read_leases
from datakit.leases.training_record import read_record
from datakit.retention.reachability import TRAINING_RUN, reachability
from datakit.storage.latest import Current, record_latest
from datakit.storage.manifest import read_manifest
from datakit.toml_config import read_toml
from datakit.trainer import commands, run_file
from datakit.trainer.commands import evaluate_file, train_file
from datakit.trainer.explain.explain import open_run
from datakit.trainer.load_run import directory_of, load_run
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.run_directory.run_lock import exclusive
from tests.support.faults.cluster import wait_until
from tests.support.paths import REPOSITORY
from tests.support.processes import fake_devices
from tests.support.trainer.trainer_runs import checkpoints_of, largest_file, silent

pytest.importorskip("pyarrow")
from tests.support.caches import make_cache
from tests.support.partitions import words
from tests.support.run_files import MODEL, write_run_file

pytestmark = pytest.mark.xdist_group("train-commands")  # one worker trains the run for all of them


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of two sources and a run file."""
    return write_run_file(tmp_path_factory.mktemp("commands")).parent


@pytest.fixture(scope="module")
def directory(root: Path) -> str:
    """The directory of the trained run."""
    return train_file(root / "run.toml", str(root), say=silent).directory


def test_a_run_names_its_caches_and_measures_every_tag(root: Path, directory: str) -> None:
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


def test_evaluation_repeats_the_run_s_metrics(root: Path, directory: str) -> None:
    trained_figures = json.loads((Path(directory) / "manifest.json").read_text())["details"]["figures"]
    checkpoint = f"{directory}/checkpoints/step-000000006"
    for place, devices in ((None, None), (checkpoint, jax.devices()[:1])):
        found = evaluate_file(root / "run.toml", str(root), place, devices=devices, say=silent)
        assert (found.step, found.checkpoint) == (6, checkpoint)
        for name in ("eval/web/bpb", "eval/exams/code/loss", "eval/macro_bpb"):
            assert found.figures[name] == pytest.approx(trained_figures[name], rel=1e-6)


def test_evaluation_refuses_a_setting_without_effect(root: Path, directory: str) -> None:
    with pytest.raises(UsageError, match=r"evaluation\.every_length = True has no effect if all sequences have"):
        evaluate_file(directory, overrides=["evaluation.every_length=true"], say=silent)


def test_evaluation_skips_a_damaged_checkpoint(root: Path, directory: str, tmp_path: Path, lines: list[str]) -> None:
    shutil.copytree(root, tmp_path / "copy")
    place = tmp_path / "copy" / Path(directory).relative_to(root)
    file, copy = place.parents[1] / "run.toml", str(place.parents[1])
    newest, older = checkpoints_of(str(place))
    damaged = largest_file(newest)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    found = evaluate_file(file, copy, say=lines.append)
    assert (found.step, found.checkpoint) == (4, str(older.path))
    assert [line for line in lines if line.startswith(f"warning: {newest.path} is damaged")]
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read \(1 tried\)"):
        evaluate_file(file, copy, str(newest.path), say=lines.append)


def test_the_cores_of_a_cpu_form_as_many_devices_as_the_run_file_says(root: Path) -> None:
    settings = ("cpu_devices=2", "replicas=2", "steps=1", 'name="two"')
    command = [sys.executable, "-m", "datakit", "train", str(root / "run.toml"), "--root", str(root)]
    environment = {**os.environ, **fake_devices(1), "PYTHONPATH": str(REPOSITORY)}
    for taken, code in ((settings[1:], 2), (settings, 0)):  # one device cannot hold two copies of the weights
        options = [word for setting in taken for word in ("--set", setting)]
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert jax.device_count() == 8  # and thus, JAX has started
    with pytest.raises(UsageError, match=r"cpu_devices is 2, but JAX has already started with 8 devices on the CPU"):
        load_run(root / "run.toml", str(root), settings)


def call(*arguments: str) -> object:
    """Return a command's exit code; groups of commands raise SystemExit."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def test_commands_print_results_and_exit_codes(root: Path, directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", f"{root}/run.toml", "--root", str(root), "--json") == 0
    assert json.loads(capsys.readouterr().out)["directory"] == directory
    assert call("train", f"{root}/run.toml", "--root", str(root)) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{directory}\n"
    assert shown.err.splitlines()[-2:] == [
        f"plot:      datakit train plot {directory}",
        f"evaluate:  datakit eval {root}/run.toml --root {root}",
    ]
    assert call("train", f"{root}/run.toml", "--root", str(root), "--log", "json") == 0
    notes = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert notes[0] == "the run is already finished; nothing is trained" and notes[-1].startswith("evaluate:  ")
    assert call("eval", f"{root}/run.toml", "--root", str(root)) == 0
    assert "eval/web/bpb" in capsys.readouterr().out
    assert call("train", "plot", directory) == 0
    assert Path(capsys.readouterr().out.strip()).stat().st_size > 10_000
    assert call("size", "--flops", "1e19", "--hidden", "1024") == 0
    assert "128 sequences" in capsys.readouterr().out
    assert call("size", "--flops", "1e19", "--hidden", "1024", "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 14055
    assert call("eval", f"{root}/run.toml", "--root", str(root), "--set", "seed=5") == 1
    assert "run `datakit train` first" in capsys.readouterr().err
    assert call("train", "demoo") == 2
    assert "did you mean 'demo'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code", "how"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_saves_and_sets_the_exit_code(number: int, code: int, how: str, tmp_path: Path) -> None:
    words = ["train", str(write_run_file(tmp_path)), "--root", str(tmp_path), "--set", "steps=100000"]
    started = subprocess.Popen(
        [sys.executable, "-m", "datakit", *words],
        env={**os.environ, **fake_devices(2), "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    next(line for line in started.stderr if line.startswith("step "))
    started.send_signal(number)
    said = started.communicate(timeout=120)[1]
    assert started.returncode == code, said
    assert said.splitlines()[-1] == f"{how}; no partial output is left; run the same command again to continue"
    (directory,) = (tmp_path / "small").glob("train-*")
    assert checkpoints_of(str(directory))[0].marker.step == read_metrics(str(directory))[-1]["global_step"]


def test_sigterm_while_jax_is_loaded_ends_the_run_at_once(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "datakit", "train", str(write_run_file(tmp_path)), "--root", str(tmp_path)],
        env={**os.environ, **fake_devices(2), "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
    )
    maps = psutil.Process(started.pid).memory_maps
    assert wait_until(lambda: any("jaxlib" in one.path for one in maps()), 60)
    started.terminate()
    assert started.communicate(timeout=60)[1] == ""
    assert started.returncode == -signal.SIGTERM  # a shell shows 143


def test_the_demo_s_run_is_complete() -> None:
    assert sorted(path.stem for path in run_file.RUNS.glob("*.toml")) == ["demo", "demo-sft", "olmoe"]
    document = read_toml(run_file.RUNS / "demo.toml", "")
    sources = {entry["source"] for entry in document["data"]["components"].values()}
    assert sources == {"stdlib-code", "stdlib-docs", "stdlib-encodings"}


def put_cache(root: Path, number: int) -> None:
    """Make a cache, and record it as the current one of the dataset `demo`."""
    made = Path(
        make_cache(root / f"made-{number}", {"web": [words(number, 1, 40)[0] for number in range(90 + number)]})
    )
    place = root / "demo" / f"tokenize-{number:012d}"
    place.parent.mkdir(exist_ok=True)
    made.rename(place)
    current = Current(place.name, read_manifest(str(place)).identity)
    record_latest(str(root / "demo"), current, current)


def test_run_records_caches_that_it_names_directly(root: Path, directory: str) -> None:
    assert TRAINING_RUN.fullmatch(Path(directory).name)
    record = read_record(directory)
    assert record is not None and record.complete
    caches = {cache for cache, _ in record.caches.values()}
    assert {os.path.normpath(Path(directory, cache)) for cache in caches} == {str(root / "cache")}
    assert record.caches.keys() == caches


def test_training_holds_its_caches_in_the_root(tmp_path: Path) -> None:
    """The lease lasts as long as the training; messages are shown while it is held."""
    put_cache(tmp_path, 1)
    file, held = tmp_path / "run.toml", list[list[str]]()
    table = '[data.components.web]\ncache = "{root}/demo"\n[[data.stages]]\nweights = { web = 1.0 }\n'
    quiet = MODEL.replace("[evaluation]\nevery = 4\n", "").replace(
        "[checkpoint]", 'moe_backend = "dense"\n[checkpoint]'
    )
    file.write_text(f"{quiet}[data]\nsequence_length = 32\nbatch_size = 8\n{table}")

    def look(text: str) -> None:
        held.extend(lease.content.steps for lease in read_leases(str(tmp_path), USE))

    train_file(file, str(tmp_path), ["log.progress_seconds=0.001"], say=look)
    assert ["demo/tokenize-000000000001"] in held
    assert read_leases(str(tmp_path), USE) == []


def test_evaluation_holds_the_run_and_the_caches_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is evaluated, since only the lease counts here."""
    put_cache(tmp_path, 1)
    file, held = tmp_path / "run.toml", list[tuple[str, list[str]]]()
    table = '[data.components.web]\ncache = "{root}/demo"\nvalidation_tokens = 400\n'
    file.write_text(
        f"{MODEL}[data]\nsequence_length = 32\nbatch_size = 8\n{table}[[data.stages]]\nweights = {{ web = 1 }}\n"
    )

    def look(*_: object) -> list[object]:
        held.extend((found.content.command, found.content.steps) for found in read_leases(str(tmp_path), USE))
        raise CheckpointError("stop here")

    monkeypatch.setattr(commands, "candidates", look)
    monkeypatch.setattr(commands, "candidate_at", look)
    run = directory_of(*load_run(file, str(tmp_path)), str(tmp_path)).removeprefix(f"{tmp_path}/")
    for checkpoint, place in ((None, run), (f"{tmp_path}/x/checkpoints/step-1", "x/checkpoints/step-1")):
        with pytest.raises(CheckpointError, match="stop here"):
            evaluate_file(file, str(tmp_path), checkpoint, say=silent)
        assert held == [("datakit eval", sorted(["demo/tokenize-000000000001", place]))]
        held.clear()
    assert read_leases(str(tmp_path), USE) == []


def test_run_goes_on_with_the_cache_with_which_it_began(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "run.toml"
    dense = MODEL.replace("[checkpoint]", 'moe_backend = "dense"\n[checkpoint]')
    table = '[data.components.web]\ncache = "{root}/demo"\nvalidation_tokens = 400\n'
    file.write_text(
        f"{dense}[data]\nsequence_length = 32\nbatch_size = 8\n{table}[[data.stages]]\nweights = {{ web = 1.0 }}\n"
    )
    put_cache(tmp_path, 2)
    begun = train_file(file, str(tmp_path), say=silent)
    manifest = Path(begun.directory) / "manifest.json"
    finished = manifest.rename(tmp_path / "aside.json")  # as if it had been killed after its last checkpoint
    put_cache(tmp_path, 1)
    kept = reachability(str(tmp_path)).needed
    assert "by the training run" in kept["demo/tokenize-000000000002"], (
        "`datakit gc` keeps the cache of an unfinished run"
    )
    resumed = train_file(file, str(tmp_path), say=lines.append)
    assert (resumed.directory, resumed.resumed_from) == (begun.directory, 6)
    assert manifest.read_bytes() == finished.read_bytes()
    (note,) = [line for line in lines if "goes on with" in line]
    assert "demo/tokenize-000000000002" in note and "now stands for tokenize-000000000001" in note
    moved = tmp_path.rename(tmp_path.parent / "moved")
    assert evaluate_file(moved / "run.toml", str(moved), say=silent).step == 6
    other = train_file(moved / "run.toml", str(moved), ["steps=1", "evaluation.every=1"], say=silent)
    assert "tokenize-000000000001" in (Path(other.directory) / "caches.json").read_text(), "a new run takes the newer"
    assert "000000000001" in open_cache(str(moved / "demo")).directory


def write_dataset_run(root: Path) -> Path:
    """Write a run file whose cache is the dataset `demo`."""
    dense = MODEL.replace("[checkpoint]", 'moe_backend = "dense"\n[checkpoint]').replace("steps = 6", "steps = 1")
    table = '[data.components.web]\ncache = "{root}/demo"\nvalidation_tokens = 400\n'
    stages = "[[data.stages]]\nweights = { web = 1.0 }\n"
    (root / "run.toml").write_text(f"{dense}[data]\nsequence_length = 32\nbatch_size = 8\n{table}{stages}")
    return root / "run.toml"


def test_directory_of_a_run_stands_for_this_run_and_its_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, directories = write_dataset_run(tmp_path), list[str]()
    for number in (2, 1):  # two runs with the same settings, on two caches of one dataset
        put_cache(tmp_path, number)
        directories.append(train_file(file, str(tmp_path), say=silent).directory)
    put_cache(tmp_path, 3)
    for directory in directories:
        assert evaluate_file(directory, say=silent).checkpoint.startswith(f"{directory}/")
        assert train_file(directory, say=silent).directory == directory
        assert open_run(directory, "./data", (), silent).place.directory == directory
    monkeypatch.chdir(tmp_path)
    relative = Path(directories[0]).relative_to(tmp_path)
    assert train_file(relative, say=silent).directory == directories[0]
    (tmp_path / "demo" / "tokenize-000000000001").rename(tmp_path / "gone")
    with pytest.raises(LoaderError, match="tokenize-000000000001"):
        train_file(directories[1], say=silent)
    assert sorted(str(path) for path in (tmp_path / "small").glob("train-*")) == sorted(directories)


def test_only_the_process_with_the_lock_records_settings(root: Path, directory: str, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    place = tmp_path / "copy" / Path(directory).relative_to(root)
    (place / "manifest.json").unlink()  # as if it had been killed after its last checkpoint
    before = {name: (place / name).read_bytes() for name in ("run.json", "caches.json")}
    changes = ["log.every=3"]  # no other run, but other settings
    for name, content in before.items():
        (place / name).write_bytes(content + b"\n")
    with exclusive(str(place)), pytest.raises(UsageError, match="is in use by process"):
        train_file(place.parents[1] / "run.toml", str(place.parents[1]), changes, say=silent)
    assert {name: (place / name).read_bytes() for name in before} == {name: old + b"\n" for name, old in before.items()}
    train_file(place.parents[1] / "run.toml", str(place.parents[1]), changes, say=silent)
    assert json.loads((place / "run.json").read_text())["run"]["log"]["every"] == 3


def test_record_of_a_run_names_the_run_that_it_started_from(root: Path, directory: str, tmp_path: Path) -> None:
    """Later, the name may stand for several runs, or for another one."""
    shutil.copytree(root, tmp_path / "copy")
    copy, first = tmp_path / "copy", Path(directory).name
    changes = ["name=next", "steps=1", "initialize_from={root}/small"]
    begun = train_file(copy / "run.toml", str(copy), changes, say=silent).directory
    assert json.loads((Path(begun) / "run.json").read_text())["run"]["initialize_from"] == f"{{root}}/small/{first}"
    other = copy / "small" / "train-000000000000"
    shutil.copytree(copy / "small" / first, other)
    assert train_file(begun, say=silent).directory == begun
    changed = (Path(begun) / "run.json").read_text().replace('"steps": 1', '"steps": 2')
    (Path(begun) / "run.json").write_text(changed)  # as by a version that reads the settings otherwise
    with pytest.raises(UsageError, match="with its recorded settings, the run would now be"):
        train_file(begun, say=silent)
