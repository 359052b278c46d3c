"""Tokens are what the reference library says, for every document, or there is no cache."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tokenizers
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache.contract import Contract, Special, check_ends, frame
from datakit.cache.reader import open_cache
from datakit.errors import CorruptError, EmptyStageError, TokenizerError
from datakit.tokenize import reference_check
from datakit.tokenize import text_batches as text_batches_module
from datakit.tokenize.encoders.base import FastEncoder
from datakit.tokenize.encoders.tokenizer import Tokenizer, load, parse
from datakit.tokenize.make_contract import GOLDEN, make_contract
from datakit.tokenize.reference_check import Verification
from datakit.tokenize.text_batches import text_batches
from datakit.validate.token_cache import require_intact
from tests.support.caches import clean, make_cache, run, tokenize_step, trained
from tests.support.data import need_data
from tests.support.partitions import contents, documents, identity, words
from tests.support.paths import REPOSITORY

TOKENIZERS = {"gpt2": "gpt2.json", "olmo-v1_5": "gpt-neox-olmo-dolma-v1_5.json"}


def loaded(data: bytes | None = None) -> Tokenizer:
    tokenizer = parse(data or trained(), "here")
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def contract_of(tokenizer: bytes, add: str = "eos", bos: str | None = None, eos: str | None = None) -> Contract:
    made = loaded(tokenizer)
    return make_contract(made, made.encoder("auto"), add, bos, eos)


def texts_of(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return pq.read_table(path)["text"].to_pylist()
    opened = gzip.open if path.suffix == ".gz" else zstandard.open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def pieces(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Batches of about the stage's size."""
    start = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size >= text_batches_module.BATCH_BYTES:
            yield texts[start : index + 1]
            start, size = index + 1, 0
    yield texts[start:]


# --- real text, real tokenizers


def test_every_real_file_gives_the_reference_s_tokens() -> None:
    """13 files, 121 MB, two tokenizers: count and sha256 of the ids, each document followed by end-of-text."""
    folder = need_data()
    rows = [line.split("\t") for line in (folder / "TOKENS.tsv").read_text().splitlines()[1:]]
    loaded = {name: load(str(folder / "tokenizers" / file)) for name, file in TOKENIZERS.items()}
    wanted = {(row[0], row[1]): (int(row[2]), int(row[3]), int(row[5]), row[6]) for row in rows}
    assert len(wanted) == 26
    for file in sorted({name for name, _ in wanted}):
        texts = texts_of(folder / file)
        for name, tokenizer in loaded.items():
            encoder = tokenizer.encoder("auto")
            contract = make_contract(tokenizer, encoder, "eos", None, None)
            digest, count = hashlib.sha256(), 0
            for piece in pieces(texts):
                tokens, _ = frame(*encoder.encode_batch(piece), contract)
                digest.update(tokens.astype("<u4").tobytes())
                count += len(tokens)
            assert contract.eos is not None
            found = (contract.eos.id, len(texts), count, digest.hexdigest())
            assert (encoder.name, found) == ("fastokens", wanted[file, name]), (file, name)


def test_a_real_cache_holds_the_reference_s_tokens(tmp_path: Path) -> None:
    """Through the stage and back: each document's tokens are its text under the reference, then end-of-text."""
    folder = need_data()
    texts = texts_of(folder / "text" / "nltk-inaugural.jsonl.gz") + texts_of(folder / "text" / "php-ja.parquet")[:500]
    tokenizer = folder / "tokenizers" / TOKENIZERS["olmo-v1_5"]
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, tokenizer.read_bytes(), bits=2)))
    reference = tokenizers.Tokenizer.from_file(str(tokenizer))
    by_id = {identity(text): text for text in texts}
    seen = 0
    for document in cache.documents():
        expected = reference.encode(by_id[document.id], add_special_tokens=False).ids
        assert document.tokens.tolist() == [*expected, 50279]
        seen += 1
    assert seen == len(by_id) == cache.documents_count


# --- the encoder


