"""The commits of a repository as documents: complete, verified, and made without running anything of the repository."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import datakit
from datakit.download.git import client, history, objects, snapshot
from datakit.download.git.commits import parse_commit
from datakit.download.git.history import SCHEMA
from datakit.download.listing import listed, source_base
from datakit.download.remote_listing import RemoteOptions
from datakit.errors import CorruptError, RecipeError, StorageError
from datakit.storage.manifest import read_manifest
from tests.support.git import Fetched, fetched, git, git_bytes

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="the program git is not installed")

DATE = {"GIT_AUTHOR_DATE": "1700000000 +0100", "GIT_COMMITTER_DATE": "1800000000 +0000"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Six commits, with a merge, an empty commit, a file that becomes a link, and settings that would run a program."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.py").write_text("print('hello')\n")
    (folder / ".gitattributes").write_text("*.py diff=evil\n*.txt -diff\n* filter=evil\n")
    (folder / "ü 🙂\nx.txt").write_bytes(b"caf\xe9\n")
    commit(folder, "one\n\nbecause of this\n", **DATE)
    git(folder, "checkout", "-qb", "other")
    (folder / "b.txt").write_text("diff --git a/x b/x\n")
    (folder / "data").write_bytes(b"\0\1")
    commit(folder, "two")
    git(folder, "checkout", "-q", "main")
    (folder / "a.py").unlink()
    os.symlink("/etc/passwd", folder / "a.py")
    commit(folder, "three")
    git(folder, "merge", "-q", "--no-ff", "-m", "merged", "other")
    git(folder, "commit", "-q", "--allow-empty", "-m", "empty")
    (folder / ".hidden").write_text("x\n")
    commit(folder, "hidden")
    planted = f"touch {tmp_path}/ran"
    for name in ("diff.evil.textconv", "diff.evil.command", "diff.external", "filter.evil.smudge", "core.fsmonitor",
                 "core.pager", "uploadpack.packObjectsHook"):  # fmt: skip
        git(folder, "config", name, planted)
    return folder


def commit(folder: Path, message: str, **environment: str) -> str:
    """Commit all files; return the id."""
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message, **environment)
    return git(folder, "rev-parse", "HEAD")


def download(tmp_path: Path, url: str, **patterns: Any) -> Fetched:
    """The rows of a history, why other commits are left out, and the counters."""
    (file,) = listed(url, (), (), remote=RemoteOptions(history=True)).files
    assert file.path.endswith("-history.parquet")
    return fetched(tmp_path, source_base(url), file.checksum, SCHEMA, history=True, **patterns)


def test_commits_become_documents(tmp_path: Path, repository: Path) -> None:
    rows, left_out, counters = download(tmp_path, f"git+file://{repository}")
    texts = {row["text"].split(b"\n")[0].decode(): row for row in rows}
    assert sorted(texts) == ["empty", "merged", "one", "three", "two"]
    assert texts["one"]["author_date"] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (texts["one"]["parents"], texts["one"]["id"]) == ([], git(repository, "rev-parse", "main~4"))
    assert texts["two"]["parents"] == texts["three"]["parents"] == [texts["one"]["id"]]
    assert sorted(texts["merged"]["parents"]) == sorted([texts["two"]["id"], texts["three"]["id"]])
    assert {name: row["files"] for name, row in texts.items()} == {
        "one": 2, "two": 2, "three": 1, "merged": 0, "empty": 0,
    }  # fmt: skip
    assert texts["merged"]["text"] == b"merged\n"
    assert texts["one"]["text"].startswith(
        b"one\n\nbecause of this\n\ndiff --git a/a.py b/a.py\nnew file mode 100644\n"
    )
    assert b"+print('hello')\n" in texts["one"]["text"] and b"+caf\xe9\n" in texts["one"]["text"]
    assert b".gitattributes" not in texts["one"]["text"]
    assert texts["three"]["text"].count(b"diff --git a/a.py") == 2, "a removed file, and a new link"
    assert (
        b"+diff --git a/x b/x\n" in texts["two"]["text"]
        and b"Binary files /dev/null and b/data" in texts["two"]["text"]
    )
    assert all(row["size"] == len(row["text"]) for row in rows)
    assert left_out == {git(repository, "rev-parse", "main"): "no_selected_file"}
    assert (counters["download/commits"], counters["download/left_out_no_selected_file"]) == (5, 1)
    assert not (tmp_path / "ran").exists(), "nothing that the repository names was run"


def test_diffs_are_those_of_git(tmp_path: Path, repository: Path) -> None:
    """Without the repository's settings and attributes, which a bare clone does not have."""
    bare = tmp_path / "bare"
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(bare))
    for row in download(tmp_path, f"git+file://{repository}")[0]:
        own = git_bytes(bare, "show", "--format=", "--full-index", "--no-renames", row["id"], "--", ":!.*")
        assert row["text"].partition(b"\n\ndiff ")[2] == own.removeprefix(b"diff ")


