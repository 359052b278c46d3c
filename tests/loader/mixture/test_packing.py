"""Whole documents in sequences: none that fits is cut, and none is lost uncounted."""

from __future__ import annotations

import gzip
import io
import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from datakit.errors import LoaderError
from datakit.loader import ArraySource, Packing
from datakit.loader.mixture.packing import PackingCounts, best_fit, count_blocks, owned_documents, pack_block
from datakit.loader.sources.token_source import BlockAxis
from tests.support.data import need_data
from tests.support.loader.sources import counting

LENGTHS = st.lists(st.integers(0, 70), min_size=1, max_size=80).filter(lambda lengths: sum(lengths) > 0)
MILLION = 1 << 20


@given(st.lists(st.integers(1, 50), max_size=200), st.integers(50, 80), st.integers(0, 5))
def test_best_fit_uses_the_fullest_open_sequence(lengths: list[int], capacity: int, most: int) -> None:
    chosen = best_fit(np.array(lengths, np.int64), capacity, most)
    rooms: dict[int, int] = {}
    items: dict[int, int] = {}
    for item in np.argsort(-np.array(lengths), kind="stable").tolist():  # longest first, as documented
        length, sequence = lengths[item], int(chosen[item])
        fitting = {s: room for s, room in rooms.items() if room >= length and (not most or items[s] < most)}
        if sequence in rooms:
            assert rooms[sequence] == min(fitting.values())
        else:
            assert not fitting
            assert sequence == len(rooms)
        rooms[sequence] = rooms.get(sequence, capacity) - length
        items[sequence] = items.get(sequence, 0) + 1
    assert all(room >= 0 for room in rooms.values())


@given(LENGTHS, st.integers(5, 100))
def test_each_token_belongs_to_one_block(lengths: list[int], block_tokens: int) -> None:
    source = counting(lengths)
    axis = BlockAxis(source.tokens, block_tokens)
    owned = [owned_documents(source, axis, block) for block in range(axis.count)]
    covered = [np.arange(a, a + n) for block in owned for a, n in zip(block.starts, block.lengths, strict=True)]
    assert np.array_equal(np.concatenate(covered), np.arange(source.tokens))
    for block, documents in enumerate(owned):
        assert (documents.lengths <= block_tokens).all()
        first, last = axis.range(block)
        assert ((documents.starts >= first) & (documents.starts < last)).all()


@given(LENGTHS, st.integers(10, 100), st.integers(1, 100), st.integers(0, 3))
def test_split_cuts_only_too_long_documents(lengths: list[int], block_tokens: int, length: int, most: int) -> None:
    source, length = counting(lengths), min(length, block_tokens)
    axis = BlockAxis(source.tokens, block_tokens)
    borders = set(source.document_borders(0, source.tokens).tolist())
    seen = []
    for block in range(axis.count):
        packed = pack_block(source, axis, block, length, Packing("split", most))
        assert packed.counters.kept == packed.counters.tokens
        for sequence in range(packed.pieces.sequences):
            part = packed.pieces.take(np.array([sequence]))
            assert part.lengths.sum() <= length
            assert not most or len(part.lengths) <= most
            for start, size in zip(part.starts.tolist(), part.lengths.tolist(), strict=True):
                seen.append(np.arange(start, start + size))
                whole = source.document_borders(start, start + 1)
                if whole[-1] - whole[0] <= length:
                    assert {start, start + size} <= borders
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(source.tokens))


@given(LENGTHS, st.integers(10, 100), st.integers(1, 100))
def test_truncate_and_drop_count_their_losses(lengths: list[int], block_tokens: int, length: int) -> None:
    source, length = counting(lengths), min(length, block_tokens)
    axis = BlockAxis(source.tokens, block_tokens)
    over = [size for size in lengths if size > length]
    fitting = sum(size for size in lengths if size <= length)
    truncated = count_blocks(source, axis, range(axis.count), length, Packing("truncate"))
    dropped = count_blocks(source, axis, range(axis.count), length, Packing("drop"))
    assert truncated.counters.truncated == dropped.counters.dropped == len(over)
    assert truncated.counters.kept == fitting + length * len(over)
    assert dropped.counters.kept == fitting
    for table in (truncated, dropped):
        assert table.counters.kept + table.counters.padding == length * table.sequences.sum()
        assert table.counters.tokens == source.tokens