def test_loading_starts_no_thread_and_encoding_stays_on_its_cpus() -> None:
    """The fork server loads tokenizers, so a thread there would be copied as a lock that nobody opens."""
    folder = need_data()
    program = f"""
import json, os, sys, time
from pathlib import Path
from datakit.tokenize.encoders.tokenizer import limit_threads, load
def threads(): return sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
cpus = int(sys.argv[1])
tokenizer = load({str(folder / "tokenizers" / TOKENIZERS["gpt2"])!r})
loaded = threads()
encoder = tokenizer.encoder("auto")
before = os.sched_getaffinity(0)
limit_threads(encoder, cpus)
with open({str(REPOSITORY / "README.md")!r}) as file: text = file.read()
texts = [f"{{number}} {{text}}" for number in range(2000)]
wall, cpu = time.perf_counter(), time.process_time()
for _ in range(3): encoder.encode_batch(texts)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
affinities = [sorted(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()]
print(json.dumps([loaded, threads(), cpu / wall, affinities == [sorted(before)] * len(affinities)]))
"""
    for cpus in (1, 2):
        command = [sys.executable, "-c", program, str(cpus)]
        environment = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        loaded, working, share, restored = json.loads(done.stdout)
        assert {name for name in loaded if not name.startswith("python")} <= {"jemalloc_bg_thd"}
        assert len(working) - len(loaded) <= cpus - 1
        assert share < cpus * 1.15
        assert restored


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    cutting = tokenizers.Tokenizer.from_str(trained().decode())
    cutting.enable_truncation(4)
    cutting.enable_padding(length=64)
    texts = words(5, 30)
    for number, encoder in enumerate(("fastokens", "tokenizers")):
        made = make_cache(tmp_path / str(number), {"web": texts}, cutting.to_str().encode(), encoder=encoder)
        plain = make_cache(tmp_path / f"plain{number}", {"web": texts})
        found, expected = (open_cache(str(path)) for path in (made, plain))
        assert found.tokens == expected.tokens
        assert (found.read(0, found.tokens) == expected.read(0, found.tokens)).all()


@functools.cache  # its training is not deterministic
def word_piece() -> bytes:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))  # pyright: ignore[reportCallIssue]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(words(0, 200), trainer)
    return tokenizer.to_str().encode()


def test_where_fastokens_cannot_load_the_reference_encodes_and_is_named(tmp_path: Path) -> None:
    texts = words(3, 50)
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, word_piece(), eos="[SEP]")))
    assert cache.contract.encoder == "tokenizers"
    reference = tokenizers.Tokenizer.from_str(word_piece().decode())
    by_id = {identity(text): text for text in texts}
    for document in cache.documents():
        assert document.tokens.tolist() == [*reference.encode(by_id[document.id]).ids, 1]
    with pytest.raises(TokenizerError, match="fastokens cannot load this tokenizer"):
        make_cache(tmp_path / "insisting", {"web": texts}, word_piece(), eos="[SEP]", encoder="fastokens")


# --- verification


@dataclass(frozen=True)
class Faulty(FastEncoder):
    """The real encoder, with one token of one text changed."""

    text: str = ""
    at: int = 0

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, lengths = super().encode_batch(texts)
        ids = ids.copy()
        for index, text in enumerate(texts):
            if text == self.text:
                ids[int(lengths[:index].sum()) + self.at] ^= 1
        return ids, lengths


def verify_all(dataset_url: str, encoder: FastEncoder, rows: int) -> Verification:
    total = sum(batch.text_bytes for batch in text_batches(dataset_url))
    check = Verification(loaded().reference_encoder(), encoder, rows, total, "part-0")
    for batch in text_batches(dataset_url):
        check.check(batch, *encoder.encode_batch(batch.strings()))
    return check


