"""Tests of `datakit validate`, `datakit cache import` and `datakit cache export`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from datakit.cache.reader import open_cache
from datakit.cache.summary import counted
from datakit.cli.console import WIDTH
from datakit.validate.intact import require_intact
from tests.support.caches import make_cache, trained
from tests.support.commands import run_command, run_json
from tests.support.partitions import words
from tests.support.small_shelf import step
from tests.support.tokens.external_caches import consolidated, documents, read_by_hand

TEXTS = {"novels": [*words(1, 60)], "laws": words(2, 30)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_cache(tmp_path_factory.mktemp("made"), TEXTS, bits=1))


@pytest.mark.parametrize("name", ["validate", "cache show", "cache stats", "cache import", "cache export"])
def test_every_cache_command_has_examples(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run_command(capsys, *name.split(), "--help")
    assert code == 0
    assert out.count(f"  datakit {name} ") >= 2


def test_intact_cache_is_valid(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "validate", cache)
    assert (code, "intact" in out) == (0, True)
    found = run_json(capsys, "validate", cache)
    assert (found["intact"], found["damaged"], found["bytes"]) == (True, [], require_intact(open_cache(cache)))


def test_all_damage_is_listed_with_remedies(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    data, listed = copy / "data/laws/shard-00000/c/0", copy / "data/novels/shard-00001.docs.parquet"
    data.write_bytes(b"\xff" + data.read_bytes()[1:])
    listed.unlink()
    code, out, err = run_command(capsys, "validate", str(copy))
    assert code == 2
    assert "2 differences in" in err
    lines = out.splitlines()
    paths = [line for line in lines if not line.startswith("    ")]
    assert paths == [str(path.relative_to(copy)) for path in (listed, data)]
    assert " ".join(err.split()).count("if this is a copy, copy the cache again") == 1
    assert max(len(line) for line in [*lines, *err.splitlines()] if str(copy) not in line) <= WIDTH
    code, out, _ = run_command(capsys, "validate", str(copy), "--json")
    found = json.loads(out)
    assert (code, found["intact"]) == (2, False)
    assert {Path(entry["url"]) for entry in found["damaged"]} == {data, listed}
    (copy / "manifest.json").unlink()
    code, out, err = run_command(capsys, "validate", str(copy))
    assert (code, "no finished step" in err) == (2, True)
    code, out, _ = run_command(capsys, "validate", str(copy), "--json")
    assert (code, "no finished step" in json.loads(out)["refused"]) == (2, True)


def test_several_directories_are_all_checked(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    (copy / "data/laws/shard-00000.lengths").unlink()
    code, out, err = run_command(capsys, "validate", str(copy), str(tmp_path), cache)
    assert code == 2
    assert "1 difference in" in err and f"{tmp_path} holds no finished step" in err
    assert out.splitlines()[-1].partition(": ")[0] == cache or f"{cache}:" in out
    code, out, _ = run_command(capsys, "validate", cache, str(copy), "--json")
    found = json.loads(out)
    assert (code, found["intact"], [one["intact"] for one in found["steps"]]) == (2, False, [True, False])
    assert run_command(capsys, "validate", cache, cache)[0] == 0
    assert run_command(capsys, "validate")[0] == 2


def test_dataset_stands_for_its_current_cache(finished_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf = finished_copy / "root" / "shelf"
    assert run_json(capsys, "validate", str(shelf))["directory"] == str(step(shelf, "tokenize-*"))
    shutil.copytree(step(shelf, "tokenize-*"), shelf / "tokenize-000000000000")
    assert run_json(capsys, "validate", str(shelf))["directory"] != str(shelf / "tokenize-000000000000")
    (shelf / "latest.json").unlink()
    code, _, err = run_command(capsys, "validate", str(shelf))
    assert (code, "name one of them" in err) == (2, True)


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
