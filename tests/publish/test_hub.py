"""On the Hub, a publication is one commit: complete, private unless asked otherwise, and never over a newer revision,
whatever the network does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datakit.errors import CorruptError, DatakitError, NewerRevisionError, RootError, StorageError, UsageError
from datakit.publish import hub as hub_module
from datakit.publish import prepare, publish
from datakit.publish.publishing import require_replaced
from datakit.publish.record import FILE_NAME, Publication, decode_record
from tests.support.hub_upload.repositories import StoredFile
from tests.support.hub_upload.server import Server, hub_server
from tests.support.paths import REPOSITORY

URL, NAME = "hf://datasets/org/shelf", "org/shelf"
OBJECTS, COMMIT = r"PUT /lfs/", r"POST /api/datasets/org/shelf/commit/"


def record(hub: Server) -> Publication:
    """The record in the newest commit."""
    return decode_record(hub.hub.find(NAME).files[FILE_NAME].content, URL)


def assert_complete(hub: Server, commits: int) -> None:
    """Check that the newest commit has exactly the files that its record lists, and that there are so many commits."""
    repository = hub.hub.find(NAME)
    listed = {file.path: file.bytes for file in record(hub).files}
    found = {path: file.size for path, file in repository.files.items() if path not in (FILE_NAME, ".gitattributes")}
    assert found == listed
    assert len(repository.commits) == commits


def test_a_new_repository_is_private_and_gets_one_commit(dataset: Path, hub: Server) -> None:
    done = publish(prepare(str(dataset), URL))
    assert hub.hub.find(NAME).private
    assert done.revision == hub.hub.find(NAME).head
    assert done.url == f"{hub.url}/datasets/{NAME}"
    assert_complete(hub, commits=2)
    assert hub.count(OBJECTS) > 3, "files are uploaded in parts"


def test_public_is_only_what_was_asked_for(dataset: Path, hub: Server) -> None:
    publish(prepare(str(dataset), URL, public=True))
    assert not hub.hub.find(NAME).private
    with pytest.raises(UsageError, match="is public, so everyone could read"):
        prepare(str(dataset), URL)
    hub.hub.create("org/hidden", private=True)
    with pytest.raises(UsageError, match="exists and is private; leave --public out"):
        prepare(str(dataset), "hf://datasets/org/hidden", public=True)


def test_publishing_again_sends_nothing(dataset: Path, hub: Server) -> None:
    first = publish(prepare(str(dataset), URL))
    sent = hub.count(r"^(PUT|POST) ")
    prepared = prepare(str(dataset), URL)
    assert prepared.is_published
    assert publish(prepared).revision == first.revision
    assert hub.count(r"^(PUT|POST) ") == sent


KILLED = "import sys; from datakit.cli import main; sys.exit(main(sys.argv[1:]))"


def test_a_killed_upload_sends_only_what_is_missing(
    dataset: Path, hub: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = list[subprocess.Popen[bytes]]()
    sizes = {file.sha256: file.bytes for file in prepare(str(dataset), URL).files}
    complete = list[str]()
    keep, one_at_a_time = hub.hub.keep, threading.Lock()

    def kill_after_two(oid: str, data: bytes) -> None:
        with one_at_a_time:
            if len(complete) < 2:
                keep(oid, data)
                complete.append(oid)
                if len(complete) == 2:
                    processes[0].send_signal(signal.SIGKILL)

    monkeypatch.setattr(hub.hub, "keep", kill_after_two)
    command = [sys.executable, "-c", KILLED, "publish", str(dataset), URL, "--yes"]
    processes.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}))
    assert processes[0].wait(timeout=120) == -signal.SIGKILL
    assert len(hub.hub.find(NAME).commits) == 1
    monkeypatch.undo()
    before = hub.sent(OBJECTS)
    publish(prepare(str(dataset), URL))
    missing = [size for oid, size in sizes.items() if oid not in complete and size > 100_000]
    assert len(missing) == 1 and hub.sent(OBJECTS) - before == sum(missing)
    assert_complete(hub, commits=2)


@pytest.mark.parametrize(
    ("pattern", "facts"),
    [
        (r"GET /api/whoami-v2", {"status": 429, "headers": {"Retry-After": "1"}}),
        (r"POST /api/repos/create", {"status": 500, "times": 2}),
        (r"POST .*/preupload/", {"status": 503}),
        (r"POST .*/objects/batch", {"status": 429, "headers": {"Retry-After": "1"}}),
        (OBJECTS, {"status": 500, "times": 3}),
        (OBJECTS, {"cut_after": 1000}),
        (r"POST /lfs/", {"lost": True}),
        (COMMIT, {"status": 500}),
        (COMMIT, {"cut_after": 10}),
        (COMMIT, {"lost": True}),
        (r"GET .*/tree/", {"status": 502, "times": 2}),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_passing_faults_are_outlived(dataset: Path, hub: Server, pattern: str, facts: dict[str, object]) -> None:
    hub.fault(pattern, **facts)
    done = publish(prepare(str(dataset), URL))
    assert all(fault.times == 0 for fault in hub.faults), "the fault has happened"
    assert done.revision == hub.hub.find(NAME).head
    assert_complete(hub, commits=2)


@pytest.mark.parametrize(
    ("pattern", "facts", "expected"),
    [
        (r"GET /api/whoami-v2", {"status": 401}, (RootError, r"denied access \(401\).*check the token.*HF_TOKEN is")),
        (r"POST /api/repos/create", {"status": 403}, (RootError, r"denied access \(403\).*create the repository")),
        (r"POST .*/objects/batch", {"status": 500}, (StorageError, "answered 500 when datakit tried to upload data/")),
        (OBJECTS, {"cut_after": 0}, (StorageError, "no answer from the Hub when datakit tried to upload data/")),
        (COMMIT, {"status": 503}, (StorageError, "answered 503 when datakit tried to commit")),
        (COMMIT, {"status": 403}, (RootError, r"denied access \(403\) when datakit tried to commit")),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_lasting_faults_are_named_and_the_next_run_goes_on(
    dataset: Path, hub: Server, pattern: str, facts: dict[str, object], expected: tuple[type[DatakitError], str]
) -> None:
    error, message = expected
    hub.fault(pattern, times=10_000, **facts)
    with pytest.raises(error, match=message) as failed:
        publish(prepare(str(dataset), URL))
    for secret in (os.environ["HF_TOKEN"], "X-Amz-Signature", "0a1b2c3d"):
        assert secret not in str(failed.value) and secret not in str(failed.value.__cause__)
    hub.faults.clear()
    publish(prepare(str(dataset), URL))
    assert_complete(hub, commits=2)


def test_a_commit_that_came_meanwhile_stays(dataset: Path, hub: Server) -> None:
    publish(prepare(str(dataset), URL))
    repository = hub.hub.find(NAME)
    del repository.files["data/laws/part-00000-of-00001.parquet"]
    prepared = prepare(str(dataset), URL)

    def change() -> None:
        files = {**repository.files, "README.md": StoredFile(4, b"mine")}
        repository.add(files, "by hand")

    hub.fault(COMMIT, then=change)
    with pytest.raises(NewerRevisionError, match=f"but {prepared.held.revision} was there when"):
        publish(prepared)
    assert repository.files["README.md"].content == b"mine" and len(repository.commits) == 3


def test_a_repository_that_was_filled_meanwhile_stays(dataset: Path, hub: Server) -> None:
    prepared = prepare(str(dataset), URL)
    hub.hub.create(NAME, private=True)
    hub.hub.find(NAME).add({"data.csv": StoredFile(4, b"mine")}, "by hand")
    with pytest.raises(NewerRevisionError, match="but no revision was there"):
        publish(prepared)
    assert len(hub.hub.find(NAME).commits) == 2


def test_changes_by_hand_are_replaced_only_if_the_revision_is_named(dataset: Path, hub: Server) -> None:
    hub.hub.create(NAME, private=True)
    files = {"data.csv": StoredFile(4, b"mine"), "README.md": StoredFile(4, b"mine")}
    head = hub.hub.find(NAME).add(files, "by hand")
    prepared = prepare(str(dataset), URL)
    with pytest.raises(NewerRevisionError, match=f"--replaces {head}"):
        require_replaced(prepared, None)
    require_replaced(prepared, head[:12])
    publish(prepared)
    assert hub.hub.find(NAME).files["data.csv"].content == b"mine", "files of others are kept"


def test_wrong_bytes_in_the_commit_are_noticed(dataset: Path, hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def misfile(files: dict[str, StoredFile], key: str, value: dict[str, str]) -> None:
        if key != "header":
            files[value["path"]] = StoredFile(1, b"?", "0" * 64)

    monkeypatch.setattr(hub.hub, "_apply", misfile)
    with pytest.raises(CorruptError, match="has other bytes than those that were sent"):
        publish(prepare(str(dataset), URL))


def test_the_token_comes_from_the_environment_alone(
    dataset: Path, hub: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(os.environ["HF_TOKEN"])
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UsageError, match="environment variable HF_TOKEN"):
        prepare(str(dataset), URL)
    assert hub.requests == []


@pytest.mark.parametrize(
    "url", ["hf://datasets/shelf", "hf://org/shelf", "hf://datasets/org/shelf@dev", "hf://models/a/b"]
)
def test_other_addresses_are_refused(dataset: Path, hub: Server, url: str) -> None:
    with pytest.raises(UsageError, match="not of the form hf://datasets/ORGANIZATION/NAME"):
        prepare(str(dataset), url)


def test_more_files_than_a_commit_takes_are_refused(
    dataset: Path, hub: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MOST_FILES", 5)
    with pytest.raises(UsageError, match="6 files are too many for one commit"):
        prepare(str(dataset), URL)


def test_files_are_uploaded_a_few_at_a_time(dataset: Path, hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FILES_AT_ONCE", 2)
    publish(prepare(str(dataset), URL))
    assert hub.count(r"POST .*/objects/batch") >= 2
    assert_complete(hub, commits=2)


FAULTS = st.builds(
    dict,
    pattern=st.sampled_from(
        [r"GET /api/", r"POST .*/preupload/", r"/objects/batch", OBJECTS, r"POST /lfs/", COMMIT, r"/repos/create"]
    ),
    times=st.integers(1, 7),
    kind=st.sampled_from(["429", "500", "cut", "lost"]),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=st.lists(FAULTS, max_size=4))
@pytest.mark.usefixtures("impatient")
def test_any_schedule_of_faults_ends_complete_or_in_a_named_error(
    dataset: Path, schedule: list[dict[str, object]]
) -> None:
    kinds = {"429": {"status": 429}, "500": {"status": 500}, "cut": {"cut_after": 100}, "lost": {"lost": True}}
    with hub_server() as hub:
        for fault in schedule:
            hub.fault(str(fault["pattern"]), times=fault["times"], **kinds[str(fault["kind"])])
        for _ in range(len(schedule) + 1):
            try:
                publish(prepare(str(dataset), URL))
                break
            except StorageError as error:
                assert "when datakit tried to" in str(error)
        else:
            hub.faults.clear()
            publish(prepare(str(dataset), URL))
        assert_complete(hub, commits=2)
