"""A root in an object store is checked like one on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.storage import urls
from datakit.validate.validation import plain, validate
from tests.support.s3 import s3_root
from tests.support.small_shelf import step
from tests.support.validate.damage import flip, forged

pytest.importorskip("s3fs")


def test_root_in_an_object_store_is_checked(finished_copy: Path) -> None:
    with s3_root(holding=str(finished_copy / "root")) as root:
        report = validate(root, deep=True)
        assert ([str(one) for one in report.findings], len(report.steps)) == ([], 12)


def test_damage_in_an_object_store_is_found(finished_copy: Path) -> None:
    pattern = "sources/novels/normalize-*/data/novels/*"
    flip(pattern)(finished_copy / "root")
    forged("shelf/dedup-*", "details", "sources", "novels", "retained", value=1)(finished_copy / "root")
    with s3_root(holding=str(finished_copy / "root")) as root:
        found = {urls.name(one.url): one.check for one in validate(root).findings}
    assert found == {step(finished_copy / "root", pattern).name: "files", "manifest.json": "conservation"}


def test_report_is_plain_data(finished: Path) -> None:
    found = plain(validate(str(finished / "root" / "shelf")))
    assert (found["intact"], found["findings"]) == (True, [])