def test_a_difference_is_reported_by_document_and_position(tmp_path: Path) -> None:
    texts = words(7, 16)  # so few that all are in the sample
    source = clean(tmp_path, {"web": texts})
    path = str(tmp_path / source.manifest.partitions[0].path)
    fast = loaded().fast
    assert fast is not None
    assert verify_all(path, FastEncoder(fast), 16).documents == 16
    with pytest.raises(TokenizerError, match=f"part-0, document {identity(texts[11])}, from token 5 of") as caught:
        verify_all(path, Faulty(fast, text=texts[11], at=5), 16)
    assert texts[11][:20] not in str(caught.value)


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300) | st.integers(8_000, 30_000), min_size=1, max_size=60),
    batch_bytes=st.integers(1, 200_000),
)
def test_the_sample_is_large_enough_and_does_not_depend_on_batches(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], batch_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("sample")
    alphabet = "é x→y\n"
    source = clean(folder, {"web": [f"{number}:" + alphabet * (size // 9) for number, size in enumerate(sizes)]})
    fast = loaded().fast
    assert fast is not None
    path, total = str(folder / source.manifest.partitions[0].path), source.manifest.totals.text_bytes or 0
    whole = verify_all(path, FastEncoder(fast), len(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_batches_module, "BATCH_BYTES", batch_bytes)
        cut = verify_all(path, FastEncoder(fast), len(sizes))
    assert (whole.documents, whole.text_bytes) == (cut.documents, cut.text_bytes)
    assert whole.documents >= min(reference_check.DOCUMENTS, len(sizes))
    assert whole.text_bytes >= min(total, reference_check.WINDOW_BYTES)


def test_long_texts_are_compared_in_windows_all_along(tmp_path: Path) -> None:
    """8 KiB in each 2.7 MB, whichever document it falls into: at least 0.3 % of the bytes."""
    texts = [f"{number} " + "wörter und mehr " * 300_000 for number in range(3)]
    source = clean(tmp_path, {"web": texts})
    fast = loaded().fast
    assert fast is not None
    check = verify_all(str(tmp_path / source.manifest.partitions[0].path), FastEncoder(fast), 3)
    total = source.manifest.totals.text_bytes or 0
    assert check.text_bytes >= reference_check.SHARE * total
    assert check.text_bytes <= reference_check.SHARE * total + 5 * reference_check.WINDOW_BYTES


# --- the contract


def test_the_contract_says_what_the_tokens_mean() -> None:
    contract = contract_of(trained())
    assert contract.tokenizer_sha256 == hashlib.sha256(trained()).hexdigest()
    assert (contract.encoder, contract.vocabulary_size, contract.dtype) == ("fastokens", 400, np.uint16)
    assert (contract.bos, contract.eos) == (None, Special("<|endoftext|>", 0))
    reference = tokenizers.Tokenizer.from_str(trained().decode())
    assert [golden.text for golden in contract.golden] == list(GOLDEN)
    assert all(golden.ids == reference.encode(golden.text).ids for golden in contract.golden)
    assert 0 in contract.golden[-1].ids  # a special string inside a text is a token, as the tokenizer has it


def test_special_tokens_are_found_or_named_never_guessed() -> None:
    both = tokenizers.Tokenizer.from_str(trained().decode())
    both.add_special_tokens(["<s>", "</s>", "<|mask|>"])
    data = both.to_str().encode()
    with pytest.raises(TokenizerError, match=r"more than one usual name \(<\|endoftext\|>, </s>\) for eos"):
        contract_of(data)
    with pytest.raises(TokenizerError, match="no token '<end>'; its special tokens are"):
        contract_of(data, eos="<end>")
    with pytest.raises(TokenizerError, match="did you mean 'both'"):
        contract_of(data, add="boht", eos="</s>")
    found = contract_of(data, add="both", eos="<|mask|>")
    assert (found.bos, found.eos) == (Special("<s>", 400), Special("<|mask|>", 402))


@pytest.mark.parametrize(("add", "before", "after"), [("none", 0, 0), ("bos", 1, 0), ("eos", 0, 1), ("both", 1, 1)])
def test_each_document_is_framed_as_the_recipe_says(tmp_path: Path, add: str, before: int, after: int) -> None:
    texts = words(4, 20)
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, add=add, bos="<|endoftext|>")))
    reference = tokenizers.Tokenizer.from_str(trained().decode())
    by_id = {identity(text): text for text in texts}
    for document in cache.documents():
        inner = reference.encode(by_id[document.id]).ids
        assert document.tokens.tolist() == [0] * before + inner + [0] * after


def test_a_document_without_its_end_is_never_written() -> None:
    contract = contract_of(trained())
    tokens, lengths = np.array([7, 0, 9, 9, 0], np.uint16), np.array([2, 3])
    check_ends(tokens, lengths, contract, "shard")
    with pytest.raises(CorruptError, match=r"does not end with '<\|endoftext\|>'"):
        check_ends(tokens, np.array([3, 2]), contract, "shard")
    with pytest.raises(CorruptError, match="add up to 4"):
        check_ends(tokens, np.array([2, 2]), contract, "shard")
    with pytest.raises(TokenizerError, match="id 400"):
        frame(np.array([400], np.uint32), np.array([1]), contract)


def test_another_tokenizer_than_planned_is_refused(tmp_path: Path) -> None:
    made = tokenize_step(tmp_path / "cache", [clean(tmp_path, {"web": words(1, 5)})], _file(tmp_path, trained()))
    _file(tmp_path, trained(500))
    with pytest.raises(TokenizerError, match="planned with"):
        run(made)
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        make_cache(tmp_path / "broken", {"web": words(1, 5)}, b'{"model": 7}')


def _file(folder: Path, data: bytes) -> Path:
    (folder / "tokenizer.json").write_bytes(data)
    return folder / "tokenizer.json"


# --- the stage as a whole


def test_counts_are_conserved(tmp_path: Path) -> None:
    texts = {"novels": words(1, 200), "laws": words(2, 100)}
    source = clean(tmp_path, texts, bits=2)
    manifest = run(tokenize_step(tmp_path / "cache", [source], _file(tmp_path, trained())))
    assert manifest.totals.rows == 300 == manifest.counters["tokenize/documents"]
    assert manifest.totals.text_bytes == source.manifest.totals.text_bytes == manifest.counters["tokenize/text_bytes"]
    assert manifest.totals.tokens == manifest.counters["tokenize/tokens"]
    assert [part.path for part in manifest.partitions][:5] == [
        *(f"novels/shard-{index:05d}" for index in range(4)),
        "laws/shard-00000",
    ]
    sums = manifest.details["sources"]
    assert {name: sums[name]["documents"] for name in sums} == {"novels": 200, "laws": 100}
    assert sum(sums[name]["tokens"] for name in sums) == manifest.totals.tokens
    assert sum(manifest.details["lengths"].values()) == 300
    assert [(part.first_id, part.last_id) for part in manifest.partitions] == [
        (part.first_id, part.last_id) for part in source.manifest.partitions
    ]


def test_bytes_do_not_depend_on_batches_or_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tokenizer = clean(tmp_path, {"web": words(1, 400)}, bits=3), _file(tmp_path, trained())
    run(tokenize_step(tmp_path / "a", [source], tokenizer))
    monkeypatch.setattr(text_batches_module, "BATCH_BYTES", 777)
    monkeypatch.setattr("datakit.engine.task_grouping.SMALLEST", 1)
    run(tokenize_step(tmp_path / "b", [source], tokenizer))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_partition_without_documents_has_no_shard(tmp_path: Path) -> None:
    texts = [text for text in words(1, 40) if identity(text)[0] in "0123"]  # all in the first quarter
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, bits=2)))
    assert [shard.path for shard in cache.shards] == ["web/shard-00000"]
    assert cache.documents_count == len(texts)
    with pytest.raises(EmptyStageError, match="no document"):
        make_cache(tmp_path / "none", {"web": []})


