"""A dataset's directory stands for what its last complete run made, and nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import CorruptError, NewerFormatError, NotFoundError, UsageError
from datakit.storage import atomic, urls
from datakit.storage.latest import (
    FILE_NAME,
    Current,
    SourceRecords,
    current_attributes,
    current_cache,
    current_documents,
    current_passages,
    current_step,
    read_latest,
    record_latest,
)
from datakit.storage.manifest import Manifest, Quarantine, Totals, write_manifest

OLD, NEW, TEXTS = (Current(f"{stage}-{digit * 12}", digit * 32) for stage, digit in
                   (("tokenize", "f"), ("tokenize", "0"), ("consolidate", "a")))  # fmt: skip


def finish(dataset: str, current: Current) -> str:
    directory = urls.join(dataset, current.directory)
    stage = current.directory.partition("-")[0]
    write_manifest(
        Manifest(stage, "d", "f", current.identity, {}, [], [], [], Totals(0, 0), {}, Quarantine(0)), directory
    )
    return directory


def test_dataset_stands_for_the_run_that_ended_last(root: str) -> None:
    old, new, texts = (finish(root, one) for one in (OLD, NEW, TEXTS))
    for current, directory in ((OLD, old), (NEW, new), (OLD, old)):
        record_latest(root, current, current)
        assert current_cache(root) == current_step(root)
        assert (current_cache(root) or ("",))[0] == directory
    record_latest(root, TEXTS, None)
    assert (current_step(root) or ("",))[0] == texts
    assert (current_cache(root) or ("",))[0] == old, "a run without a cache keeps the recorded one"


def test_record_that_leads_elsewhere_is_refused(root: str) -> None:
    for directory in ("../../elsewhere", "/etc", "a/b", ".."):
        atomic.replace_bytes(
            b'{"cache":null,"format":"datakit.latest/1","step":{"directory":"%s","identity":"0"}}' % directory.encode(),
            urls.join(root, FILE_NAME),
        )
        with pytest.raises(CorruptError, match=f"names '{directory}', which is not the directory of a step"):
            current_step(root)


def test_equal_record_is_not_written_again(root: str) -> None:
    record_latest(root, NEW, NEW)
    before = urls.modified(urls.join(root, FILE_NAME))
    record_latest(root, NEW, None)
    assert urls.modified(urls.join(root, FILE_NAME)) == before


def test_only_cache_of_an_earlier_version_needs_no_record(root: str) -> None:
    assert current_cache(root) is None
    directory = finish(root, OLD)
    assert (current_cache(root) or ("",))[0] == directory
    finish(root, NEW)
    with pytest.raises(UsageError, match=f"2 finished tokenize steps.*{NEW.directory}, {OLD.directory}"):
        current_cache(root)


def test_missing_or_changed_step_is_named(root: str) -> None:
    finish(root, OLD)
    record_latest(root, NEW, NEW)
    with pytest.raises(NotFoundError, match=f"names {NEW.directory} .* is unfinished or missing"):
        current_cache(root)
    record_latest(root, OLD, Current(OLD.directory, "1" * 32))
    with pytest.raises(NotFoundError, match=f"has the identity {OLD.identity}"):
        current_cache(root)


def test_damaged_record_is_an_error_until_a_run_replaces_it(root: str) -> None:
    atomic.replace_bytes(b"{", urls.join(root, FILE_NAME))
    with pytest.raises(CorruptError, match="run the recipe again"):
        read_latest(root)
    record_latest(root, NEW, NEW)
    assert read_latest(root) is not None


def test_record_of_a_newer_version_is_kept_and_refused(root: str) -> None:
    """The run that could not record its steps gets a message for the user."""
    written = b'{"format": "datakit.latest/5", "steps": {}}'
    atomic.replace_bytes(written, urls.join(root, FILE_NAME))
    message = record_latest(root, NEW, NEW)
    assert message.startswith(f"{urls.join(root, NEW.directory)} is not recorded as current: ")
    assert urls.read_bytes(urls.join(root, FILE_NAME)) == written
    with pytest.raises(
        NewerFormatError, match=r"its format is datakit\.latest/5; this version reads datakit\.latest/4"
    ):
        read_latest(root)


def test_licenses_are_recorded_and_an_earlier_reader_still_finds_the_steps(tmp_path: Path) -> None:
    record_latest(str(tmp_path), NEW, NEW)
    before = (tmp_path / FILE_NAME).read_bytes()
    assert b"licenses" not in before, "without licenses, the file stays as earlier versions write it"
    record_latest(str(tmp_path), NEW, NEW, SourceRecords({"novels": "CC0-1.0"}))
    found = read_latest(str(tmp_path))
    assert found is not None and found.licenses == {"novels": "CC0-1.0"}
    record_latest(str(tmp_path), NEW, NEW)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_annotate_steps_are_recorded_in_a_format_of_their_own(tmp_path: Path) -> None:
    """An earlier version would remove them, so it must refuse the file."""
    dataset, annotated = str(tmp_path / "shelf"), Current("annotate-0123456789ab", "a" * 32)
    directory = finish(str(tmp_path / "sources" / "novels"), annotated)
    finish(dataset, NEW)
    record_latest(dataset, NEW, NEW, SourceRecords(attributes={"novels": annotated}))
    assert b'"datakit.latest/3"' in urls.read_bytes(urls.join(dataset, FILE_NAME))
    assert [step for step, _ in current_attributes(dataset)] == [directory]
    record_latest(dataset, NEW, NEW)
    assert b'"datakit.latest/1"' in urls.read_bytes(urls.join(dataset, FILE_NAME)) and not current_attributes(dataset)


def test_passages_step_that_no_step_reads_is_recorded_in_a_format_of_its_own(root: str) -> None:
    found = Current("passages-0123456789ab", "b" * 32)
    directory = finish(root, found)
    finish(root, NEW)
    record_latest(root, NEW, NEW, passages=found)
    assert b'"datakit.latest/4"' in urls.read_bytes(urls.join(root, FILE_NAME))
    assert (current_passages(root) or ("",))[0] == directory
    record_latest(root, NEW, NEW)
    assert b'"datakit.latest/1"' in urls.read_bytes(urls.join(root, FILE_NAME)) and current_passages(root) is None


@pytest.mark.parametrize(
    "step", [b'"..": {"directory":"d","identity":"0"}', b'"a": {"directory":"../d","identity":"0"}']
)
def test_annotate_steps_outside_of_the_sources_are_refused(tmp_path: Path, step: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(
        b'{"cache":null,"format":"datakit.latest/3","step":{"directory":"d","identity":"0"},"attributes":{%s}}' % step
    )
    with pytest.raises(CorruptError, match="not the directory of a step or a source"):
        read_latest(str(tmp_path))


def test_consolidate_step_beside_the_cache_is_recorded_in_a_format_of_its_own(root: str) -> None:
    """An earlier version would remove the step, so it must refuse the file. Without such a step, the format is the old
    one.
    """
    texts = finish(root, TEXTS)
    finish(root, NEW)
    record_latest(root, NEW, NEW)
    assert b'"datakit.latest/1"' in urls.read_bytes(urls.join(root, FILE_NAME)) and current_documents(root) is None
    record_latest(root, NEW, NEW, documents=TEXTS)
    assert b'"datakit.latest/2"' in urls.read_bytes(urls.join(root, FILE_NAME))
    assert (current_documents(root) or ("",))[0] == texts
    record_latest(root, OLD, None)
    assert (current_documents(root) or ("",))[0] == texts, "a run that ended before the cache keeps the recorded step"
    record_latest(root, TEXTS, None)
    assert current_documents(root) is None, "the step is the current one"
    record_latest(root, NEW, NEW)
    assert current_documents(root) is None, "a run with a cache and without the step has no such step"


def test_consolidate_step_is_kept_by_every_run_that_ended_before_the_cache(root: str) -> None:
    """The cache is kept, too, and what belongs to it must not be lost because one such run ended with consolidate."""
    finish(root, TEXTS)
    record_latest(root, NEW, NEW, documents=TEXTS)
    record_latest(root, TEXTS, None)
    record_latest(root, OLD, None)
    found = read_latest(root)
    assert found is not None and (found.cache, found.documents) == (NEW, TEXTS)
