"""Git repositories as sources: the files of a commit, each verified; nothing that the repository says is run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import datakit
from datakit.download.git import objects, snapshot
from datakit.download.git.address import parse, pinned_repository
from datakit.download.git.client import command, commit_of
from datakit.download.git.objects import Entry, Objects
from datakit.download.git.snapshot import SCHEMA
from datakit.download.listing import pinned, source_base
from datakit.errors import CorruptError, NoInputError, RootError, StorageError
from datakit.storage import urls
from datakit.storage.manifest import read_manifest
from tests.support.git import Fetched, fetched, git
from tests.support.normalize.sources import list_source

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="the program git is not installed")

FILES = {
    "README.md": b"# Title\n",
    "src/main.py": b"print('hello')\n",
    "src/ü 🙂.rs": b"fn main() {}\n",
    "src/latin1.txt": b"caf\xe9\n",
    "mark.txt": b"\xef\xbb\xbfmarked\n",
    "empty.txt": b"",
}
DROPPED = {
    "binary.dat": (b"a\0b", "binary"),
    "large.bin": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n", "large_file_pointer"),
    ".github/ci.yml": (b"on: push\n", "hidden"),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, the first one tagged v1; with links, a submodule, and settings that would run a program."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for path, data in {**FILES, **{path: data for path, (data, _) in DROPPED.items()}}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    os.symlink("/etc/passwd", folder / "link.txt")
    (folder / ".gitattributes").write_text("*.py filter=evil export-ignore\n*.md ident\n")
    git(folder, "add", "-A")
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    git(folder, "commit", "-qm", "one")
    git(folder, "tag", "-a", "v1", "-m", "first")
    (folder / "README.md").write_bytes(b"# Changed\n")
    git(folder, "commit", "-qam", "two")
    for name in ("filter.evil.smudge", "filter.evil.clean", "core.fsmonitor", "core.sshCommand"):
        git(folder, "config", name, f"touch {tmp_path}/ran")
    git(folder, "config", "uploadpack.packObjectsHook", f"touch {tmp_path}/ran")
    for hook in ("post-checkout", "post-merge", "reference-transaction"):
        (folder / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (folder / ".git" / "hooks" / hook).chmod(0o755)
    return folder


def download(tmp_path: Path, url: str, **patterns: Any) -> Fetched:
    """The rows of a repository, why other files are left out, and the counters."""
    (listed,) = list_source(url, (), ())
    return fetched(tmp_path, source_base(url), listed.checksum, SCHEMA, **patterns)


def test_files_of_a_tag_are_read_and_others_listed(tmp_path: Path, repository: Path) -> None:
    rows, left_out, counters = download(tmp_path, f"git+file://{repository}@v1")
    commit = git(repository, "rev-parse", "v1^{}")
    assert {row["id"]: row["text"] for row in rows} == {**FILES, "mark.txt": b"marked\n"}
    assert [row["id"].encode() for row in rows] == sorted(row["id"].encode() for row in rows)
    assert {row["commit"] for row in rows} == {commit}
    assert all(row["size"] == len(FILES[row["id"]]) for row in rows)
    assert {row["id"]: row["language"] for row in rows}["src/main.py"] == "Python"
    assert left_out == {
        **{path: reason for path, (_, reason) in DROPPED.items()},
        ".gitattributes": "hidden", "link.txt": "link", "module": "submodule",
    }  # fmt: skip
    assert counters["download/left_out_hidden"] == 2
    assert counters["download/files_in_commit"] == len(FILES)
    assert not (tmp_path / "ran").exists(), "neither a hook nor a filter nor a setting was run"


def test_patterns_select_files(tmp_path: Path, repository: Path) -> None:
    url = f"git+file://{repository}@v1"
    rows, left_out, _ = download(tmp_path, url, include=["*.py", "*.txt"], exclude=["src/*.txt"])
    assert [row["id"] for row in rows] == ["empty.txt", "mark.txt", "src/main.py"]
    assert left_out == {"link.txt": "link"}


def test_too_large_files_are_not_read(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "LARGEST_FILE", 12)
    rows, left_out, _ = download(tmp_path, f"git+file://{repository}@v1", include=["*.py", "*.md"])
    assert ([row["id"] for row in rows], left_out) == (["README.md"], {"src/main.py": "too_large"})


def test_binary_files_are_told_by_their_head(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "HEAD_BYTES", 1)
    _, left_out, _ = download(tmp_path, f"git+file://{repository}@v1", include=["*.dat"])
    assert left_out == {}


def test_batches_do_not_change_the_file(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, place = f"git+file://{repository}@v1", tmp_path / "step" / "raw" / "repo.parquet"
    download(tmp_path, url)
    expected = place.read_bytes()
    monkeypatch.setattr(snapshot, "BATCH_ROWS", 1)
    monkeypatch.setattr(objects, "READ_BYTES", 7)
    download(tmp_path, url)
    assert place.read_bytes() == expected


def test_revision_is_looked_up(repository: Path) -> None:
    url, (first, second) = f"file://{repository}", git(repository, "log", "--reverse", "--format=%H").split()
    found = {name: commit_of(parse(f"git+{url}@{name}")) for name in ("v1", "main", "refs/heads/main", first)}
    assert found == {"v1": first, "main": second, "refs/heads/main": second, first: first}
    assert commit_of(parse(f"git+{url}")) == second
    git(repository, "branch", "v1")
    for name, words in (("v1", "has a branch and a tag"), ("v9", "has no branch or tag")):
        with pytest.raises(NoInputError, match=words):
            commit_of(parse(f"git+{url}@{name}"))
    with pytest.raises(StorageError, match="cannot be read: fatal: "):
        commit_of(parse(f"git+{url}-none"))


def test_listing_changes_with_the_branch_but_not_with_the_tag(repository: Path) -> None:
    both = [f"git+file://{repository}@{name}" for name in ("v1", "main")]
    before = [list_source(url, (), ()) for url in both]
    git(repository, "commit", "-q", "--allow-empty", "-m", "three")
    after = [list_source(url, (), ()) for url in both]
    assert (before[0], before[1] != after[1]) == (after[0], True)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("git+ssh://host/a", "must have a URL that begins with git"),
        ("git+http://host/a", "must have a URL that begins with git"),
        ("git+ext::sh -c touch% /tmp/x", "must have a URL that begins with git"),
        ("git+https://user:word@host/a", "user name or a password"),
        ("git+https://host/a@--upload-pack=x", "not a branch"),
        ("git+https://host/a@x..y", "not a branch"),
        ("git+https://host/a?private_token=word@v1", "^git.https://host/a: the URL of a Git repository cannot have"),
    ],
)
def test_other_protocols_and_options_are_refused(url: str, words: str) -> None:
    with pytest.raises(RootError, match=words):
        parse(url)


def test_repository_is_nothing_but_a_source(repository: Path) -> None:
    with pytest.raises(RootError, match="can only be a source of a recipe"):
        urls.exists(f"git+file://{repository}/manifest.json")


def test_only_one_protocol_is_allowed(repository: Path) -> None:
    """A server that redirects to another protocol, or a URL that names one, fails in git itself."""
    done = subprocess.run(
        command("https", "ls-remote", f"file://{repository}"), capture_output=True, text=True, check=False
    )
    assert done.returncode and "transport 'file' not allowed" in done.stderr


def test_revision_of_the_source_must_be_a_commit() -> None:
    commit = "1" * 40
    assert pinned("git+https://host/a", commit) == f"git+https://host/a@{commit}"
    for url, revision in (("git+https://host/a", "main"), ("git+https://host/a@v1", commit)):
        with pytest.raises(RootError, match="must be a full commit id"):
            pinned_repository(url, revision)


def test_content_that_differs_from_its_id_is_an_error(repository: Path) -> None:
    identity = git(repository, "rev-parse", "v1:src/main.py")
    place = repository / ".git" / "objects" / identity[:2] / identity[2:]
    other = git(repository, "rev-parse", "v1:empty.txt")
    place.chmod(0o644)
    place.write_bytes((repository / ".git" / "objects" / other[:2] / other[2:]).read_bytes())
    with Objects(repository / ".git") as opened, pytest.raises(CorruptError, match=r"src/main\.py"):
        opened.content(Entry("src/main.py", "100644", identity, len(FILES["src/main.py"])))
    assert hashlib.sha1(b"blob 0\0").hexdigest() == other


def test_run_ends_with_the_documents(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        f'name = "code"\n[[sources]]\nname = "repo"\nurl = "git+file://{repository}@v1"\n'
        "where = \"language = 'Python' or language = 'Rust'\"\n[tokenize]\ntokenizer = \"bytes\"\n"
    )
    result = datakit.run(str(tmp_path / "recipe.toml"), str(tmp_path / "root"), workers=2, until="normalize")
    (step,), (downloaded,) = result.steps_of("normalize"), result.steps_of("download")
    assert read_manifest(downloaded.directory).details == {"commit": git(repository, "rev-parse", "v1^{}")}
    (part,) = Path(step.directory).glob("data/repo/*.parquet")
    found = pq.read_table(part).to_pylist()
    assert {row["source_id"] for row in found} == {path for path in FILES if path.endswith((".py", ".rs"))}
    assert not (tmp_path / "ran").exists()