def test_documents_without_a_token_are_counted_and_read_as_such(tmp_path: Path) -> None:
    """An empty text with nothing added: a row without tokens, and a shard without an array if it has no other."""
    texts = ["", *words(1, 30)]
    cache = open_cache(str(make_cache(tmp_path, {"empty": [""], "web": texts}, add="none")))
    assert [shard.tokens > 0 for shard in cache.shards] == [False, True]
    assert cache.documents_count == 32 == len(list(cache.documents()))
    assert sum(len(document.tokens) == 0 for document in cache.documents()) == 2
    assert cache.details.lengths["1"] == 2
    assert require_intact(cache) > 0


def test_batches_cover_a_partition_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_batches_module, "BATCH_BYTES", 1000)
    texts = [*words(1, 100), "long " * 1000]
    source = clean(tmp_path, {"web": texts})
    found = list(text_batches(str(tmp_path / source.manifest.partitions[0].path)))
    expected = documents("web", texts)
    assert [text for batch in found for text in batch.strings()] == expected["text"].to_pylist()
    assert [name for batch in found for name in batch.ids.to_pylist()] == expected["id"].to_pylist()
    assert all(batch.text_bytes <= 1000 or len(batch.ids) == 1 for batch in found)
    for batch in found:
        cuts = zip(batch.offsets.tolist(), batch.offsets.tolist()[1:], strict=False)
        assert [batch.data[start:stop].tobytes().decode() for start, stop in cuts] == batch.strings()


