"""Tests that a shard made from ranges of its documents has the bytes of one that was encoded as a whole."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

import datakit
from datakit.cache.reader import open_cache
from datakit.cache.writer import Documents
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.task import EXCHANGE_FOLDER, Phase, TaskResult
from datakit.errors import CorruptError
from datakit.storage.manifest import Manifest
from datakit.tokenize import document_ranges, stage
from datakit.tokenize.document_ranges import EncodedRange, Part, read_ranges, write_range
from datakit.tokenize.text_batches import text_batches
from datakit.validate.intact import require_intact
from tests.support.caches import clean, run, tokenize_step, trained
from tests.support.engine.inline import run_task_inline
from tests.support.partitions import contents, documents, identity, normalized, selection, words
from tests.support.small_shelf import write_lines

TEXTS = {"web": [*words(1, 120), "long " * 900], "laws": words(2, 40), "tiny": ["a"]}
VERIFIED = ("tokenize/verified_documents", "tokenize/verified_bytes")


@given(rows=st.lists(st.integers(0, 50), max_size=30), count=st.integers(1, 12))
@example(rows=[1, 0], count=1)
def test_each_row_group_belongs_to_one_range(rows: list[int], count: int) -> None:
    found = [Part(number, count).row_groups(rows) for number in range(count)]
    assert [group for groups in found for group in groups] == list(range(len(rows)))


@settings(max_examples=20, deadline=None)
@given(data=st.data(), count=st.integers(1, 9), group=st.integers(1, 30))
def test_ranges_cover_the_documents_that_stay(data: st.DataObject, count: int, group: int) -> None:
    """Each document that stays is in one range, in order, with its row in the file, whatever rows leave."""
    texts = words(1, 60)
    names = documents("web", texts)["id"].to_pylist()
    leaving = data.draw(st.sets(st.sampled_from(names)))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", group)
        inputs = clean(Path(folder), {"web": texts}, leaving={"web": {name: ["exact"] for name in leaving}})
        (source, select), path = inputs, inputs[0].manifest.partitions[0].path
        places = f"{source.directory}/{path}", (), f"{select.directory}/{path}"
        found = [batch for number in range(count) for batch in text_batches(*places, Part(number, count))]
    expected = [(name, row) for row, name in enumerate(names) if name not in leaving]
    assert [name for batch in found for name in batch.ids.to_pylist()] == [name for name, _ in expected]
    assert [row for batch in found for row in batch.rows.tolist()] == [row for _, row in expected]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), kind=st.sampled_from([np.uint16, np.uint32]), masked=st.booleans())
def test_file_of_a_range_holds_its_documents(data: st.DataObject, kind: type, masked: bool) -> None:
    batches = []
    for lengths in data.draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=4)):
        tokens = np.arange(sum(lengths)).astype(kind)
        mask = (tokens % 2).astype(np.uint8) if masked else None
        ids = pa.array([f"{len(batches):032x}"] * len(lengths))
        batches.append(Documents(ids, tokens, np.array(lengths, np.int64), mask))
    with tempfile.TemporaryDirectory() as folder:
        _, *counts = write_range(f"{folder}/a.arrow", batches, np.dtype(kind))
        found = list(read_ranges(folder, [EncodedRange("a.arrow", counts[0], counts[1], 0, 0)] * 2))
    assert len(found) == 2 * len(batches)
    for one, other in zip(found, batches * 2, strict=True):
        assert one.ids.to_pylist() == other.ids.to_pylist()
        assert (one.tokens.dtype, one.tokens.tolist()) == (other.tokens.dtype, other.tokens.tolist())
        assert one.lengths.tolist() == other.lengths.tolist()
        assert (None if one.mask is None else one.mask.tolist()) == (
            None if other.mask is None else other.mask.tolist()
        )


def test_damaged_file_of_a_range_is_noticed(tmp_path: Path) -> None:
    ids, tokens = pa.array(["0" * 32]), np.arange(4000, dtype=np.uint16)
    committed, *_ = write_range(
        str(tmp_path / "a.arrow"), [Documents(ids, tokens, np.array([4000]))], np.dtype(np.uint16)
    )
    assert len(list(read_ranges(str(tmp_path), [EncodedRange("a.arrow", 1, 4000, 0, 0)]))) == 1
    with pytest.raises(CorruptError, match=r"1 documents and 4000 tokens, but its task wrote 2 documents"):
        list(read_ranges(str(tmp_path), [EncodedRange("a.arrow", 2, 4000, 0, 0)]))
    (tmp_path / "b.arrow").write_bytes((tmp_path / "a.arrow").read_bytes()[: committed.bytes // 2])
    with pytest.raises(CorruptError, match=r"b\.arrow is damaged"):
        list(read_ranges(str(tmp_path), [EncodedRange("b.arrow", 1, 4000, 0, 0)]))


def divide(patch: pytest.MonkeyPatch, size: int) -> None:
    """Divide every partition with more than `size` bytes of text."""
    patch.setattr(document_ranges, "WHOLE_BYTES", size)
    patch.setattr(document_ranges, "RANGE_BYTES", size)


def files_of(directory: Path) -> dict[str, bytes]:
    """All files of a cache, without its manifest and exchange files."""
    return {
        name: data
        for name, data in contents(directory).items()
        if name != "manifest.json" and not name.startswith(f"{EXCHANGE_FOLDER}/")
    }


def same(one: Manifest, other: Manifest) -> bool:
    """Return True if two manifests differ at most in how much was verified."""
    counters = [
        {name: found.counters[name] for name in found.counters if name not in VERIFIED} for found in (one, other)
    ]
    return counters[0] == counters[1] and all(
        getattr(one, name) == getattr(other, name)
        for name in ("partitions", "totals", "details", "inputs", "parameters", "schema", "fingerprint", "quarantine")
    )


@pytest.mark.parametrize("size", [300, 1500, 6000])
def test_ranges_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Whole partitions and ranges of several sizes give the same files and the same manifest, but for the counts of
    verified documents; so do rows that leave.
    """
    monkeypatch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", 4)
    marks = {"web": {identity(text): ["exact"] for text in TEXTS["web"][3:70:2]}}
    source, tokenizer = clean(tmp_path, TEXTS, 1, marks), tmp_path / "tokenizer.json"
    tokenizer.write_bytes(trained())
    one = run(tokenize_step(tmp_path / "whole", source, tokenizer))
    divide(monkeypatch, size)
    other = run(tokenize_step(tmp_path / "ranges", source, tokenizer))
    assert files_of(tmp_path / "ranges") == files_of(tmp_path / "whole")
    assert same(one, other)
    assert not (tmp_path / "ranges" / EXCHANGE_FOLDER).exists(), "the files of ranges are temporary"
    assert require_intact(open_cache(str(tmp_path / "ranges"))) > 0


