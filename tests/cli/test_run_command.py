"""`datakit run`: what it prints, what it leaves, and how it ends when something goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from datakit.storage.manifest import read_manifest
from tests.support.command_line import command, invoke
from tests.support.faults.cluster import wait_until
from tests.support.paths import REPOSITORY
from tests.support.processes import ended
from tests.support.s3 import s3_root
from tests.support.small_shelf import TRANSFORM, changes, make_shelf, step, tree, write_lines, write_pages


def test_run_prints_counts_result_and_next_steps(finished: Path) -> None:
    again = invoke("run", "shelf/shelf.toml", "--root", "root", cwd=finished)
    assert again.returncode == 0
    lines = again.stdout.splitlines()
    kept = {line.split()[0]: " ".join(line.split()) for line in lines if line[:1].isalpha()}
    assert kept["normalize"].startswith("normalize 150 147 ")
    assert "    dropped 1 blank, 2 exact duplicates" in lines
    assert "    dropped 3 exact duplicates across sources, 1 fuzzy duplicate" in lines
    cache = step(finished, "root/shelf/tokenize-*")
    assert f"cache:     {cache}" in lines
    card = next(line for line in lines if line.startswith("card:")).split()[1]
    assert "| letters |" in Path(card).read_text()
    assert f"inspect:   datakit inspect {cache}" in lines
    assert f"show it:   datakit cache show {cache}" in lines
    opened = next(line for line in lines if line.startswith("in Python:")).partition(": ")[2]
    code = f"import datakit; print({opened}.read(0, 16))"
    read = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert read.stdout.startswith("[")


def test_second_run_reuses_everything_and_writes_nothing(finished: Path) -> None:
    before = changes(finished / "root")
    again = invoke("run", "shelf/shelf.toml", "--root", "root", cwd=finished)
    assert "everything was already done" in again.stdout
    assert changes(finished / "root") == before


def test_json_output_is_one_object_that_adds_up(finished: Path) -> None:
    result = json.loads(invoke("run", "shelf/shelf.toml", "--root", "root", "--json", cwd=finished).stdout)
    stages = {stage["stage"]: stage for stage in result["stages"]}
    normalize, select, tokenize = (stages[name] for name in ("normalize", "select", "tokenize"))
    for stage in (normalize, select, stages["consolidate"]):
        assert stage["rows_in"] == stage["rows_out"] + sum(stage["dropped"].values())
    assert select["rows_in"] == normalize["rows_out"] == 147
    assert tokenize["rows_in"] == tokenize["rows_out"] == select["rows_out"] == stages["consolidate"]["rows_out"] == 143
    assert result["cache"] == str(step(finished, "root/shelf/tokenize-*"))
    assert result["reused"] is True


def test_progress_goes_to_stderr_and_data_to_stdout(tmp_path: Path) -> None:
    recipe = make_shelf(tmp_path / "shelf")
    done = invoke("run", recipe, "--root", "root", "--until", "normalize", "--json", cwd=tmp_path, NO_COLOR="1")
    assert done.returncode == 0
    assert [stage["stage"] for stage in json.loads(done.stdout)["stages"]] == ["download", "normalize"]
    assert "normalize novels" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    events = [json.loads(line) for line in step(tmp_path, "root/shelf/runs/*/events.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "run_started" and set(events[0]["sources"]) == {"novels", "letters"}
    shown = {"run_started", "step_started", "phase_started", "attempt_ended", "step_ended", "run_ended"}
    assert shown == {event["event"] for event in events}


def test_fresh_redoes_own_steps_and_keeps_sources(finished_copy: Path) -> None:
    before = tree(finished_copy / "root")
    sources = changes(finished_copy / "root" / "sources")
    again = invoke("run", "shelf/shelf.toml", "--root", "root", "--fresh", cwd=finished_copy)
    assert again.returncode == 0, again.stderr
    removed = [line.rpartition(" ")[2] for line in again.stderr.splitlines() if line.startswith("removed first")]
    assert [Path(place).name.rpartition("-")[0] for place in removed] == [
        "dedup", "select", "consolidate", "train-tokenizer", "contract", "tokenize",
    ]  # fmt: skip
    assert "dedup shelf: running" in again.stderr
    assert "normalize novels: running" not in again.stderr
    assert tree(finished_copy / "root") == before, "and the same bytes come out"
    assert changes(finished_copy / "root" / "sources") == sources


def test_crashing_task_makes_the_run_partial(tmp_path: Path) -> None:
    recipe = write_pages(tmp_path, "poisoned")
    path = f"{REPOSITORY}{os.pathsep}{tmp_path}"
    partial = command("run", recipe, "--root", "root", cwd=tmp_path, PYTHONPATH=path)
    assert partial.returncode == 3, partial.stderr
    assert re.search(r"1 of [2-9] tasks failed", partial.stderr)
    assert "consolidate: not run: it needs normalize pages" in partial.stderr
    assert read_manifest(str(step(tmp_path, "root/sources/good/normalize-*"))).totals.rows == 9, (
        "the other source is complete"
    )
    assert not list(tmp_path.glob("root/pages/*-*/manifest.json"))
    status = json.loads(invoke("status", "root", "--json", cwd=tmp_path).stdout)
    states = {Path(entry["directory"]).parent.name + " " + entry["state"] for entry in status["steps"]}
    assert "pages partial" in states
    assert "good done" in states
    shown = invoke("status", "root/sources/pages", cwd=tmp_path)
    assert "failed" in shown.stdout
    assert "crash" in shown.stdout
    assert "repeat the same `datakit run`" in shown.stderr
    (tmp_path / "transforms.py").write_text(TRANSFORM.replace("os._exit(9)", "pass"))
    mended = command("run", recipe, "--root", "root", cwd=tmp_path, PYTHONPATH=path)
    assert mended.returncode == 0, mended.stderr
    assert read_manifest(str(step(tmp_path, "root/pages/consolidate-*"))).totals.rows == 1109


def test_interrupted_run_leaves_no_process_and_resumes(tmp_path: Path) -> None:
    recipe = write_pages(tmp_path, "slow")
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path}"}
    run = subprocess.Popen(
        [sys.executable, "-m", "datakit", "run", str(recipe), "--root", "root"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert wait_until(lambda: list(tmp_path.glob("root/sources/pages/normalize-*/ledger/*")), 120)
    assert wait_until(lambda: len(psutil.Process(run.pid).children(recursive=True)) > 2, 120), "there are workers"
    family = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in errors
    assert wait_until(lambda: all(map(ended, family)), 60)
    (tmp_path / "transforms.py").write_text(TRANSFORM.replace("time.sleep(600)", "pass"))
    done = command("run", recipe, "--root", "root", cwd=tmp_path, PYTHONPATH=environment["PYTHONPATH"])
    assert done.returncode == 0, done.stderr


def test_run_is_terminated_while_it_hashes_a_source(tmp_path: Path) -> None:
    """The threads that read the file do not read it to its end, which would take minutes."""
    source = tmp_path / "large.jsonl"
    with source.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    (tmp_path / "r.toml").write_text(f'name = "r"\n[[sources]]\nname = "large"\nurl = "{source}"\n')
    run = subprocess.Popen(
        [sys.executable, "-m", "datakit", "run", "r.toml", "--root", "root"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process = psutil.Process(run.pid)
    try:
        assert wait_until(lambda: str(source) in [file.path for file in process.open_files()], 120)
        run.send_signal(signal.SIGTERM)
        _, errors = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 143, errors
    assert errors.splitlines()[-1].startswith("terminated")
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("place", ["disk", pytest.param("s3", marks=pytest.mark.soak)])
def test_stopped_run_leaves_no_scratch(tmp_path: Path, number: signal.Signals, place: str) -> None:
    """Neither the scratch folders of killed tasks, nor what they had staged in the temporary folder or the root."""
    for name in range(6):
        write_lines(tmp_path / "texts" / f"{name}.jsonl", [f"document {name} {row}" for row in range(3000)])
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "s"\nurl = "texts"\n')
    (tmp_path / "tmp").mkdir()
    with contextlib.ExitStack() as stack:
        root = str(tmp_path / "root") if place == "disk" else stack.enter_context(s3_root())
        environment = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(REPOSITORY)}
        for _ in range(2):
            run = subprocess.Popen(
                [sys.executable, "-m", "datakit", "run", "r.toml", "--root", root],
                cwd=tmp_path, env=environment, stderr=subprocess.PIPE,
            )  # fmt: skip
            while not any((tmp_path / "tmp").glob("datakit-*")):  # Python also makes a file there, to try it out
                assert run.poll() is None
            run.send_signal(number)
            _, printed = run.communicate(timeout=120)
            assert run.returncode == 128 + number, printed
            assert os.listdir(tmp_path / "tmp") == []
            assert not [path for path in (tmp_path / "root").rglob("*") if path.name.startswith(".tmp-")]
