"""`datakit plan` describes what a run will do and writes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

import datakit
from datakit.errors import NoInputError
from datakit.pipeline import planning, running
from datakit.pipeline.root_layout import STAGE_NAMES
from datakit.recipe import load_recipe
from datakit.storage import urls
from tests.support.caches import trained
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import make_shelf

WATCHED = """
import sys
from pathlib import Path

written = []
CHANGES = {"os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.truncate", "os.utime",
           "os.chmod", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp", "subprocess.Popen", "os.fork",
           "os.forkpty", "os.exec", "os.posix_spawn", "socket.connect"}
WRITING = 0o3 | 0o100 | 0o1000  # not O_RDONLY, O_CREAT, O_TRUNC

def hook(event, arguments):
    if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
        written.append((event, str(arguments[0])))

from datakit.pipeline import planning  # what imports write (nothing, but caches of numba) is not the plan's doing
from datakit.recipe import load_recipe
sys.addaudithook(hook)
plan = planning.plan(load_recipe(sys.argv[1]), sys.argv[2])
assert len(plan.steps) == 12, len(plan.steps)
assert not written, written
"""


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*"))


@pytest.mark.parametrize("done", [False, True], ids=["nothing done", "all done"])
def test_plan_writes_nothing_and_starts_nothing(finished: Path, tmp_path: Path, done: bool) -> None:
    folder = finished if done else tmp_path
    recipe = folder / "shelf" / "shelf.toml" if done else make_shelf(folder / "shelf")
    before = listing(folder)
    watched = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED, str(recipe), str(folder / "root")],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert watched.returncode == 0, watched.stderr
    assert listing(folder) == before
    assert (folder / "root").exists() == done


def test_plan_writes_nothing_to_a_store(shelf: Path) -> None:
    store = fsspec.filesystem("memory")
    planning.plan(load_recipe(shelf), "memory://plan-only/root")
    assert store.find("/plan-only") == []


def test_run_does_what_was_planned(finished_run: datakit.RunResult, finished: Path, tmp_path: Path) -> None:
    recipe = load_recipe(finished / "shelf" / "shelf.toml")
    before = planning.plan(recipe, str(tmp_path))
    assert [(step.stage, step.source, urls.relative(step.directory, str(tmp_path))) for step in before.steps] == [
        (step.stage, step.source, urls.relative(step.directory, finished_run.root)) for step in finished_run.steps
    ]
    assert {step.state for step in before.steps} == {"to run"}
    after = planning.plan(recipe, finished_run.root)
    assert {step.state for step in after.steps} == {"done"}
    assert after.disk_needed == 0
    assert [step.fingerprint for step in after.steps] == [step.manifest.fingerprint for step in finished_run.steps]


def test_plan_explains_workers_memory_and_disk(shelf: Path, tmp_path: Path) -> None:
    plan = planning.plan(load_recipe(shelf), str(tmp_path / "root"), workers=3)
    assert (plan.resources.workers, plan.resources.workers_reason) == (3, "as requested")
    assert plan.resources.memory_bytes > 0
    assert plan.disk_needed is not None
    assert plan.disk_needed > 0
    steps = {(step.stage, step.source): step for step in plan.steps}
    novels = steps["normalize", "novels"]
    assert (novels.tasks, novels.at_a_time, novels.reason) == (1, 1, "limited by the number of tasks")
    assert novels.settled, "a local source is in place, so its normalize step can be planned exactly"
    assert steps["tokenize", None].reason == "known once its inputs are done"
    assert steps["dedup", None].reads == (
        "normalize novels", "normalize letters", "signatures novels", "signatures letters",
    )  # fmt: skip


def test_unreachable_pinned_source_can_be_planned(tmp_path: Path) -> None:
    plan = planning.plan(load_recipe("fineweb-edu-10bt"), str(tmp_path), offline=True)
    absent = ("annotate", "rules", "passages")
    assert [step.stage for step in plan.steps] == [name for name in STAGE_NAMES if name not in absent]
    assert plan.disk_needed is None
    assert (plan.steps[0].tasks, plan.steps[0].reason) == (None, "known once its files are listed")
    assert "not downloaded yet" in plan.notes[0]
    with pytest.raises(NoInputError, match="run once without --offline"):
        running.run(load_recipe("fineweb-edu-10bt"), str(tmp_path), offline=True)


def test_plan_names_the_tokenizer_that_the_contract_reads(tmp_path: Path) -> None:
    """No step is upstream of the contract, unless one trains the tokenizer."""
    (tmp_path / "small.json").write_bytes(trained())
    (tmp_path / "pages.jsonl").write_text('{"text": "one page"}\n')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'name = "pages"\n[[sources]]\nname = "pages"\nurl = "pages.jsonl"\n[tokenize]\ntokenizer = "small.json"\n'
    )
    steps = {step.stage: step for step in datakit.plan(recipe, tmp_path / "root").steps}
    assert steps["contract"].reads == (str(tmp_path / "small.json"),)
    assert "contract" in steps["tokenize"].reads
