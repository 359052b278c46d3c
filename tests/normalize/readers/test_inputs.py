"""A local file that changed after it was listed is refused, and nothing made from it is committed."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.download.listing import listing_digest
from datakit.engine.exchange import exchange
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Phase, Step
from datakit.errors import ChangedInputError
from datakit.normalize import route
from datakit.normalize.readers import inputs
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.stage import plan as normalize_plan
from datakit.pipeline import running
from datakit.recipe import Recipe, load_recipe
from datakit.storage.manifest import Manifest
from tests.support.normalize.sources import list_source, normalize, normalize_step, run_plan_inline

RECORDS = 100
CHANGED = r"a\.\w+(\.gz)? (has changed since it was listed|was listed but (no longer exists|is no longer a regular))"


def documents(count: int = RECORDS, word: str = "doc") -> bytes:
    return b"".join(json.dumps({"text": f"{word} number {n} of some"}).encode() + b"\n" for n in range(count))


def truncated(file: Path) -> None:
    file.write_bytes(documents(40))


def appended(file: Path) -> None:
    with file.open("ab") as end:
        end.write(documents(1, "new"))


def rewritten(file: Path) -> None:
    """Replace it with another file of the same size."""
    (other := file.with_name(".other")).write_bytes(documents(word="cat"))
    other.rename(file)


def removed(file: Path) -> None:
    file.unlink()


def write_source(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in/a.jsonl").write_bytes(documents())


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A recipe with one source, whose only file is `in/a.jsonl`."""
    write_source(tmp_path)
    source = f'[[sources]]\nname = "s"\nurl = "{tmp_path}/in"\n'
    (tmp_path / "r.toml").write_text(f'name = "r"\n[normalize]\nmax_quarantined = 1000\n{source}')
    return load_recipe(str(tmp_path / "r.toml"))


def normalized(recipe: Recipe, root: Path, observer: Observer | None = None) -> Manifest:
    return running.run(recipe, str(root), workers=1, until="normalize", observer=observer).steps[-1].manifest


class Meddler(Observer):
    """Changes a file when normalize starts to read."""

    def __init__(self, file: Path, change: Callable[[Path], None]) -> None:
        self._file, self._change = file, change

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        if phase.name == route.PHASE:
            self._change(self._file)


def test_run_refuses_a_changed_file_and_recovers(recipe: Recipe, tmp_path: Path) -> None:
    file, root = tmp_path / "in/a.jsonl", tmp_path / "root"
    with pytest.raises(ChangedInputError, match=CHANGED) as caught:
        normalized(recipe, root, Meddler(file, rewritten))
    assert caught.value.exit_code == 2
    assert not list(root.rglob("normalize-*/manifest.json")), "nothing claims the listed content"
    file.write_bytes(documents())
    restored = normalized(recipe, root, Meddler(file, os.utime))
    assert restored.totals.rows == RECORDS, "a touched file is unchanged"
    os.utime(file, (1, 1))
    assert normalized(recipe, root).identity == restored.identity
    assert len(list(root.rglob("normalize-*/manifest.json"))) == 1


@pytest.mark.parametrize("change", [truncated, appended, rewritten, removed])
def test_file_changed_since_listing_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """A change must not be mistaken for damage, although records may be quarantined."""
    write_source(tmp_path)
    file = tmp_path / "in/a.jsonl"
    step = normalize_step(tmp_path / "root", str(tmp_path / "in"), max_quarantined=1000)
    change(file)
    with pytest.raises(ChangedInputError, match=CHANGED):
        run_plan_inline(normalize_plan(step), step.directory)
    assert not list((tmp_path / "root").rglob("*.arrow")), "nothing was committed"
    if file.exists():
        rows = {"truncated": 40, "appended": 101}.get(change.__name__, 100)
        assert normalize(tmp_path / "again", tmp_path / "in").manifest.totals.rows == rows, "it is listed again"


def test_restored_file_gives_the_same_partitions(tmp_path: Path) -> None:
    write_source(tmp_path)
    file = tmp_path / "in/a.jsonl"
    before = normalize(tmp_path / "before", tmp_path / "in")
    rewritten(file)
    changed = normalize(tmp_path / "changed", tmp_path / "in")
    file.write_bytes(documents())
    restored = normalize(tmp_path / "restored", tmp_path / "in")
    assert restored.manifest.partitions == before.manifest.partitions != changed.manifest.partitions


