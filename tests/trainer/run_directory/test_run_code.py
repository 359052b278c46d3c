"""The directory of a run does not decide which code is executed; the run file and the command line do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.trainer.run_directory.run_record import write_run_record
from datakit.trainer.run_file import read_run_file
from tests.support.trainer.trainer_runs import silent

pytest.importorskip("pyarrow")
from datakit.trainer.commands import evaluate_file, train_file
from datakit.trainer.dry_run import dry_run
from datakit.trainer.explain.explain import explain
from datakit.trainer.models import grug
from tests.support.run_files import write_run_file

pytestmark = pytest.mark.xdist_group("train-commands")
GRUG = Path(grug.__file__).read_text()
COMMANDS: dict[str, Callable[[Path], object]] = {
    "train": lambda directory: train_file(directory, say=silent),
    "dry run": lambda directory: dry_run(directory, say=silent),
    "eval": lambda directory: evaluate_file(directory, say=silent),
    "explain": lambda directory: explain(directory, 1, say=silent),
}


def stranger(root: Path, **tables: object) -> Path:
    """A directory with settings that name a file, which leaves a trace when it is executed."""
    directory = root / "small" / "train-0123456789ab"
    directory.mkdir(parents=True)
    (root / "evil.py").write_text(f"open({str(root / 'trace')!r}, 'w')\n")
    write_run_record(str(directory), root / "run.toml", {"name": "small", "steps": 1, **tables}, {})
    return directory


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("table", ["model", "optimizer"])
def test_no_command_runs_code_that_a_directory_names(command: str, table: str, tmp_path: Path) -> None:
    directory = stranger(tmp_path, **{table: {"kind": "evil.py"}})
    asked = re.escape(f"--set {table}.kind={tmp_path}/evil.py")
    with pytest.raises(UsageError, match=rf"has its own {table}, 'evil.py', .*give the run file or, .*{asked}"):
        COMMANDS[command](directory)
    assert not (tmp_path / "trace").exists()


def test_nor_is_a_module_imported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has its own model, 'antigravity'"):
        read_run_file(stranger(tmp_path, model={"kind": "antigravity"}), ["optimizer.kind=adamw"])
    assert "antigravity" not in sys.modules


def test_compiled_programs_of_a_directory_are_not_loaded(tmp_path: Path) -> None:
    directory = stranger(tmp_path, compilation_cache=str(tmp_path / "programs"), model={"kind": "dense"})
    assert "compilation_cache" not in read_run_file(directory).run_tables
    mine = read_run_file(directory, ["compilation_cache=/mine"])
    assert mine.run_tables["compilation_cache"] == "/mine"
    write_run_record(str(directory), tmp_path / "run.toml", {"compilation_cache": ""}, {})
    assert read_run_file(directory).run_tables["compilation_cache"] == ""


def test_code_runs_if_the_user_names_it(tmp_path: Path) -> None:
    file, mine = write_run_file(tmp_path), tmp_path / "mine.py"
    mine.write_text(GRUG)
    own = ["steps=1", "evaluation.every=1", "model.kind=mine.py"]
    directory = train_file(file, str(tmp_path), own, say=silent).directory
    with pytest.raises(UsageError, match=r"has its own model, 'mine\.py'"):
        train_file(directory, say=silent)
    named = [f"model.kind={mine}"]
    assert train_file(directory, overrides=named, say=silent).directory == directory
    assert evaluate_file(directory, overrides=named, say=silent).step == 1
    mine.write_text(f"{GRUG}# changed\n")
    with pytest.raises(UsageError, match="with its recorded settings, the run would now be"):
        train_file(directory, overrides=named, say=silent)
