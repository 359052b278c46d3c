"""A publication says what became of personal data, kind by kind and source by source."""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from datakit.publish.documents import find_documents
from datakit.publish.personal_data import PersonalData, personal_data
from tests.support.published.shelf import RECIPE, SOURCES


@pytest.fixture(scope="module")
def statuses(dataset: Path) -> dict[str, PersonalData]:
    return {one.source: one for one in find_documents(str(dataset)).personal}


def test_masked_and_kept_kinds_are_told_apart(statuses: dict[str, PersonalData]) -> None:
    assert list(statuses) == list(SOURCES)
    letters, novels = statuses["letters"], statuses["novels"]
    assert letters.edited == {"email": "masked"} and letters.kept == ("ipv4",)
    assert novels.edited == {} and set(novels.kept) == {"email", "ipv4"}
    assert letters.found == novels.found == 6
    assert letters.describe() == "found in 6 documents as read: email masked; ipv4 kept"


def test_what_was_not_searched_for_is_not_claimed() -> None:
    assert [one.describe() for one in personal_data(["web"], [], [])] == ["not searched for"]


def test_attributes_that_nothing_read_are_found(dataset: Path) -> None:
    folder = dataset.parent.parent
    unread = RECIPE[: RECIPE.index("[select.edits.mail]")].replace('"shelf"', '"unread"')
    (folder / "unread.toml").write_text(unread)
    datakit.run(folder / "unread.toml", folder / "root", workers=2)
    found = find_documents(str(folder / "root" / "unread")).personal
    assert [(one.kept, one.found) for one in found] == [(("email", "ipv4"), 6)] * 3


def test_rules_that_read_findings_are_named(dataset: Path) -> None:
    folder = dataset.parent.parent
    rule = '[[rules]]\nname = "addresses"\nwhere = "len(personal.spans) > 0"\nsources = ["laws"]\n'
    (folder / "ruled.toml").write_text(RECIPE.replace('"shelf"', '"ruled"') + rule)
    datakit.run(folder / "ruled.toml", folder / "root", workers=2)
    found = {one.source: one for one in find_documents(str(folder / "root" / "ruled")).personal}
    assert found["laws"].rules == ("addresses",) and found["novels"].rules == ()
    assert found["laws"].describe().endswith("documents may leave by addresses")