def test_touched_file_is_unchanged(tmp_path: Path) -> None:
    """The copy of another node may also differ in its time."""
    write_source(tmp_path)
    file = tmp_path / "in/a.jsonl"
    step = normalize_step(tmp_path / "root", str(tmp_path / "in"))
    listed = list_source(str(tmp_path / "in"), [], [])
    os.utime(file, (1, 1))
    output, _ = run_plan_inline(normalize_plan(step), step.directory)
    assert sum(part.rows for part in output.partitions) == RECORDS
    assert listing_digest(list_source(str(tmp_path / "in"), [], [])) == listing_digest(listed)


def test_huge_touched_file_is_not_hashed_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(documents())
    (listed,) = list_source(str(tmp_path), [], [])
    files = Inputs(str(tmp_path), {listed.path: (listed.size, 1, listed.checksum)})
    with files.open("a.jsonl") as file:
        assert file.tell() == 0
    refused = pytest.raises(ChangedInputError, match="new modification time, same size")
    with patch.object(inputs, "READ_AGAIN_BYTES", 1000), refused, files.open("a.jsonl"):
        pass


def write_table(path: Path, word: str = "doc") -> None:
    table = pa.table({"text": [f"{word} number {n} of some" for n in range(RECORDS)]})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=10)
        return
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


def write(path: Path) -> None:
    if path.suffix in (".parquet", ".arrow"):
        write_table(path)
    elif path.suffix == ".csv":
        path.write_text("text\n" + "".join(f"doc number {n} of some\n" for n in range(RECORDS)))
    else:
        path.write_bytes(gzip.compress(documents()) if path.suffix == ".gz" else documents())


def overwritten(path: Path) -> None:
    """Change half of the content in place, keeping the size."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(len(data) // 2)
        file.write(data[len(data) // 2 :].replace(b"doc", b"cat"))


def normalize_inline(tmp_path: Path) -> int:
    step = normalize_step(tmp_path / "root", str(tmp_path / "in"))
    output, _ = run_plan_inline(normalize_plan(step), step.directory)
    return sum(part.rows for part in output.partitions)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet", "a.arrow"])
def test_file_changed_during_reading_commits_nothing(tmp_path: Path, name: str) -> None:
    """Runs are small, so that some would be committed before the end of the file."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / name
    write(file)
    content, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    real = route.Router.route

    def meddled(*arguments: object) -> None:
        overwritten(file)
        real(*arguments)  # pyright: ignore[reportArgumentType]

    with patch.object(route, "BUDGET_BYTES", 1000):
        with patch.object(route.Router, "route", meddled), pytest.raises(ChangedInputError, match=CHANGED):
            normalize_inline(tmp_path)
        assert not list(tmp_path.rglob("exchange/**/*.arrow")), "no run of it was committed"
        file.write_bytes(content)
        os.utime(file, ns=times)
        assert normalize_inline(tmp_path) == RECORDS


@pytest.mark.parametrize(("name", "refused"), [("a.jsonl", False), ("a.parquet", False), ("a.arrow", True)])
def test_change_after_reading_matters_only_if_mapped(tmp_path: Path, name: str, refused: bool) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / name)
    real = exchange.write_run

    def meddled(*arguments: object) -> object:
        overwritten(tmp_path / "in" / name)
        return real(*arguments)  # pyright: ignore[reportArgumentType]

    with patch.object(exchange, "write_run", meddled):
        if not refused:
            assert normalize_inline(tmp_path) == RECORDS
            return
        with pytest.raises(ChangedInputError, match=CHANGED):
            normalize_inline(tmp_path)
    assert not list(tmp_path.rglob("exchange/**/*.arrow"))


@pytest.mark.parametrize("replace", [os.mkfifo, os.mkdir])
def test_file_replaced_by_a_pipe_or_a_folder_is_refused(tmp_path: Path, replace: Callable[[Path], None]) -> None:
    """Opening the pipe does not wait for a writer."""
    write_source(tmp_path)
    (listed,) = list_source(f"{tmp_path}/in", [], [])
    (tmp_path / "in/a.jsonl").unlink()
    replace(tmp_path / "in/a.jsonl")
    files = Inputs(str(tmp_path / "in"), {listed.path: (listed.size, listed.mtime_ns, listed.checksum)})
    with pytest.raises(ChangedInputError, match=CHANGED), files.open(listed.path):
        pass
