"""Bad input gives one clear error (what, where, what to do) and no partial output."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import invoke
from tests.support.paths import REPOSITORY
from tests.support.stdlib_shelf import texts

IGNORED = ("--ignore-disk-space",)
SECRET = "the quick brown fox of a secret document"


def write_recipe(folder: Path, source: str, more: str = "") -> Path:
    """Write a recipe of one source, `pile`, with the given lines."""
    path = folder / "recipe.toml"
    path.write_text(f'name = "pile"\n\n[[sources]]\nname = "pile"\n{source}\n\n[dedup]\n{more}\n')
    return path


def write_lines(path: Path, records: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def run(
    recipe: Path, root: Path, *prefix: str, more: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `datakit run`: in this process, or below a prefix command in a process of its own."""
    if not prefix:
        return invoke("run", recipe, "--root", root, "--workers", "2", cwd=REPOSITORY, **environment)
    options = ["--root", str(root), "--workers", "2", *more]
    command = [*prefix, sys.executable, "-m", "datakit", "run", str(recipe), *options]
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment
    return subprocess.run(
        command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=300, check=False
    )


def error_of(result: subprocess.CompletedProcess[str]) -> str:
    """Return the only error on stderr; there is no traceback and no document text."""
    assert "Traceback" not in result.stderr, result.stderr
    assert SECRET not in result.stderr + result.stdout
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    return result.stderr[result.stderr.index("error: ") :]


def assert_nothing_half_written(root: Path, stage: str) -> None:
    """The failed stage has no manifest, and every file with a final name is complete."""
    assert not list(root.glob(f"**/{stage}-*/manifest.json"))
    for path in root.rglob("*.parquet"):
        import pyarrow.parquet as pq

        if not path.name.startswith("."):
            pq.ParquetFile(path)  # raises if it is incomplete


def test_pattern_without_matches_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.parquet").touch()
    result = run(write_recipe(tmp_path, 'url = "texts"\ninclude = ["*.jsonl"]'), tmp_path / "root")
    assert result.returncode == 2
    assert "*.jsonl" in error_of(result) and "parquet" in error_of(result)  # the pattern, and what exists


def test_blank_records_yield_no_document(tmp_path: Path) -> None:
    write_lines(tmp_path / "blank.jsonl", [{"text": " \n"}, {"text": ""}])
    result = run(write_recipe(tmp_path, 'url = "blank.jsonl"'), tmp_path / "root")
    assert result.returncode == 2
    assert "blank" in error_of(result) and "pile" in error_of(result)
    assert_nothing_half_written(tmp_path / "root", "normalize")


def test_missing_text_column_names_the_columns(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"body": SECRET}])
    result = run(write_recipe(tmp_path, 'url = "a.jsonl"'), tmp_path / "root")
    assert result.returncode == 2
    assert "a.jsonl" in error_of(result) and "'text'" in error_of(result) and "body" in error_of(result)
    assert_nothing_half_written(tmp_path / "root", "normalize")


def test_refused_inputs_of_all_sources_are_reported_at_once(tmp_path: Path) -> None:
    """A run finds all of them, up to the stage that refuses them, and `datakit status` shows them again."""
    sources = []
    for name in ("pile", "heap", "good"):
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "a.jsonl", [{"text": SECRET}])
        sources.append(f'[[sources]]\nname = "{name}"\nurl = "{name}"\n')
        for number in range(12 if name != "good" else 0):
            (tmp_path / name / f"{number:02}.jsonl").write_bytes(b"PK\x03\x04" if number % 2 else b'{"body": 1}\n')
    (tmp_path / "recipe.toml").write_text('name = "pile"\n' + "".join(sources) + "[dedup]\n")
    result = run(tmp_path / "recipe.toml", tmp_path / "root")
    message = error_of(result)
    assert (result.returncode, message.splitlines()[0]) == (2, "error: 24 inputs cannot be used:")
    assert (message.count("has no column 'text'"), message.count("is a zip archive")) == (10, 10)
    assert "\n  pile: 00.jsonl has no column" in message and "\n  heap: 00.jsonl has no column" in message
    assert "\n  and 4 more; all are listed in " in message and message.count("/partial.json") == 2
    assert [path.parent.parent.name for path in (tmp_path / "root").rglob("normalize-*/manifest.json")] == ["good"]
    shown = invoke("status", tmp_path / "root", cwd=REPOSITORY).stdout
    assert shown.count("last failure: refused: 00.jsonl has no column 'text'") == 2


def test_files_of_unknown_formats_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(97):
        (tmp_path / "texts" / f"{number:02}.{'xyz' if number % 2 else 'zip'}").write_text("x")
    recipe = write_recipe(tmp_path, 'url = "texts"')
    result = run(recipe, tmp_path / "root")
    assert "error: 97 inputs cannot be used:\n  00.zip is a zip archive" in error_of(result)
    (listed,) = (tmp_path / "root").rglob("partial.json")
    assert error_of(result).rstrip().endswith(f"and 77 more; all are listed in {listed}")
    assert len(json.loads(listed.read_text())["failed"]) == 97
    planned = invoke("plan", recipe, "--root", tmp_path / "other", cwd=REPOSITORY)
    assert "97 inputs cannot be used" in planned.stderr and planned.stderr.rstrip().endswith("and 77 more")
    assert "97 inputs cannot be used" in invoke("status", tmp_path / "root", cwd=REPOSITORY).stdout


