"""Tests of `datakit cache import` and `datakit cache export`, and of caches that were copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.cache.reader import open_cache
from datakit.cache.summary import counted
from tests.support.caches import make_cache, trained
from tests.support.commands import run_command, run_json
from tests.support.partitions import words
from tests.support.small_shelf import step
from tests.support.tokens.external_caches import consolidated, documents, read_by_hand

TEXTS = {"novels": [*words(1, 60)], "laws": words(2, 30)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_cache(tmp_path_factory.mktemp("made"), TEXTS, bits=1))


@pytest.mark.parametrize("name", ["cache show", "cache stats", "cache import", "cache export"])
def test_every_cache_command_has_examples(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run_command(capsys, *name.split(), "--help")
    assert code == 0
    assert out.count(f"  datakit {name} ") >= 2


def test_copied_cache_is_used_without_its_root(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = str(shutil.copytree(step(finished, "root/shelf/tokenize-*"), tmp_path / "shelf-cache"))
    assert run_command(capsys, "validate", copy)[0] == 0
    assert open_cache(copy).document(0).tokens.size
    code, _, err = run_command(capsys, "why", copy, "--id", open_cache(copy).document(0).id)
    assert (code, "if you gave a copy of a single step, give the original step instead" in err) == (2, True)


def test_exported_cache_is_imported_back(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix, tokenizer = str(tmp_path / "out"), f"{cache}/tokenizer.json"
    written = run_json(capsys, "cache", "export", cache, prefix)
    assert written["sequences"] == len(read_by_hand(tmp_path / "out")[0])
    code, _, err = run_command(capsys, "cache", "import", prefix, str(tmp_path / "in"), "--tokenizer", tokenizer)
    assert (code, "add --copy" in err) == (2, True)
    found = run_json(
        capsys, "cache", "import", prefix, str(tmp_path / "in"), "--tokenizer", tokenizer, "--copy", "--add", "eos"
    )
    assert found["tokens"] == written["tokens"] == open_cache(cache).tokens
    assert (open_cache(str(tmp_path / "in")).read(0, 999) == open_cache(cache).read(0, 999)).all()
    assert run_command(capsys, "validate", str(tmp_path / "in"))[0] == 0


@pytest.mark.parametrize(("format", "last"), [("levanter", "shard_ledger.json"), ("mds", "index.json")])
def test_other_formats_are_directories(
    cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str, last: str
) -> None:
    out = tmp_path / "out"
    code, shown, err = run_command(capsys, "cache", "export", cache, str(out), "--format", format, "--source", "laws")
    assert (code, shown) == (0, f"{out}\n")
    assert (out / last).exists()
    assert "30 sequences, " in err and "read it with " in err
    again = run_json(capsys, "cache", "export", cache, str(out), "--format", format, "--source", "laws")
    assert (again["sequences"], again["files"]) == (30, [str(out)])


def test_option_without_effect_is_refused(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    code, _, err = run_command(capsys, "cache", "export", cache, out, "--format", "mds", "--drop-loss-mask")
    assert (code, "--drop-loss-mask has no effect on the format mds" in err) == (2, True)


def test_imported_cache_is_shown_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_bytes(trained())
    consolidated(tmp_path / "old", documents(1, 30))
    new, tokenizer = str(tmp_path / "new"), str(tmp_path / "tokenizer.json")
    code, out, err = run_command(capsys, "cache", "import", str(tmp_path / "old"), new, "--tokenizer", tokenizer)
    assert (code, out) == (0, f"{new}\n")
    assert "30 documents" in err
    assert "left in place" in err
    assert run_command(capsys, "cache", "show", new, "--document", "3")[0] == 0
    found = run_json(capsys, "cache", "stats", new)  # its manifest has no token counts: every token is read
    assert found["frequent"][0]["id"] == counted(open_cache(new), 1)[0][0]
    code, _, err = run_command(capsys, "cache", "import", str(tmp_path / "nothing"), new, "--tokenizer", tokenizer)
    assert (code, "shard_ledger.json nor" in err) == (2, True)
