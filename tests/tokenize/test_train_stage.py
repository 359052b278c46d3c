"""Tests that a trained tokenizer depends only on the dataset."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import tokenizers

from datakit.cache.contract import Special
from datakit.cache.reader import open_cache
from datakit.engine.task import Output, StepInput
from datakit.errors import EmptyStageError, RecipeError
from datakit.tokenize.encoders.tokenizer import Tokenizer, parse
from datakit.tokenize.train_stage import NAME, Config, plan, train
from tests.support.caches import CHOICES, clean, contract, run
from tests.support.data import need_data
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import contents, documents, normalized, step, words
from tests.support.paths import REPOSITORY


def trained_on(root: Path, inputs: list[StepInput], **settings: object) -> Output:
    parameters = {**asdict(Config(vocabulary=500)), **settings}
    output, _ = run_plan_inline(plan(step(root / "tokenizer", NAME, inputs, **parameters)), str(root / "tokenizer"))
    return output


def test_processes_and_threads_train_the_same_tokenizer() -> None:
    """On real text with many words of equal count, in processes with different hash seeds and 1 and 4 threads."""
    folder = need_data()
    program = f"""
import hashlib, sys
import pyarrow.parquet as pq
from datakit.tokenize.train_stage import Config, train
texts = pq.read_table({str(folder / "text" / "tldr.parquet")!r})["text"].to_pylist()[:2000]
data, size = train([texts[:500], texts[500:]], Config(vocabulary=1500))
print(size, hashlib.sha256(data).hexdigest())
"""
    found = set()
    for threads in ("1", "4"):
        environment = {"PYTHONPATH": str(REPOSITORY), "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
    assert found.pop().startswith("1500 ")


def test_batches_do_not_change_the_tokenizer() -> None:
    texts = words(1, 300)
    one, _ = train([texts], Config(vocabulary=600))
    other, _ = train([texts[:7], texts[7:200], [], texts[200:]], Config(vocabulary=600))
    assert one == other


def test_tokenizer_is_byte_level_and_fast() -> None:
    data, size = train([words(1, 300)], Config(vocabulary=600, special=("<|endoftext|>", "<|pad|>")))
    tokenizer = parse(data, "here")
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.encoder("auto").name == "datakit"
    assert (size, tokenizer.reference.get_vocab_size()) == (600, 600)
    assert [tokenizer.reference.token_to_id(token) for token in ("<|endoftext|>", "<|pad|>")] == [0, 1]
    anything = "".join(chr(code) for code in (0, 9, 65, 233, 0x3042, 0x1F469, 0x10FFFF)) + " \n\n  x"
    assert tokenizer.reference.decode(tokenizer.reference.encode(anything).ids) == anything


def test_small_text_gives_a_small_vocabulary() -> None:
    _, size = train([["ab"]], Config(vocabulary=32_768))
    assert 257 <= size < 270


def test_sample_is_bounded_and_shared_by_sources(tmp_path: Path) -> None:
    texts = {"novels": words(1, 400), "laws": words(2, 100)}
    source = clean(tmp_path / "clean", texts, bits=2)
    total = sum(entry.manifest.totals.text_bytes or 0 for entry in source[:-1])
    assert trained_on(tmp_path / "all", source).details == {"sampled_bytes": total}
    wanted = total // 3
    assert trained_on(tmp_path / "third", source, sample_bytes=wanted).details["sampled_bytes"] in (
        wanted,
        wanted - 1,
    )

    sample, room = [], 0
    for name, group in texts.items():
        room = wanted * sum(len(text.encode()) for text in group) // total
        for text in documents(name, group)["text"].to_pylist():
            if room > 0:
                sample.append(text[:room])  # these texts are ASCII
                room -= len(text)
    expected, _ = train([sample], Config(vocabulary=500))
    assert (tmp_path / "third" / "tokenizer" / "tokenizer.json").read_bytes() == expected


def test_stage_writes_one_file_and_describes_it(tmp_path: Path) -> None:
    source = clean(tmp_path / "clean", {"web": words(1, 200)})
    (partition,) = trained_on(tmp_path, source).partitions
    data = (tmp_path / "tokenizer" / "tokenizer.json").read_bytes()
    assert (partition.path, partition.rows, partition.bytes) == ("tokenizer.json", 500, len(data))
    assert contents(tmp_path / "tokenizer") == {"tokenizer.json": data}
    with pytest.raises(EmptyStageError, match="no text to train"):
        trained_on(tmp_path / "none", clean(tmp_path / "void", {"web": []}))


def test_cache_is_made_with_the_trained_tokenizer(tmp_path: Path) -> None:
    source = clean(tmp_path / "clean", {"web": words(1, 200)})
    trained_on(tmp_path, source)
    tokenizer = normalized(tmp_path, "unused", [])  # any finished step: only role and directory matter
    tokenizer = StepInput(NAME, None, str(tmp_path / "tokenizer"), tokenizer.manifest)
    settings = {**CHOICES, "tokenizer": "train"}
    run(step(tmp_path / "cache", "tokenize", [*source, contract(tmp_path, settings, [tokenizer])], **settings))
    cache = open_cache(str(tmp_path / "cache"))
    data = (tmp_path / "tokenizer" / "tokenizer.json").read_bytes()
    assert (tmp_path / "cache" / "tokenizer.json").read_bytes() == data
    assert cache.contract.tokenizer_sha256 == hashlib.sha256(data).hexdigest()
    assert cache.contract.eos == Special("<|endoftext|>", 0)
    reference = tokenizers.Tokenizer.from_str(data.decode())
    texts = documents("web", words(1, 200))["text"].to_pylist()
    assert [reference.decode(document.tokens.tolist()) for document in cache.documents()] == texts


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(RecipeError, match="vocabulary is 200, but bytes and special tokens alone need 257"):
        Config(vocabulary=200)
    with pytest.raises(RecipeError, match="sample_bytes is 0"):
        Config(sample_bytes=0)
