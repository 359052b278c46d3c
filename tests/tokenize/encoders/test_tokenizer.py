"""Tests that fastokens and the reference encode alike, and of loading tokenizers."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from datakit.cache import zarr_arrays
from datakit.cache.contract import Contract, frame
from datakit.cache.reader import open_cache
from datakit.errors import TokenizerError
from datakit.tokenize import text_batches as text_batches_module
from datakit.tokenize.encoders.base import Encoder, FastEncoder
from datakit.tokenize.encoders.tokenizer import Tokenizer, load, load_for_tasks, parse
from datakit.tokenize.make_contract import make_contract
from tests.support.caches import load_tokenizer, make_cache, trained
from tests.support.data import REAL_TOKENIZERS, data_dir, need_data, texts_of
from tests.support.partitions import identity, words
from tests.support.paths import REPOSITORY
from tests.support.tokens.tokenizer_kinds import KINDS, small_tokenizer

QUICK = "text/nltk-inaugural.jsonl.gz"


def token_rows() -> list[Any]:
    """A parameter for each file and tokenizer of TOKENS.tsv; all but the smallest file are soaks."""
    table = data_dir() / "TOKENS.tsv"
    if not table.exists():
        return [pytest.param([], marks=pytest.mark.skip(reason=f"no real texts at {data_dir()}"))]
    rows = [line.split("\t") for line in table.read_text().splitlines()[1:]]
    assert len(rows) == 26
    slow = pytest.mark.soak
    return [pytest.param(row, id=f"{row[0]}-{row[1]}", marks=() if row[0] == QUICK else slow) for row in rows]


def batches_of(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Batches of about the stage's size."""
    start = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size >= text_batches_module.BATCH_BYTES:
            yield texts[start : index + 1]
            start, size = index + 1, 0
    yield texts[start:]


@functools.cache
def real_encoder(name: str) -> tuple[Encoder, Contract]:
    tokenizer = load(str(need_data() / "tokenizers" / REAL_TOKENIZERS[name]))
    encoder = tokenizer.encoder("auto")
    return encoder, make_contract(tokenizer, encoder, "eos", None, None)


@functools.lru_cache(2)
def real_texts(file: str) -> list[str]:
    return texts_of(need_data() / file)


@pytest.mark.parametrize("row", token_rows())
def test_real_files_give_the_references_tokens(row: list[str]) -> None:
    """End-of-text id, documents, count and sha256 of the ids, each document followed by end-of-text."""
    file, name, eos, documents, _, tokens, sha256, *_ = row
    texts, (encoder, contract) = real_texts(file), real_encoder(name)
    digest, count = hashlib.sha256(), 0
    for batch in batches_of(texts):
        ids, _ = frame(*encoder.encode_batch(batch), contract)
        digest.update(ids.astype("<u4").tobytes())
        count += len(ids)
    assert encoder.name == "datakit"
    assert contract.eos is not None
    assert (contract.eos.id, len(texts), count, digest.hexdigest()) == (int(eos), int(documents), int(tokens), sha256)


@pytest.mark.parametrize(("loader", "most"), [("load", 2), ("load_for_tasks", 1)])
def test_loading_starts_no_thread_and_encoding_keeps_its_cpus(tmp_path: Path, loader: str, most: int) -> None:
    """The fork server loads tokenizers; a fork would copy the locks of its threads, but not the threads. A tokenizer
    that was loaded for tasks uses one CPU.
    """
    (tmp_path / "tokenizer.json").write_bytes(trained())
    program = f"""
import json, os, sys, time
from pathlib import Path
from datakit.tokenize.encoders.threads import limit_threads
from datakit.tokenize.encoders.tokenizer import {loader} as load
def threads(): return sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
cpus = int(sys.argv[1])
tokenizer = load({str(tmp_path / "tokenizer.json")!r})
loaded = threads()
encoder = tokenizer.encoder("auto")
before = os.sched_getaffinity(0)
limit_threads(encoder, cpus)
with open({str(REPOSITORY / "README.md")!r}) as file: text = file.read()
texts = [f"{{number}} {{text}}" for number in range(300)]
wall, cpu = time.perf_counter(), time.process_time()
for _ in range(3): encoder.encode_batch(texts)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
affinities = [sorted(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()]
print(json.dumps([loaded, threads(), cpu / wall, affinities == [sorted(before)] * len(affinities)]))
"""
    for cpus in range(1, most + 1):
        command = [sys.executable, "-c", program, str(cpus)]
        environment = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        loaded, working, share, restored = json.loads(done.stdout)
        assert {name for name in loaded if not name.startswith("python")} <= {"jemalloc_bg_thd"}
        assert len(working) - len(loaded) <= cpus - 1
        assert share < cpus * 1.15
        assert restored


