"""A run file is a plain Arrow stream, and damage to it is named."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from datakit.engine.exchange.exchange import read_buckets
from datakit.errors import CorruptError, NotFoundError
from tests.support.engine.exchange_runs import Written, some_rows, write_all


def test_run_is_an_arrow_stream_with_one_batch_per_bucket(tmp_path: Path) -> None:
    table, bucket = some_rows(500)
    (run,) = write_all(str(tmp_path), [Written([(table, bucket % 4 * 8)])], 32, 1 << 20)
    with pa.ipc.open_stream(tmp_path / run) as stream:
        batches = list(stream)
    assert len(batches) == 4
    assert pa.Table.from_batches(batches).sort_by("n") == table


def test_damaged_run_is_named(tmp_path: Path) -> None:
    table, bucket = some_rows(300)
    (run,) = write_all(str(tmp_path), [Written([(table, bucket)])], 32, 1 << 20)
    data, index = tmp_path / run, tmp_path / f"{run}.index"
    whole, offsets = data.read_bytes(), index.read_bytes()

    def read() -> int:
        return sum(found.num_rows for found in read_buckets(str(tmp_path), [run], 0, 32, tmp_path))

    assert read() == 300
    data.write_bytes(whole[:-100])
    with pytest.raises(CorruptError, match="cut short"):
        read()
    data.write_bytes(whole[:1_000] + bytes(64) + whole[1_064:])
    index.write_bytes(offsets[:-16])
    with pytest.raises(CorruptError, match=r"index is cut short"):
        read()
    index.write_bytes(b"something else entirely, and long enough for a header")
    with pytest.raises(CorruptError, match="not the index of an exchange file"):
        read()
    index.write_bytes(offsets)
    data.unlink()
    with pytest.raises(NotFoundError, match=r"00000\.arrow does not exist"):
        read()