# --- special strings, fallback


def special_texts() -> list[str]:
    return ["a<|endoftext|>b", "<|endoftext|>", "<|endof", "two<|endoftext|><|endoftext|>", " <|endoftext|> ", "plain"]


def test_special_strings_are_tokens_or_text_as_the_recipe_says(tmp_path: Path) -> None:
    """Both libraries agree under both policies, through the stage too; the contract says which it was."""
    made = loaded()
    for policy in ("keep", "text"):
        fast, slow = (made.encoder(name, policy).encode_batch(special_texts()) for name in ("fastokens", "tokenizers"))
        assert (fast[0].tolist(), fast[1].tolist()) == (slow[0].tolist(), slow[1].tolist())
        assert (0 in fast[0]) == (policy == "keep")
        cache = open_cache(str(make_cache(tmp_path / policy, {"web": special_texts()}, special_strings=policy)))
        assert cache.contract.special_strings == {"keep": "as the tokenizer does", "text": "ordinary text"}[policy]
        tokens = np.concatenate([document.tokens[:-1] for document in cache.documents()])
        assert sorted(tokens.tolist()) == sorted(fast[0].tolist())
        assert (0 in cache.contract.golden[-1].ids) == (policy == "keep")


class PanicException(BaseException):
    """As Rust's panics arrive in Python: no Exception."""


def test_a_panic_while_loading_leads_to_the_reference_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panicking:
        @staticmethod
        def from_json_str(text: str) -> None:
            raise PanicException("index out of bounds")

    monkeypatch.setattr("datakit.tokenize.encoders.tokenizer.fastokens.Tokenizer", Panicking)
    cache = open_cache(str(make_cache(tmp_path, {"web": words(3, 50)})))
    assert (cache.contract.encoder, cache.contract.fallback) == ("tokenizers", "it panics: index out of bounds")

    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Panicking, "from_json_str", interrupted)
    with pytest.raises(KeyboardInterrupt):
        parse(trained(), "here")


# --- what the manifest says


def test_the_most_frequent_tokens_and_versions_are_in_the_manifest(tmp_path: Path) -> None:
    cache = open_cache(str(make_cache(tmp_path, {"web": words(1, 300)}, bits=2)))
    counts = np.bincount(cache.read(0, cache.tokens))
    frequent = cache.details.frequent
    assert len(frequent) == 32
    assert [count for _, count in frequent] == sorted((count for _, count in frequent), reverse=True)
    assert all(0 <= counts[token] - count <= 4 * 2 for token, count in frequent)
    assert frequent[0] == (int(counts.argmax()), int(counts.max()))
    assert cache.details.sources["web"].frequent == frequent
    assert cache.contract.encoder_version
    assert (cache.contract.fallback, cache.contract.long_texts) == ("", "parts")


def test_every_token_is_written_once(tmp_path: Path) -> None:
    """Bytes handed to the system for a byte of the cache, in a process that makes one."""
    source = clean(tmp_path, {"web": [f"{number} " + "words and more " * 20_000 for number in range(20)]})
    made = tokenize_step(tmp_path / "cache", [source], _file(tmp_path, trained()))

    def written() -> int:
        return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"])

    before = written()
    run(made)
    size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert written() - before <= 1.02 * size + 4096
