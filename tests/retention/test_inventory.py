"""Paths in a root are told apart: steps, what belongs to them, and what lies behind links."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.retention.inventory import files, is_inside, step_of, step_paths

STEP, SOURCE_STEP = "shelf/dedup-0123456789ab", "sources/web/normalize-0123456789ab"


@pytest.mark.parametrize(
    ("path", "step"),
    [
        (STEP, STEP),
        (f"{STEP}/data/web/x", STEP),
        (SOURCE_STEP, SOURCE_STEP),
        (f"{SOURCE_STEP}/manifest.json", SOURCE_STEP),
        ("packing/packing-64-split-0123456789ab/x", "packing/packing-64-split-0123456789ab"),
        ("shelf/runs/x", None),
        ("shelf", None),
        ("sources/dedup-0123456789ab", None),
        ("shelf/dedup-0123456789abc", None),
        (f".trash/{STEP}", None),
        ("../dedup-0123456789ab", None),
        ("a/b/dedup-0123456789ab", None),
    ],
)
def test_path_belongs_to_the_step_that_it_lies_in(path: str, step: str | None) -> None:
    assert step_of(path) == step


def test_steps_behind_links_are_found_but_not_inside(tmp_path: Path) -> None:
    (tmp_path / "root" / "sources").mkdir(parents=True)
    (tmp_path / "outside" / "dedup-0123456789ab").mkdir(parents=True)
    (tmp_path / "root" / "shelf").symlink_to(tmp_path / "outside")
    assert step_paths(str(tmp_path / "root")) == [STEP]
    assert not is_inside(str(tmp_path / "root"), STEP)
    assert files(str(tmp_path / "root"))[0].path == "shelf"
    assert is_inside(str(tmp_path / "root"), "sources/x")
    assert not is_inside(str(tmp_path / "root"), "sources/../../outside")