@pytest.mark.parametrize("supported", [True, False])
def test_tokenizer_is_prepared_before_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    """A task neither searches for the places to cut at, nor builds tables, nor makes the first call of fastokens, which
    is not even loaded if datakit's own encoder supports the tokenizer.
    """
    path = tmp_path / "tokenizer.json"
    path.write_bytes(trained())
    if not supported:
        monkeypatch.setattr("datakit.tokenize.encoders.bpe.model.model_of", lambda definition: (None, "not supported"))
    calls: list[str] = []
    encode = FastEncoder.encode_batch

    def noted(self: FastEncoder, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        calls.append(threading.current_thread().name)
        return encode(self, texts)

    monkeypatch.setattr(FastEncoder, "encode_batch", noted)
    prepared = load_for_tasks(str(path))
    assert len(calls) == (not supported)
    assert threading.main_thread().name not in calls  # whose copy of the table every child would copy once more
    loaded = load(str(path))
    assert isinstance(prepared, Tokenizer)
    assert isinstance(loaded, Tokenizer)
    texts = [*words(3, 20), "e\N{COMBINING GRAVE ACCENT}"]
    expected = loaded.encoder().encode_batch(texts)
    monkeypatch.setattr("datakit.tokenize.encoders.tokenizer.find_splitter", None)
    monkeypatch.setattr("datakit.tokenize.encoders.bpe.model.model_of", None)
    monkeypatch.setattr("datakit.tokenize.encoders.word_models.refusal", None)
    if supported:
        monkeypatch.setattr("datakit.tokenize.encoders.tokenizer.fastokens.Tokenizer", None)
    encoder = prepared.encoder()
    assert prepared.long_texts(encoder).splitter is not None
    assert [array.tolist() for array in encoder.encode_batch(texts)] == [array.tolist() for array in expected]


@pytest.mark.parametrize(("highest", "compressed"), [(65_535, False), (65_536, True)])
def test_tensorstore_is_prepared_if_the_ids_do_not_fit_in_uint16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, highest: int, compressed: bool
) -> None:
    """The highest id decides, and not the number of entries, which is 400."""
    definition = json.loads(trained())
    vocabulary = definition["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.__getitem__)] = highest
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    calls: list[bool] = []
    monkeypatch.setattr(zarr_arrays, "prepare", lambda: calls.append(True))
    tokenizer = load_for_tasks(str(tmp_path / "tokenizer.json"))
    assert (tokenizer.vocabulary_size, bool(calls)) == (highest + 1, compressed)


def test_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
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


@functools.cache  # because its training is not deterministic
def word_piece() -> bytes:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))  # pyright: ignore[reportCallIssue]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(words(0, 200), trainer)
    return tokenizer.to_str().encode()


def test_reference_encodes_if_fastokens_cannot_load(tmp_path: Path) -> None:
    texts = words(3, 50)
    cache = open_cache(str(make_cache(tmp_path, {"web": texts}, word_piece(), eos="[SEP]")))
    assert cache.contract.encoder == "tokenizers"
    reference = tokenizers.Tokenizer.from_str(word_piece().decode())
    by_id = {identity(text): text for text in texts}
    for document in cache.documents():
        assert document.tokens.tolist() == [*reference.encode(by_id[document.id]).ids, 1]
    with pytest.raises(TokenizerError, match="fastokens cannot be used for this tokenizer"):
        make_cache(tmp_path / "insisting", {"web": texts}, word_piece(), eos="[SEP]", encoder="fastokens")


@pytest.mark.parametrize("kind", KINDS)
def test_character_that_libraries_classify_differently_is_left_to_the_reference(kind: str) -> None:
    """fastokens calls U+180E white space, unless only a ByteLevel step cuts."""
    made = small_tokenizer(kind)
    choose, around = random.Random(kind), ["  ", "a", "'s", "12", "\r\n", "!", "é", "\u1820", "\u3000", "漢", "\u0301"]
    mixed = ["".join(choose.choice([" ", "\u180e", *around]) for _ in range(12)) for _ in range(2000)]
    texts = ["a  b", "  \u180e", " \u180e\u180e ", "", "the 12345", "a\u180e  \u180eb", *mixed]
    expected, counts = made.reference_encoder().encode_batch(texts)
    for chosen in (texts, texts[1:3], texts[:1]):
        found = made.encoder("fastokens").encode_batch(chosen)
        begin, end = texts.index(chosen[0]), texts.index(chosen[-1]) + 1
        assert found[1].tolist() == counts[begin:end].tolist()
        assert found[0].tolist() == expected[counts[:begin].sum() : counts[:end].sum()].tolist()
    assert ("\u180e" in made.disputed) == (kind != "byte_fallback")


def special_texts() -> list[str]:
    return ["a<|endoftext|>b", "<|endoftext|>", "<|endof", "two<|endoftext|><|endoftext|>", " <|endoftext|> ", "plain"]


def test_recipe_decides_on_special_strings(tmp_path: Path) -> None:
    """Both libraries agree under both policies, also through the stage; the contract records the policy."""
    made = load_tokenizer()
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
    """Rust's panics arrive in Python as a direct subclass of BaseException."""


def test_panic_while_loading_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panicking:
        @staticmethod
        def from_json_str(text: str) -> None:
            raise PanicException("index out of bounds")

    monkeypatch.setattr("datakit.tokenize.encoders.tokenizer.fastokens.Tokenizer", Panicking)
    monkeypatch.setattr("datakit.tokenize.encoders.bpe.model.model_of", lambda definition: (None, "not supported"))
    cache = open_cache(str(make_cache(tmp_path, {"web": words(3, 50)})))
    assert (cache.contract.encoder, cache.contract.fallback) == ("tokenizers", "it panics: index out of bounds")

    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Panicking, "from_json_str", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _ = load_tokenizer().fast


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {
            "model": {
                "type": "BPE",
                "vocab": {"a": 0, "b": 1, "ab": 2},
                "merges": ["a b"],
                "continuing_subword_prefix": "###",
            }
        },
    ],
)
def test_file_on_which_the_reference_panics_is_refused(part: dict[str, object]) -> None:
    whole = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    with pytest.raises(TokenizerError, match=r"here is not a tokenizer\.json that `tokenizers` can read"):
        parse(json.dumps(whole | part).encode(), "here")