@given(LENGTHS, st.integers(10, 100), st.data())
def test_counts_of_ranges_concatenate(lengths: list[int], block_tokens: int, data: st.DataObject) -> None:
    """So they can be counted in any number of tasks."""
    source = counting(lengths)
    axis = BlockAxis(source.tokens, block_tokens)
    cuts = sorted({0, axis.count, *data.draw(st.lists(st.integers(0, axis.count), max_size=4))})
    parts = [count_blocks(source, axis, range(a, b), 10, Packing()) for a, b in pairwise(cuts)]
    whole = count_blocks(source, axis, range(axis.count), 10, Packing())
    assert np.array_equal(np.concatenate([part.sequences for part in parts]), whole.sequences)
    total = parts[0].counters
    for part in parts[1:]:
        total += part.counters
    assert total == whole.counters


def test_stored_counts_are_named_by_the_packing() -> None:
    assert Packing().counts_name(4096) == "packing-4096-split"
    assert Packing("drop", 64).counts_name(32768) == "packing-32768-drop-64"


@pytest.mark.parametrize("packing", [Packing("cut"), Packing("split", -1)])
def test_invalid_packing_names_the_component(packing: Packing) -> None:
    with pytest.raises(LoaderError, match="'web'"):
        packing.check("web")


# --- real texts


@cache
def token_lengths(name: str, every: int = 1) -> np.ndarray:
    """Token counts of every n-th document of a real file, end-of-text tokens included."""
    folder = need_data()
    data = (folder / "text" / name).read_bytes()
    stream = io.BytesIO(data)
    file = gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else zstandard.ZstdDecompressor().stream_reader(stream)
    texts = [json.loads(line)["text"] for line in file.read().splitlines()[::every]]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "gpt-neox-olmo-dolma-v1_5.json"))
    return np.array([len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts)])


def count(lengths: np.ndarray, length: int, policy: str = "split") -> PackingCounts:
    """The counts of all blocks of documents of these lengths."""
    source = ArraySource(np.zeros(int(lengths.sum()), np.uint16), lengths)
    axis = BlockAxis(source.tokens, MILLION)
    return count_blocks(source, axis, range(axis.count), length, Packing(policy))


@pytest.mark.parametrize(
    ("name", "length", "every"),
    [
        ("php-en.jsonl.gz", 2048, 10),
        pytest.param("php-en.jsonl.gz", 2048, 1, marks=pytest.mark.soak),
        pytest.param("peps.jsonl.zst", 32768, 1, marks=pytest.mark.soak),
    ],
)
def test_real_documents_leave_little_padding(name: str, length: int, every: int) -> None:
    need_data()
    lengths = token_lengths(name, every)
    table = count(lengths, length)
    padding = table.counters.padding / (table.counters.padding + table.counters.kept)
    print(f"\n{name} at {length}: {padding:.2%} padding")
    assert padding <= 0.03
    assert np.array_equal(table.sequences, count(lengths, length).sequences)
    assert lengths[lengths <= length].sum() / lengths.sum() > 0.8, "most tokens are in documents that fit"


def check_policies(lengths: np.ndarray) -> None:
    """Split keeps everything, truncate the start of each document, drop nothing, if all are longer than 4096 tokens."""
    split, truncate, drop = (count(lengths, 4096, policy).counters for policy in ("split", "truncate", "drop"))
    assert (split.kept, split.split) == (lengths.sum(), len(lengths))
    assert split.padding / (split.padding + split.kept) < 0.02
    assert (truncate.kept, truncate.truncated) == (len(lengths) * 4096, len(lengths))
    assert (drop.kept, drop.dropped) == (0, len(lengths))


def test_policies_on_long_documents() -> None:
    check_policies(np.random.default_rng(0).integers(50_000, 400_000, 9))


@pytest.mark.soak
def test_policies_on_real_novels() -> None:
    check_policies(token_lengths("novels-en.jsonl.gz", 4))
