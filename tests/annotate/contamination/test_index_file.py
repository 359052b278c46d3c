"""An index in a file gives the same hits as one in memory, is written once, and is refused if it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from datakit.annotate.contamination.config import Config, EvaluationFiles
from datakit.annotate.contamination.index_file import load_index, write_index
from datakit.errors import CorruptError

TEXT = "one two three four five six seven, and one more short passage here: alpha beta gamma"
ITEMS = ["two three four five", "alpha beta gamma", "nothing of this occurs anywhere"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps({"question": item}) + "\n" for item in ITEMS))
    return Config({"one": EvaluationFiles(str(path))}, 4, 3, 0, index_folder=str(tmp_path / "index"))


def rows(config: Config) -> list[dict[str, object]]:
    return config.annotator().annotate(pa.record_batch({"text": pa.array([TEXT, ""], pa.large_string())})).to_pylist()


def only_file(config: Config) -> Path:
    (path,) = Path(config.index_folder).iterdir()
    return path


def test_a_mapped_index_gives_the_same_hits(config: Config) -> None:
    assert rows(config) == rows(config) == rows(replace(config, index_folder=""))
    assert rows(config)[0]["items"] == 2


def test_the_folder_does_not_change_the_parameters(config: Config) -> None:
    assert config.annotator().parameters == replace(config, index_folder="").annotator().parameters


def test_an_index_is_written_once_and_always_with_the_same_bytes(config: Config) -> None:
    index = config.annotator().index
    before = only_file(config).stat()
    config.annotator()
    write_index(index, only_file(config))
    assert (only_file(config).stat().st_ino, only_file(config).stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


def test_changed_items_get_another_index(config: Config) -> None:
    rows(config)
    Path(config.sets["one"].path).write_text(json.dumps({"question": "one two three four"}) + "\n")
    assert rows(config)[0]["items"] == 1
    assert len([*Path(config.index_folder).iterdir()]) == 2


def test_mapped_arrays_cannot_be_written(config: Config) -> None:
    config.annotator()
    with pytest.raises(ValueError, match="read-only"):
        load_index(only_file(config)).arrays.ngrams.keys[0] = 1


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_a_damaged_index_is_refused(config: Config, place: float) -> None:
    """Every byte of an array counts; a byte in the padding between arrays does not."""
    config.annotator()
    path = only_file(config)
    data = path.read_bytes()
    index = config.annotator().index.arrays
    inside = data.index(index.ngrams.directory.tobytes())
    position = {0.0: inside, 1.0: len(data) - 1}.get(place, inside + int(place * index.ngrams.directory.nbytes))
    path.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
    with pytest.raises(CorruptError, match="remove it"):
        load_index(path)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_index_is_refused(config: Config, share: float) -> None:
    config.annotator()
    path = only_file(config)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(CorruptError, match="is damaged"):
        load_index(path)
