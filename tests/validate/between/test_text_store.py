"""Texts are decoded once for all checks, and read again if the store cannot have all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datakit.storage.manifest import read_manifest
from datakit.validate.between import encoding, similarity, text_store
from datakit.validate.between.removals import sources_of
from datakit.validate.between.text_store import TextStore
from datakit.validate.id_lists import Ids, ids_of
from datakit.validate.subject import Settings, open_subject
from datakit.validate.validation import validate
from tests.support.small_shelf import step


def amounts(root: Path) -> dict[str, int]:
    """Validate a root without a finding, and return how many pairs and encoded documents were compared."""
    report = validate(str(root / "root"), deep=True)
    assert report.findings == []
    found = {result.check: result.amounts for one in report.steps for result in one.results}
    return {"pairs": found["similarity"]["pair"], "documents": found["encoding"]["encoded document"]}


def test_texts_are_decoded_once(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(text_store, "MOST_REMOVALS", -1)
    before = amounts(finished)
    monkeypatch.undo()
    monkeypatch.setattr(similarity, "_texts", refuse)
    monkeypatch.setattr(encoding, "_texts", refuse)
    assert amounts(finished) == before
    assert before["pairs"] == 4 and before["documents"] > 0


def test_texts_that_do_not_fit_are_read_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = amounts(finished)
    monkeypatch.setattr(text_store, "MOST_BYTES", 100)
    assert amounts(finished) == before


def test_store_answers_only_if_it_knew_all_ids_and_read_the_whole_file(finished: Path, tmp_path: Path) -> None:
    directory = str(step(finished, "root/shelf/dedup-*"))
    subject = open_subject(directory, read_manifest(directory), Settings(deep=True))[0]
    store = TextStore(tmp_path)
    store.want(subject, [entry.directory for entry in subject.inputs])
    url = next(documents for source in sources_of(subject) for _, documents, _ in source.files)
    known = store._wanted[url]  # pyright: ignore[reportPrivateUsage]
    assert len(known) and store.texts(url, known) is None, "the file was not read"
    table = pa.table({"id": known.arrow(), "text": [f"text {row}" for row in range(len(known))]})
    store.add(url, (0, 1), ids_of(table["id"]), table)
    assert store.texts(url, known) is None, "only a part of the file was read"
    store.finish(url)
    found = store.texts(url, known[1:])
    assert found is not None
    ((ids, texts),) = found
    assert ids.equals(known[1:]) and texts.to_pylist() == [f"text {row}" for row in range(1, len(known))]
    stranger = Ids(np.append(known.high, np.uint64(7)), np.append(known.low, np.uint64(7)))
    assert store.texts(url, stranger) is None and store.texts("other", known) is None
