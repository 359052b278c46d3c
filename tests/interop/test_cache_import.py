"""Caches of other programs: read as their layouts say, by copy or in place; and written as theirs say.

The originals are made here with TensorStore and `struct` alone, from the formats' descriptions.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import tokenizers

from datakit.cache.read_ahead import block_ranges
from datakit.cache.reader import Cache, open_cache
from datakit.errors import CorruptError, NotFoundError, TokenizerError, UsageError
from datakit.interop import import_cache as import_cache_module
from datakit.interop.import_cache import import_cache
from datakit.interop.levanter import is_levanter, read_levanter
from datakit.interop.megatron import export_megatron, read_megatron
from datakit.validate.token_cache import require_intact
from tests.support.caches import make_cache, random_cache, trained, upload
from tests.support.partitions import contents, words
from tests.support.s3 import s3_root

FAR = 1 << 54
SHARDS = ("00000_first", "00001_empty", "00002_last")


# --- originals


def documents(seed: int, count: int, end: int | None = 0) -> list[np.ndarray]:
    """Lists of ids below 400, each ending with `end`; some documents have nothing else."""
    generator = np.random.default_rng(seed)
    made = [generator.integers(1, 400, int(size)).astype(np.int32) for size in generator.integers(0, 300, count)]
    return made if end is None else [np.append(ids, np.int32(end)) for ids in made]


def write_jagged(directory: Path, rows: list[np.ndarray], chunk: int = 1024) -> None:
    """`data` and `offsets` of one field: declared far too long, chunks of zeros left out, the row count first."""
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    flat = np.concatenate([*rows, np.empty(0, np.int32)]).astype(np.int32)
    for name, values in (("data", flat), ("offsets", np.concatenate([[len(rows)], ends]).astype(np.int64))):
        sharding = {
            "chunk_shape": [chunk],
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {
                    "name": "blosc",
                    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4},
                },
            ],
        }
        metadata = {
            "shape": [FAR],
            "data_type": values.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk * 4]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }
        store = {"driver": "file", "path": f"{directory / name}/"}
        array = tensorstore.open({"driver": "zarr3", "kvstore": store, "metadata": metadata}, create=True).result()
        array[: len(values)].write(values).result()


def write_ledger(directory: Path, shards: dict[str, int], **more: object) -> None:
    facts = {
        "total_num_rows": sum(shards.values()),
        "shard_rows": shards,
        "is_finished": True,
        "finished_shards": list(shards),
        "field_counts": {},
        "metadata": {"preprocessor_metadata": {"tokenizer": "mine"}},
        **more,
    }
    (directory / "shard_ledger.json").write_text(json.dumps(facts))


def consolidated(directory: Path, rows: list[np.ndarray]) -> Path:
    write_jagged(directory / "input_ids", rows)
    write_ledger(directory, {"only": len(rows)})
    return directory


def sharded(directory: Path, groups: list[list[np.ndarray]], **more: object) -> Path:
    for name, rows in zip(SHARDS, groups, strict=True):
        if rows:
            write_jagged(directory / name / "input_ids", rows)
    counts = {name: len(rows) for name, rows in zip(SHARDS, groups, strict=True)}
    write_ledger(directory, counts, **more)
    return directory


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    (tmp_path / "tokenizer.json").write_bytes(trained())
    return str(tmp_path / "tokenizer.json")


def imported(original: Path, target: Path, tokenizer: str, copy: bool, add: str = "none") -> Cache:
    import_cache(
        read_levanter(str(original)), str(target), tokenizer,
        layout="levanter", source="old", copy=copy, ends=(add, None, None),
    )  # fmt: skip
    return open_cache(str(target))


def same(cache: Cache, rows: list[np.ndarray]) -> None:
    flat = np.concatenate(rows)
    assert cache.documents_count == len(rows)
    assert (cache.read(0, cache.tokens) == flat).all()
    for start, stop in block_ranges(len(flat), 997):
        assert (cache.read(start, stop) == flat[start:stop]).all()
    found = list(cache.documents())
    assert [document.tokens.tolist() for document in found] == [row.tolist() for row in rows]
    lengths = [cache.document_lengths(shard.index) for shard in cache.shards]
    assert np.concatenate(lengths).tolist() == [len(row) for row in rows]
    assert len({document.id for document in found}) == len(rows)
    for row in range(0, len(rows), 7):
        assert cache.find(found[row].id) == row
        assert cache.document(row).tokens.tolist() == rows[row].tolist()
    require_intact(cache)


# --- Levanter


@pytest.mark.parametrize("copy", [False, True])
def test_a_consolidated_cache(tmp_path: Path, tokenizer: str, copy: bool) -> None:
    rows = documents(1, 120)
    rows[50:50] = [np.zeros(9000, np.int32)]  # whole chunks, and a whole file, of zeros: they are not there
    original = consolidated(tmp_path / "old", rows)
    before = contents(original)
    same(imported(original, tmp_path / "new", tokenizer, copy), rows)
    assert contents(original) == before
    assert (tmp_path / "new/old/shard-00000/c/0").exists() == copy


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("layout", ["sharded", None])
def test_a_cache_of_a_ledger_and_shards(tmp_path: Path, tokenizer: str, copy: bool, layout: str | None) -> None:
    groups = [documents(1, 40), [], documents(2, 60)]
    original = sharded(tmp_path / "old", groups, **({"layout": layout} if layout else {}))
    same(imported(original, tmp_path / "new", tokenizer, copy), [*groups[0], *groups[2]])


def test_what_was_copied_stands_alone_and_what_was_not_moves_with_its_original(tmp_path: Path, tokenizer: str) -> None:
    rows = documents(3, 50)
    original = consolidated(tmp_path / "here" / "old", rows)
    imported(original, tmp_path / "here" / "left", tokenizer, copy=False)
    imported(original, tmp_path / "here" / "copied", tokenizer, copy=True)
    shutil.move(tmp_path / "here", tmp_path / "there")
    same(open_cache(str(tmp_path / "there" / "left")), rows)
    shutil.rmtree(tmp_path / "there" / "old")
    same(open_cache(str(tmp_path / "there" / "copied")), rows)
    with pytest.raises(CorruptError, match=r"old/input_ids/data/c/0 is missing"):
        open_cache(str(tmp_path / "there" / "left")).read(0, 10)


def test_an_original_that_changed_is_found(tmp_path: Path, tokenizer: str) -> None:
    original = consolidated(tmp_path / "old", documents(3, 50))
    cache = imported(original, tmp_path / "new", tokenizer, copy=False)
    data = original / "input_ids/data/c/0"
    whole = data.read_bytes()
    data.write_bytes(whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
    with pytest.raises(CorruptError, match=r"data/c/0 has xxh3 \w+; the manifest says \w+, with as many bytes"):
        require_intact(cache)
    data.write_bytes(whole[:-1])
    with pytest.raises(CorruptError, match=rf"data/c/0 has {len(whole) - 1} bytes, the manifest says {len(whole)}"):
        open_cache(str(tmp_path / "new")).read(0, 10)


def test_shards_of_copies_end_at_documents(tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_cache_module, "SHARD_TOKENS", 2000)
    monkeypatch.setattr(import_cache_module, "BATCH_TOKENS", 500)
    rows = documents(4, 100)
    rows[10] = np.full(5000, 7, np.int32)  # longer than a shard may be
    cache = imported(consolidated(tmp_path / "old", rows), tmp_path / "new", tokenizer, copy=True)
    same(cache, rows)
    assert all(shard.tokens <= 2000 or shard.rows == 1 for shard in cache.shards)
    assert len(cache.shards) >= sum(map(len, rows)) // 2000
    counts = np.bincount(np.concatenate(rows))
    assert cache.details.frequent[0][0] == 7
    assert all(0 < count <= counts[token] for token, count in cache.details.frequent)


@pytest.mark.parametrize("copy", [False, True])
def test_ends_are_checked_when_they_are_promised(tmp_path: Path, tokenizer: str, copy: bool) -> None:
    good = consolidated(tmp_path / "good", documents(5, 30, end=0))
    cache = imported(good, tmp_path / "new", tokenizer, copy, add="eos")
    assert cache.contract.eos is not None
    assert cache.contract.eos.id == 0
    bad = consolidated(tmp_path / "bad", documents(5, 30, end=None))
    with pytest.raises(CorruptError, match=r"a document does not end with '<\|endoftext\|>'"):
        imported(bad, tmp_path / "refused", tokenizer, copy, add="eos")
    assert not (tmp_path / "refused" / "manifest.json").exists()


def test_ids_that_the_tokenizer_does_not_have_are_refused(tmp_path: Path, tokenizer: str) -> None:
    size = tokenizers.Tokenizer.from_file(tokenizer).get_vocab_size()
    original = consolidated(tmp_path / "old", [np.array([1, size + 70_000], np.int32)])
    with pytest.raises(UsageError, match=rf"holds the id {size + 70_000}, but the tokenizer has {size} ids"):
        imported(original, tmp_path / "copied", tokenizer, copy=True)
    left = imported(original, tmp_path / "left", tokenizer, copy=False)
    with pytest.raises(TokenizerError, match=rf"holds the id {size + 70_000}.*has {size} ids"):
        left.read(0, 2)


def test_what_does_not_fit_together_is_refused(tmp_path: Path, tokenizer: str) -> None:
    rows = documents(6, 20)
    original = consolidated(tmp_path / "old", rows)
    with pytest.raises(NotFoundError, match="is 'tokens' the right field"):
        list(read_levanter(str(original), "tokens"))
    write_ledger(original, {"only": 21})
    with pytest.raises(CorruptError, match="offsets say 20 rows, the ledger 21"):
        list(read_levanter(str(original)))
    write_ledger(original, {"only": 20}, is_finished=False)
    with pytest.raises(UsageError, match="is not finished"):
        list(read_levanter(str(original)))
    write_ledger(original, {"a": 10, "b": 10}, total_num_rows=30, layout="sharded")
    with pytest.raises(CorruptError, match="its shards have 20 rows, the total says 30"):
        list(read_levanter(str(original)))
    assert not is_levanter(str(tmp_path / "nothing"))
    write_ledger(original, {"only": 20})
    imported(original, tmp_path / "new", tokenizer, copy=True)
    with pytest.raises(UsageError, match="already holds a finished step"):
        imported(original, tmp_path / "new", tokenizer, copy=True)


def test_a_cache_in_an_object_store(tmp_path: Path, tokenizer: str) -> None:
    rows = documents(7, 40)
    original = consolidated(tmp_path / "old", rows)
    with s3_root() as root:
        upload(original, f"{root}/old")
        for target in (f"{root}/new", str(tmp_path / "new")):
            import_cache(
                read_levanter(f"{root}/old"), target, tokenizer, layout="levanter", source="old", copy=False
            )  # fmt: skip
            same(open_cache(target), rows)


# --- Megatron


def read_by_hand(prefix: Path) -> tuple[list[list[int]], list[int], dict[str, int]]:
    """Sequences, document borders and header, by the description of the format alone."""
    index = prefix.with_suffix(".idx").read_bytes()
    data = prefix.with_suffix(".bin").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    (version,) = struct.unpack("<Q", index[9:17])
    (code,) = struct.unpack("<B", index[17:18])
    sequences, borders = struct.unpack("<QQ", index[18:34])
    place = 34
    lengths = struct.unpack(f"<{sequences}i", index[place : place + 4 * sequences])
    place += 4 * sequences
    pointers = struct.unpack(f"<{sequences}q", index[place : place + 8 * sequences])
    place += 8 * sequences
    documents = struct.unpack(f"<{borders}q", index[place : place + 8 * borders])
    assert place + 8 * borders == len(index)
    kind, size = {4: ("i", 4), 8: ("H", 2)}[code]
    found = [list(struct.unpack_from(f"<{n}{kind}", data, at)) for n, at in zip(lengths, pointers, strict=True)]
    assert sum(lengths) * size == len(data)
    return found, list(documents), {"version": version, "code": code}


def write_by_hand(prefix: Path, rows: list[list[int]], borders: list[int], shuffled: bool = False) -> None:
    """Sequences in the file in another order than in the index, if `shuffled`."""
    order = list(range(len(rows)))[:: -1 if shuffled else 1]
    pointers, data = [0] * len(rows), b""
    for row in order:
        pointers[row] = len(data)
        data += struct.pack(f"<{len(rows[row])}i", *rows[row])
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(rows), len(borders))
    index += struct.pack(f"<{len(rows)}i", *map(len, rows)) + struct.pack(f"<{len(rows)}q", *pointers)
    prefix.with_suffix(".idx").write_bytes(index + struct.pack(f"<{len(borders)}q", *borders))
    prefix.with_suffix(".bin").write_bytes(data)


@pytest.mark.parametrize(("dtype", "code"), [(np.uint16, 8), (np.uint32, 4)])
def test_an_export_is_what_the_format_says(tmp_path: Path, dtype: type, code: int) -> None:
    directory, _ = random_cache(tmp_path, dtype, [5000, 0, 3000])
    cache = open_cache(str(directory))
    done = export_megatron(cache, str(tmp_path / "out"))
    expected = [document.tokens.tolist() for document in cache.documents()]
    found, borders, header = read_by_hand(tmp_path / "out")
    filled = [row for row in expected if row]
    assert found == filled
    assert borders == list(range(len(filled) + 1))
    assert header == {"version": 1, "code": code}
    assert (done.sequences, done.tokens, done.empty) == (len(filled), 8000, len(expected) - len(filled))
    assert done.empty > 0


def test_a_source_alone_is_exported_and_comes_back(tmp_path: Path) -> None:
    directory = make_cache(tmp_path / "made", {"novels": words(1, 50), "laws": words(2, 30)}, bits=1)
    cache = open_cache(str(directory))
    export_megatron(cache, str(tmp_path / "laws"), "laws")
    with pytest.raises(UsageError, match="no source 'law'; did you mean 'laws'"):
        export_megatron(cache, str(tmp_path / "law"), "law")
    again = megatron_import(tmp_path / "laws", tmp_path / "again", cache.tokenizer_url, add="eos")
    expected = [d.tokens.tolist() for row, d in enumerate(cache.documents()) if cache.source_of(row) == "laws"]
    assert len(expected) == 30
    assert [document.tokens.tolist() for document in again.documents()] == expected
    assert again.contract.tokenizer_sha256 == cache.contract.tokenizer_sha256
    export_megatron(again, str(tmp_path / "twice"))
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"laws{ending}").read_bytes() == (tmp_path / f"twice{ending}").read_bytes()


def megatron_import(prefix: Path, target: Path, tokenizer: str, add: str = "none") -> Cache:
    import_cache(
        [read_megatron(str(prefix))], str(target), tokenizer,
        layout="megatron", source="old", copy=True, ends=(add, None, None),
    )  # fmt: skip
    return open_cache(str(target))


@pytest.mark.parametrize("shuffled", [False, True])
def test_documents_of_several_sequences_in_any_order_in_the_file(
    tmp_path: Path, tokenizer: str, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_cache_module, "BATCH_TOKENS", 300)
    rows = [row.tolist() for row in documents(8, 60)]
    rows[5], rows[6] = [], []
    borders = [0, 3, 3, 10, 11, 60]
    write_by_hand(tmp_path / "old", rows, borders, shuffled)
    cache = megatron_import(tmp_path / "old", tmp_path / "new", tokenizer)
    expected = [sum(rows[a:b], []) for a, b in zip(borders, borders[1:], strict=False)]  # noqa: RUF007, RUF017
    assert [document.tokens.tolist() for document in cache.documents()] == expected
    require_intact(cache)


def test_broken_datasets_are_refused(tmp_path: Path, tokenizer: str) -> None:
    rows, old = [[1, 2, 3], [4, 5]], tmp_path / "old"
    write_by_hand(old, rows, [0, 1, 2])
    index, data = (old.with_suffix(ending).read_bytes() for ending in (".idx", ".bin"))
    old.with_suffix(".bin").write_bytes(data[:-1])
    with pytest.raises(CorruptError, match=r"old\.bin has 19 bytes; its index needs 20"):
        read_megatron(str(old))
    for broken, error, message in (
        (b"NOT AN INDEX" + index[12:], UsageError, "is not the index of a Megatron dataset"),
        (index[:-1], CorruptError, r"bytes; 2 sequences and 2 documents need"),
        (index[:17] + bytes([6]) + index[18:], UsageError, "version 1 and type 6"),
        (index[:-8] + struct.pack("<q", 1), CorruptError, "do not cover its 2 sequences"),
    ):
        old.with_suffix(".idx").write_bytes(broken)
        with pytest.raises(error, match=message):
            read_megatron(str(old))
    old.with_suffix(".idx").unlink()
    with pytest.raises(NotFoundError, match=r"old\.idx does not exist"):
        read_megatron(str(old))