@pytest.mark.parametrize("line", ["[dedup]\nthreshhold = 0.9", "[dedupe]"])
def test_unknown_key_is_an_error(tmp_path: Path, line: str) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": SECRET}])
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'name = "pile"\n[[sources]]\nname = "pile"\nurl = "a.jsonl"\n{line}\n')
    result = run(recipe, tmp_path / "root")
    assert result.returncode == 2
    assert "did you mean" in error_of(result) and "recipe.toml" in error_of(result)
    assert not (tmp_path / "root").exists()


def test_file_with_wrong_extension_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_text(SECRET)
    result = run(write_recipe(tmp_path, 'url = "a.jsonl.gz"'), tmp_path / "root")
    assert result.returncode == 2
    assert "a.jsonl.gz" in error_of(result) and "gzip" in error_of(result)
    assert_nothing_half_written(tmp_path / "root", "normalize")


def test_truncated_file_makes_the_run_partial(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": f"{SECRET} {index} {os.urandom(40).hex()}"}) + "\n" for index in range(5000))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-5000])
    recipe = write_recipe(tmp_path, 'url = "a.jsonl.gz"')
    result = run(recipe, tmp_path / "root")
    assert result.returncode == 3  # partial: other files are kept
    assert "a.jsonl.gz" in error_of(result) and "max_quarantined" in error_of(result)
    assert_nothing_half_written(tmp_path / "root", "normalize")


# Drops the capabilities that let root read everything (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH), then execs a command.
UNPRIVILEGED = """
import ctypes, os, sys
if os.getuid() == 0:
    for capability in (1, 2):
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": SECRET}])
    (tmp_path / "a.jsonl").chmod(0)
    recipe = write_recipe(tmp_path, 'url = "a.jsonl"')
    result = run(recipe, tmp_path / "root", sys.executable, "-c", UNPRIVILEGED)
    assert result.returncode in (1, 2)
    assert "a.jsonl" in error_of(result) and "Permission denied" in error_of(result)


def _unshare() -> list[str]:
    return ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


def _mounted(root: Path, options: str) -> list[str]:
    """Prefix that runs a command with a separate disk at `root`; exits with 77 where that is not allowed."""
    mount = f'mount -t tmpfs -o {options} tmpfs "$1" || exit 77; shift; exec "$@"'
    return [*_unshare(), "sh", "-c", mount, "sh", str(root)]


def test_run_that_needs_a_larger_disk_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    write_lines(tmp_path / "a.jsonl", [{"text": os.urandom(2000).hex()} for _ in range(2000)])
    result = run(write_recipe(tmp_path, 'url = "a.jsonl"'), tmp_path / "root", *_mounted(tmp_path / "root", "size=3m"))
    if result.returncode == 77:
        pytest.skip("no disk can be mounted here")
    assert result.returncode == 1
    assert "--ignore-disk-space" in error_of(result) and "--root" in error_of(result)
    assert not list((tmp_path / "root").glob("sources/*"))


def test_full_disk_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    records: list[dict[str, object]] = [{"text": os.urandom(2000).hex()} for _ in range(2000)]
    write_lines(tmp_path / "a.jsonl", records)
    recipe = write_recipe(tmp_path, 'url = "a.jsonl"')
    result = run(recipe, tmp_path / "root", *_mounted(tmp_path / "root", "size=3m"), more=IGNORED)
    if result.returncode == 77:
        pytest.skip("no disk can be mounted here")
    assert result.returncode == 1
    assert "no space left" in error_of(result) and str(tmp_path / "root") in error_of(result)
    assert "--root" in error_of(result)


def test_read_only_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    write_lines(tmp_path / "a.jsonl", [{"text": f"{SECRET} {index}"} for index in range(10)])
    recipe = write_recipe(tmp_path, 'url = "a.jsonl"')
    result = run(recipe, tmp_path / "root", *_mounted(tmp_path / "root", "ro"))
    if result.returncode == 77:
        pytest.skip("no disk can be mounted here")
    assert result.returncode == 2
    assert "no permission to write" in error_of(result) and "--root" in error_of(result)


def test_run_resumes_after_a_full_disk(tmp_path: Path) -> None:
    """With space, the next run writes the bytes of an undisturbed one."""
    write_lines(tmp_path / "a.jsonl", [{"id": name, "text": text} for name, text in texts("*.py", 40)])
    recipe = write_recipe(tmp_path, 'url = "a.jsonl"')
    (tmp_path / "small").mkdir()
    keep = f'cp -r "{tmp_path}/small/." "{tmp_path}/rescued/"'
    script = f'mount -t tmpfs -o size=600k tmpfs "{tmp_path}/small" || exit 77; "$@"; code=$?; {keep}; exit $code'
    (tmp_path / "rescued").mkdir()
    result = run(recipe, tmp_path / "small", *_unshare(), "sh", "-c", script, "sh", more=IGNORED)
    if result.returncode == 77:
        pytest.skip("no disk can be mounted here")
    assert result.returncode == 1 and "no space left" in error_of(result)
    assert run(recipe, tmp_path / "rescued").returncode == 0
    assert run(recipe, tmp_path / "calm").returncode == 0
    compare = ["diff", "-r", "-x", "ledger", "-x", "runs", "-x", ".cache", "calm", "rescued"]
    assert subprocess.run(compare, cwd=tmp_path, check=False, stdout=sys.stderr).returncode == 0
    shutil.rmtree(tmp_path / "calm")
