"""Other versions of datakit, as real programs: the previous release, and newer ones that write what ours cannot read.

`previous_release` is a checkout. A newer version is a copy of today's package in which a few lines are changed, as a
future commit would change them; each change must still find its place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

PREVIOUS = "e3bebcb"  # wrote tests/fixtures/root-0.2
NEWER_LEDGER = [
    (
        "engine/ledger/ledger.py",
        "        self.append(DriverLine(self.driver, time.time(), versions(), self.version, self.code))\n",
        "        self.append(DriverLine(self.driver, time.time(), versions(), self.version, self.code))\n"
        '        self._pending.append(b\'{"kind":"lease","time":1.5,"holder":{"host":"a"}}\\n\')\n'
        '        self._pending.append(b\'{"kind":"attempt","time":2.5,"phase":"x","cause":"evicted"}\\n\')\n',
    ),
    ("storage/manifest.py", '{"format": manifest.format}', '{"format": manifest.format, "comment": "new"}'),
]
NEWER_FORMATS = [
    *NEWER_LEDGER,
    ("storage/manifest.py", 'FORMAT = "datakit.manifest/2"', 'FORMAT = "datakit.manifest/3"'),
    (
        "storage/manifest.py",
        "class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):",
        'class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, dict=True, rename={"totals": "sums"}):',
    ),
    ("storage/latest.py", 'FORMAT = "datakit.latest/4"', 'FORMAT = "datakit.latest/6"'),
    ("storage/latest.py", 'WITHOUT_ATTRIBUTES = "datakit.latest/2"', 'WITHOUT_ATTRIBUTES = "datakit.latest/5"'),
]


def previous_release(folder: Path) -> Path:
    """Check out the previous release into a folder; skips the test where the repository's history is missing."""
    command = ["git", "archive", PREVIOUS, "datakit"]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"the commit {PREVIOUS} is not in this checkout")
    folder.mkdir()
    subprocess.run(["tar", "-x"], cwd=folder, input=found.stdout, check=True)
    return folder


def newer_version(folder: Path, changes: list[tuple[str, str, str]]) -> Path:
    """Copy today's package into a folder, and change it: (file, old text, new text)."""
    shutil.copytree(REPOSITORY / "datakit", folder / "datakit", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in changes:
        file = folder / "datakit" / name
        text = file.read_text()
        assert text.count(old) == 1, (name, old)
        file.write_text(text.replace(old, new))
    return folder


def start(version: Path, *arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """Start `datakit ...` of a version."""
    environment = {**os.environ, "PYTHONPATH": str(version), "COLUMNS": "200"}
    command = [sys.executable, "-P", "-m", "datakit", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def call(version: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `datakit ...` of a version to its end."""
    process = start(version, *arguments, cwd=cwd)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
