"""Every corruption of a root is found, and named with the file and the reason; a clean root has no finding."""

from __future__ import annotations

import fnmatch
import shutil
from pathlib import Path

import pytest

from datakit.validate.finding import Finding
from datakit.validate.validation import validate
from tests.support.validate.corruptions import CORRUPTIONS, Corruption

pytestmark = pytest.mark.xdist_group("validate")  # one worker builds the root for all of them


def found_in(root: Path) -> list[Finding]:
    """The problems that validation finds in a root."""
    return validate(str(root), deep=True).findings


def names(finding: Finding, root: Path, corruption: Corruption) -> bool:
    """Return True if a finding names the check, the file and the reason."""
    path = str(Path(finding.url).relative_to(root))
    right = fnmatch.fnmatch(path, corruption.file) and corruption.difference in finding.difference
    return right and finding.check == corruption.check and bool(finding.remedy)


def test_clean_root_has_no_finding(whole_root: Path) -> None:
    report = validate(str(whole_root), deep=True)
    assert [str(finding) for finding in report.findings] == []
    stages = {step.stage.partition("-")[0] for step in report.steps}
    assert stages == {
        *("download", "normalize", "signatures", "dedup", "select", "consolidate", "train", "contract", "tokenize",
          "packing"),
    }  # fmt: skip
    skipped = [(step.stage, result.check) for step in report.steps for result in step.results if result.skipped]
    files, edits, final = ("download", "files"), ("select", "edits"), ("select", "final")
    reason = "the novels and the letters are read in place, no text is edited, and there are no final rules"
    assert skipped == [files, files, edits, final], reason
    results = [result for step in report.steps for result in step.results]
    assert all(result.amounts for result in results if result.check not in ("inputs", "edits", "final"))


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name.replace(" ", "-"))
def test_corruption_is_found_with_file_and_reason(whole_root: Path, tmp_path: Path, corruption: Corruption) -> None:
    root = Path(shutil.copytree(whole_root, tmp_path / "root"))
    corruption.change(root)
    found = found_in(root)
    assert any(names(finding, root, corruption) for finding in found), [str(finding) for finding in found]


def test_there_are_sixty_corruptions_over_all_stages() -> None:
    assert len({corruption.name for corruption in CORRUPTIONS}) >= 60