def test_large_partition_has_a_task_for_each_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks depend on the size of the text alone, and small partitions are encoded as before."""
    source, tokenizer = clean(tmp_path, TEXTS, 1), tmp_path / "tokenizer.json"
    tokenizer.write_bytes(trained())
    made = tokenize_step(tmp_path / "cache", source, tokenizer)
    assert [task.key for task in encode_phase(made).tasks] == ["data/web/shard-00000 and 4 more"]
    divide(monkeypatch, 3000)
    keys = [task.key for task in encode_phase(made).tasks]
    assert keys[0].startswith("data/laws/shard-0000") and "of" not in keys[0].split()
    assert {key.partition(" ")[0] for key in keys[1:]} == {"data/web/shard-00000", "data/web/shard-00001"}
    assert len(keys) > 4


def encode_phase(made: Any) -> Phase:
    """The phase that encodes, as planned."""
    plan = stage.plan(made)
    next(plan)
    return plan.send([TaskResult(details={"encoder_version": ""})])


def test_documents_left_out_of_a_range_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard is that of the other documents, and its description states how many were left out."""
    monkeypatch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", 4)
    texts = words(1, 40)
    source, tokenizer = clean(tmp_path, {"web": texts}), tmp_path / "tokenizer.json"
    tokenizer.write_bytes(trained())
    divide(monkeypatch, 1500)
    made = tokenize_step(tmp_path / "cache", source, tokenizer)
    name = source[0].manifest.partitions[0].path
    bad = documents("web", texts)["id"].to_pylist()[17]
    plan = stage.plan(replace(made, operations={"max_quarantined": 1}))
    phase, results = next(plan), list[TaskResult]()
    try:
        while True:
            results = [run_task_inline(task, phase, made.directory, {(name, 17): "crash"}) for task in phase.tasks]
            phase = plan.send(results)
    except StopIteration as stop:
        (shard,) = results[-1].details["shards"]
        assert (shard["rows"], shard["quarantined"], stop.value.partitions[0].rows) == (39, 1, 39)
    left = [text for text in texts if identity(text) != bad]
    rest = tokenize_step(tmp_path / "rest", clean(tmp_path / "others", {"web": left}), tokenizer)
    run(rest)
    assert files_of(tmp_path / "cache") == files_of(tmp_path / "rest")


