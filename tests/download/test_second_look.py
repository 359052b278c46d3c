"""A source in a store looks the same before and after its files were copied, or the step is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import fsspec
import pytest

import datakit
from datakit.download import transfer
from datakit.download.second_look import Look, is_looked_at_twice
from datakit.engine.task import Step
from datakit.errors import ChangedInputError, DatakitError
from datakit.storage import globs
from datakit.storage.buckets import listing
from tests.support.buckets import orders
from tests.support.buckets.orders import Answer, lists, reads
from tests.support.buckets.stores import KINDS, Store, bucket_store
from tests.support.normalize.sources import download_step, run_download

FILES = {f"{number}.txt": f"text {number}".encode() for number in range(7)}


@pytest.fixture(scope="module", params=KINDS)
def shared_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with bucket_store(request.param) as store:
        store.put_all(FILES)
        yield store


@pytest.fixture
def store(shared_store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A bucket with FILES, listed four at a time (three the second time); changes of a test are undone."""
    monkeypatch.setattr(transfer.time, "sleep", lambda seconds: None)
    shared_store.proxy.reset()
    yield shared_store
    shared_store.proxy.reset()
    for path in ("new.txt", *FILES):
        if path not in FILES:
            shared_store.put(path, b"")
            shared_store.remove(path)
        else:
            shared_store.put(path, FILES[path])


def step_of(url: str, folder: Path, include: tuple[str, ...] = ()) -> Step:
    """A download step that looks twice."""
    step = download_step(url, str(folder), include)
    return replace(step, operations={**step.operations, "look": asdict(Look(url, include, ()))})


@pytest.mark.parametrize("url", ["s3://b/a", "gs://b", "memory://b", "sftp://host/a"])
def test_stores_are_looked_at_twice_unless_the_source_is_pinned(url: str) -> None:
    assert is_looked_at_twice(url, None)
    assert not is_looked_at_twice(url, "v1")


@pytest.mark.parametrize("url", ["/data", "file:///data", "https://host/a", "hf://datasets/a/b"])
def test_sources_whose_files_state_their_versions_are_looked_at_once(url: str) -> None:
    assert not is_looked_at_twice(url, None)


def test_unchanged_source_is_complete(store: Store, tmp_path: Path) -> None:
    output = run_download(step_of(store.url, tmp_path))
    assert {part.path: (tmp_path / "raw" / part.path).read_bytes() for part in output.partitions} == FILES
    first, second = [seen.query.get("max-keys") or seen.query["maxResults"] for seen in store.proxy.of("list")]
    assert (first, second) == (str(listing.PAGE_KEYS), str(listing.OTHER_PAGE_KEYS))


def test_everything_that_changed_meanwhile_is_named(store: Store, tmp_path: Path) -> None:
    step = step_of(store.url, tmp_path)

    def change() -> None:
        store.put("new.txt", b"new")
        store.remove("0.txt")
        store.put("1.txt", b"text I")

    store.proxy.then(reads("6.txt"), change)
    words = (
        r"source 'shelf' did not look the same before and after its files were copied: 1 file appeared \(new\.txt\), "
        r"1 file vanished \(0\.txt\), 1 file changed \(1\.txt\); run again once nothing writes to "
    )
    with pytest.raises(ChangedInputError, match=words + store.url):
        run_download(step)
    assert {path.name for path in (tmp_path / "raw").iterdir()} == set(FILES), "finished work is kept"


def test_changes_of_files_that_were_not_chosen_do_not_matter(store: Store, tmp_path: Path) -> None:
    step = step_of(store.url, tmp_path, ("[0-5].txt",))
    store.proxy.then(reads("5.txt"), lambda: store.put("6.txt", b"text VI"))
    store.proxy.then(reads("5.txt"), lambda: store.put("new.txt", b"new"))
    assert len(run_download(step).partitions) == 6


@pytest.mark.parametrize("change", [orders.without_object_and_count(3), orders.without_token()], ids=["object", "page"])
def test_an_incomplete_first_listing_is_noticed(
    store: Store, tmp_path: Path, change: orders.Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the listing does not contradict itself, as where an object is left out with all that refers to it."""
    if store.kind == "s3":
        change = orders.without_object_and_count(3)  # a missing token is noticed at once
    monkeypatch.setattr(globs.files_at, "__defaults__", ((), False, 4))
    store.proxy.order(lists(page=1), change)
    with pytest.raises(
        ChangedInputError, match=r"\d files? appeared \(\d\.txt.*\(if nothing did, its store gives incomp"
    ):
        run_download(step_of(store.url, tmp_path))


def test_an_outdated_answer_is_noticed(store: Store, tmp_path: Path) -> None:
    """A cache that answers with what was listed before an object was replaced."""
    before = list[Answer]()
    store.proxy.order(lists(), lambda answer: before.append(answer) or answer)
    listing.objects_below(store.url)
    store.put("3.txt", b"text III")
    store.proxy.order(lists(), lambda answer: before[0])
    with pytest.raises(ChangedInputError, match=r"3\.txt: it has .*; run again to list the source again"):
        run_download(step_of(store.url, tmp_path))


def test_a_store_that_is_out_of_order_at_the_second_look_is_an_error(store: Store, tmp_path: Path) -> None:
    step = step_of(store.url, tmp_path)
    store.proxy.order(lists(), orders.with_object_twice(2), times=100)
    with pytest.raises(DatakitError, match=r"the listing of \S+ is not complete or not right: page 1 lists"):
        run_download(step)


def test_a_single_file_that_vanished_is_named(store: Store, tmp_path: Path) -> None:
    step = step_of(f"{store.url}/2.txt", tmp_path)
    if store.kind == "gs":
        store.proxy.then(lambda seen: seen.kind == "describe", lambda: store.remove("2.txt"))
    else:
        store.proxy.then(reads("2.txt"), lambda: store.remove("2.txt"))
    with pytest.raises(ChangedInputError, match=r"1 file vanished \(2\.txt\)"):
        run_download(step)


def test_other_stores_are_looked_at_twice_by_size(tmp_path: Path) -> None:
    """A store without checksums is not read a second time."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/twice/a.txt", b"content")
    try:
        step = step_of("memory://twice", tmp_path)
        assert len(run_download(step).partitions) == 1
        memory.pipe("/twice/b.txt", b"content")
        with pytest.raises(ChangedInputError, match=r"1 file appeared \(b\.txt\)"):
            run_download(step)
    finally:
        memory.rm("/twice", recursive=True)


def test_a_run_looks_twice_unless_the_source_is_pinned(store: Store, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    text = f'name = "r"\n[[sources]]\nname = "s"\nurl = "{store.url}"\n'
    recipe.write_text(text)
    store.proxy.then(reads("0.txt"), lambda: store.put("new.txt", b"new"))
    with pytest.raises(DatakitError, match=r"source 's' did not look the same .*1 file appeared \(new\.txt\)"):
        datakit.run(recipe, root=tmp_path / "root", workers=1, until="download")
    store.remove("new.txt")
    before = len(store.proxy.of("read"))
    result = datakit.run(recipe, root=tmp_path / "root", workers=1, until="download")
    assert [part.path for part in result.steps[0].manifest.partitions] == sorted(FILES)
    assert len(store.proxy.of("read")) == before, "the copies were kept"
    if store.kind == "gs":
        return  # what follows does not depend on the kind of store
    recipe.write_text(text + 'revision = "v1"\n')
    store.proxy.then(reads("0.txt"), lambda: store.put("new.txt", b"new"))
    assert (
        len(datakit.run(recipe, root=tmp_path / "root", workers=1, until="download").steps[0].manifest.partitions) == 7
    )
