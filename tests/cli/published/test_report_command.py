"""`datakit report` writes a page into a folder named `report`, and prints where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import invoke
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import step


def test_page_lies_below_a_folder_named_report(finished: Path, tmp_path: Path) -> None:
    shown = invoke("report", finished / "root" / "shelf", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert Path(shown.stdout.strip()) == tmp_path / "report" / "shelf.html"
    other = invoke("report", finished / "root" / "shelf", "--output", tmp_path / "pages", cwd=tmp_path)
    assert Path(other.stdout.strip()) == tmp_path / "pages" / "report" / "shelf.html"


def test_reports_of_runs_have_names_of_their_own(finished: Path, tmp_path: Path) -> None:
    run = step(finished, "root/shelf/runs/*")
    shown = invoke("report", run, cwd=tmp_path)
    assert Path(shown.stdout.strip()).name == f"shelf-{run.name}.html"


def test_missing_jinja_is_named_with_its_extra(finished: Path, tmp_path: Path) -> None:
    hide = "import sys; sys.modules['jinja2'] = None; from datakit.cli import main; sys.exit(main())"
    arguments = [sys.executable, "-c", hide, "report", str(finished / "root" / "shelf")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    found = subprocess.run(
        arguments, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, timeout=120
    )
    assert found.returncode == 2
    assert "pip install '.[report]'" in found.stderr
