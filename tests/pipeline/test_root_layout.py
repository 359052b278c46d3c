"""Paths in a root are written and found by one rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import RootError
from datakit.pipeline.root_layout import STAGE_NAMES, check_root, last_stage, stage_order, step_directory, steps_in

DIGITS = "0123456789abcdef" * 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a step of a dataset, one of a source, one of packing, and a directory that is not a step."""
    for directory in (
        step_directory(str(tmp_path), "shelf", None, "dedup", DIGITS),
        step_directory(str(tmp_path), "novels", "novels", "normalize", DIGITS),
        str(tmp_path / "packing" / f"packing-64-truncate-{DIGITS[:12]}"),
        str(tmp_path / "shelf" / "runs"),
    ):
        Path(directory).mkdir(parents=True)
    return tmp_path


def test_every_step_of_a_root_is_found(root: Path) -> None:
    assert [str(Path(path).relative_to(root)) for path in steps_in(str(root))] == [
        "packing/packing-64-truncate-0123456789ab",
        "shelf/dedup-0123456789ab",
        "sources/novels/normalize-0123456789ab",
    ]
    assert steps_in(str(root / "shelf")) == [str(root / "shelf" / "dedup-0123456789ab")]
    assert steps_in(str(root / "absent")) == []


def test_stages_are_ordered_by_the_flow() -> None:
    assert sorted(STAGE_NAMES, key=stage_order) == list(STAGE_NAMES)
    assert stage_order("packing-64-truncate") == -1


def test_contract_stands_for_a_dataset_only_if_there_is_nothing_else() -> None:
    assert max(["contract", "dedup", "select"], key=last_stage) == "select"
    assert max(["tokenize", "contract"], key=last_stage) == "tokenize"
    assert max(["contract"], key=last_stage) == "contract"


def test_root_must_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RootError, match="is not a directory"):
        check_root(str(tmp_path / "file"), "shelf")
    check_root(str(tmp_path / "new" / "root"), "shelf")
    assert not (tmp_path / "new").exists()