def test_conversations_and_tokens_are_divided_like_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss masks are joined like tokens."""
    monkeypatch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", 4)
    texts = words(3, 30)
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": text[:20]}] for text in texts]
    lists, masks = [list(range(len(text))) for text in texts], [[row % 2] * len(text) for row, text in enumerate(texts)]
    inputs = [
        normalized(tmp_path, "chats", texts, columns={"messages": chats}),
        normalized(tmp_path, "lists", texts, columns={"tokens": lists, "mask": masks}),
    ]
    settings = {"formats": {"chats": "chat", "lists": "tokens"}, "chat_format": "chatml", "loss_mask": "mask"}
    source, tokenizer = [*inputs, selection(tmp_path / "selection", inputs)], tmp_path / "tokenizer.json"
    made = tokenizers.Tokenizer.from_str(trained().decode())
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.write_text(made.to_str())
    one = run(tokenize_step(tmp_path / "whole", source, tokenizer, **settings))
    divide(monkeypatch, 1000)
    other = run(tokenize_step(tmp_path / "ranges", source, tokenizer, **settings))
    assert files_of(tmp_path / "ranges") == files_of(tmp_path / "whole") and same(one, other)
    assert files_of(tmp_path / "ranges").keys() >= {
        f"data/{name}/shard-00000.loss_mask/c/0" for name in ("chats", "lists")
    }


def test_run_with_ranges_makes_a_whole_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the engine: 70,000 short texts fill two row groups, so one partition has two ranges."""
    texts = [f"note {number}" for number in range(70_000)]
    write_lines(tmp_path / "notes" / "a.jsonl", texts)
    (tmp_path / "r.toml").write_text(
        'name = "r"\n[[sources]]\nname = "notes"\nurl = "notes"\n[tokenize]\ntokenizer = "bytes"\n'
    )
    divide(monkeypatch, 600_000)
    (made,) = datakit.run(tmp_path / "r.toml", tmp_path / "root", workers=2).steps_of("tokenize")
    lines = [line for line in read_ledger(made.directory) if isinstance(line, AttemptLine)]
    ranges = [line.result.records for line in lines if line.phase == "encode" and line.result is not None]
    assert sorted(ranges) == [4464, 65_536] and [line.phase for line in lines].count("join") == 1
    cache = open_cache(made.directory)
    found = cache.read(0, cache.tokens)
    ordered = sorted(texts, key=identity)
    assert found.tolist() == [number for text in ordered for number in (*text.encode(), 256)]
    assert not (Path(made.directory) / EXCHANGE_FOLDER).exists()