def test_patterns_select_the_files_of_diffs(tmp_path: Path, repository: Path) -> None:
    rows, left_out, _ = download(tmp_path, f"git+file://{repository}", include=["*.txt"], exclude=["b*"])
    assert [(row["text"].split(b"\n")[0], row["files"]) for row in rows] == [(b"one", 1), (b"merged", 0), (b"empty", 0)]
    assert len(left_out) == 3 and set(left_out.values()) == {"no_selected_file"}
    assert b"a.py" not in rows[0]["text"]


def test_history_ends_at_the_revision(tmp_path: Path, repository: Path) -> None:
    rows, _, _ = download(tmp_path, f"git+file://{repository}@other")
    assert [row["text"].split(b"\n")[0] for row in rows] == [b"one", b"two"]


def test_sizes_of_pieces_change_nothing(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "step" / "raw" / "repo.parquet"
    download(tmp_path, f"git+file://{repository}")
    expected = place.read_bytes()
    monkeypatch.setattr(snapshot, "BATCH_ROWS", 1)
    monkeypatch.setattr(objects, "READ_BYTES", 7)
    monkeypatch.setattr(history, "LINE_BYTES", 60)
    download(tmp_path, f"git+file://{repository}")
    assert place.read_bytes() == expected


def test_too_large_commits_are_listed(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the files that are selected are behind those that make it too large."""
    monkeypatch.setattr(history, "LARGEST_TEXT", 100)
    rows, left_out, _ = download(tmp_path, f"git+file://{repository}@other", include=["data"])
    assert rows == [] and sorted(left_out.values()) == ["no_selected_file", "too_large"]


def test_large_files_count_as_binary(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BINARY_FROM", "10")
    (one,) = [row for row in download(tmp_path, f"git+file://{repository}")[0] if row["text"].startswith(b"one")]
    assert b"Binary files /dev/null and b/a.py differ" in one["text"] and b"+caf\xe9\n" in one["text"]


def test_shallow_repository_is_an_error(tmp_path: Path, repository: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth=2", f"file://{repository}", str(tmp_path / "shallow"))
    with pytest.raises(StorageError, match=r"could not list the history: .*shallow"):
        download(tmp_path, f"git+file://{tmp_path}/shallow")


@pytest.mark.parametrize("kind", ["commit", "diff"])
def test_output_of_git_is_not_trusted(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A commit that is missing in the list, and a diff that lacks a file."""
    real = history.write_history
    if kind == "diff":
        monkeypatch.setattr(history, "PATCH", (*history.PATCH, "--diff-filter=A"))
    else:
        monkeypatch.setattr("datakit.download.git.steps.write_history", lambda folder, ids, *others: real(
            folder, without_second(ids), *others))  # fmt: skip
    with pytest.raises(
        CorruptError, match="with other files than it lists" if kind == "diff" else "without its parent"
    ):
        download(tmp_path, f"git+file://{repository}")


def without_second(ids: Path) -> Path:
    """The file without its second line."""
    lines = ids.read_text().splitlines(keepends=True)
    ids.write_text("".join(lines[:1] + lines[2:]))
    return ids


@pytest.mark.parametrize(
    ("head", "message", "expected"),
    [
        (b"author a <b> 99999999999999999 +0000", b"x", (None, b"x")),
        (b"author a <b> -86400 +0000\nencoding ISO-8859-1", b"caf\xe9", (-86_400_000, "café".encode())),
        (b"author nobody\nencoding zlib", b"caf\xe9", (None, b"caf\xe9")),
        (b"author a <b> 1 +0000\ngpgsig x\n author b <b> 2 +0000\nencoding utf-8", b"\xff\n\ny", (1000, b"\xff\n\ny")),
        (b"committer a <b> 1 +0000", b"", (None, b"")),
    ],
)
def test_commits_of_any_kind_are_parsed(head: bytes, message: bytes, expected: tuple[int | None, bytes]) -> None:
    found = parse_commit("1", b"tree 2\nparent 3\nparent 4\n" + head + b"\n\n" + message)
    assert (found.parents, (found.author_ms, found.message)) == (("3", "4"), expected)


def test_run_ends_with_the_documents(tmp_path: Path, repository: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'name = "code"\n[[sources]]\nname = "repo"\nurl = "git+file://{repository}"\nhistory = true\n'
        'where = "files > 0 and author_date < timestamp \'2030-01-01\'"\n[tokenize]\ntokenizer = "bytes"\n'
    )
    result = datakit.run(str(recipe), str(tmp_path / "root"), workers=2, until="normalize")
    (step,), (downloaded,) = result.steps_of("normalize"), result.steps_of("download")
    assert read_manifest(downloaded.directory).parameters["history"] is True
    (part,) = Path(step.directory).glob("data/repo/*.parquet")
    assert {row["text"].split("\n")[0] for row in pq.read_table(part).to_pylist()} == {"one", "two", "three"}
    offline = datakit.run(str(recipe), str(tmp_path / "root"), workers=2, until="normalize", offline=True)
    assert [one.directory for one in offline.steps_of("normalize")] == [step.directory]
    recipe.write_text(f'name = "code"\n[[sources]]\nname = "repo"\nurl = "{tmp_path}"\nhistory = true\n')
    with pytest.raises(RecipeError, match="only a Git repository has a history"):
        datakit.run(str(recipe), str(tmp_path / "root"), until="normalize")
    assert not (tmp_path / "ran").exists()
