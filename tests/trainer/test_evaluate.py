"""Bits per byte are exact, tags have parents, and evaluation depends on neither batches nor devices."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.trainer.ngram import Counts, bits_per_byte, predictions, score
from datakit.errors import TokenizerError, UsageError
from datakit.loader import Loader
from datakit.trainer.config import Evaluation
from datakit.trainer.evaluate import MOST_IDS, Totals, check_tags, count, evaluate, summary, token_byte_lengths
from datakit.trainer.train import train, trainer_of
from tests.support.data import need_data
from tests.support.trainer.trainer_runs import Rows, TextBytes, growing_batches, silent, small_run, tiny_run

SENTENCE = b"It was the best of times, it was the worst of times. " * 40


def test_bits_per_byte_are_total_bits_over_total_bytes() -> None:
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 9, (4, 6))
    losses = generator.random((4, 6)).astype(np.float32)
    weights_ = (generator.random((4, 6)) < 0.7).astype(np.float32)
    lengths = np.arange(9) % 4
    whole = count(losses, weights_, tokens, lengths)
    nats = bytes_ = predicted = 0.0
    for row in range(4):
        for position in range(5):
            if weights_[row, position]:
                nats += float(losses[row, position])
                bytes_ += float(lengths[tokens[row, position + 1]])
                predicted += 1
    assert (whole.tokens, whole.bytes) == (predicted, bytes_)
    assert whole.bits_per_byte == pytest.approx(nats / math.log(2) / bytes_, rel=1e-12)
    halves = sum((count(losses[i : i + 2], weights_[i : i + 2], tokens[i : i + 2], lengths) for i in (0, 2)), Totals())
    assert halves.nats == pytest.approx(whole.nats, rel=1e-12)
    assert (halves.tokens, halves.bytes) == (whole.tokens, whole.bytes)


def test_tags_have_parents_and_macro_means() -> None:
    totals = {
        "code/python": Totals(100.0, 50, 80),
        "code/c": Totals(30.0, 10, 20),
        "web": Totals(400.0, 200, 900),
    }
    figures = summary(totals)
    assert figures["eval/code/python/loss"] == 2.0
    assert figures["eval/code/micro_loss"] == pytest.approx(130 / 60)
    assert figures["eval/code/macro_loss"] == 2.5
    assert figures["eval/code/bpb"] == pytest.approx(130 / math.log(2) / 100)
    assert figures["eval/code/macro_bpb"] == pytest.approx((100 / 80 + 30 / 20) / 2 / math.log(2))
    assert figures["eval/loss"] == pytest.approx(530 / 260)
    assert figures["eval/macro_loss"] == pytest.approx(7 / 3)
    assert figures["eval/macro_bpb"] == pytest.approx((100 / 80 + 30 / 20 + 400 / 900) / 3 / math.log(2))
    assert not any("bpb" in name for name in summary({"web": Totals(4.0, 2, 0)}))


def test_batches_and_devices_do_not_change_metrics() -> None:
    run = small_run()
    text, lengths = TextBytes(SENTENCE, rows=16), np.ones(256, np.int64)
    rows = text.batch(0)
    parts = [Rows(rows.tokens[part], rows.segments[part], rows.loss_mask[part]) for part in (slice(8), slice(8, 16))]
    first = parts[0]
    padding = Rows(np.zeros_like(first.tokens), np.zeros_like(first.segments), np.zeros_like(first.loss_mask))

    found = []
    for devices, batches in ((1, [rows]), (8, [*parts, padding])):
        trainer = trainer_of(run, jax.devices()[:devices])
        with jax.set_mesh(trainer.mesh):
            state = trainer.fresh(0)
        found.append(evaluate(trainer, state["params"], state["model"], {"it": lambda b=batches: b}, lengths))
    for figures in found[1:]:
        assert figures["eval/it/bpb"] == pytest.approx(found[0]["eval/it/bpb"], rel=1e-6)
    with pytest.raises(UsageError, match="'it' has no token"):
        evaluate(trainer, state["params"], state["model"], {"it": lambda: [padding]}, lengths)


@pytest.mark.parametrize("name", ["gpt2.json", "gpt-neox-olmo-dolma-v1_5.json"])
def test_token_bytes_sum_to_the_text_s_bytes(name: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = need_data() / "tokenizers" / name
    lengths = token_byte_lengths(path.read_bytes(), name)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    for text in (
        "plain words\n\n\tand  runs   of spaces",
        "naïve — 東京タワー 🗼",
        "def f(x):\n    return x**2\n" * 50,
    ):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert lengths[ids].sum() == len(text.encode())
    assert lengths[tokenizer.token_to_id("<|endoftext|>")] == 0


def test_other_vocabularies_are_refused() -> None:
    data = json.dumps({"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}).encode()
    with pytest.raises(TokenizerError, match=r"my.json has no byte-level vocabulary"):
        token_byte_lengths(data, "my.json")


def hostile(**changes: object) -> bytes:
    file = {"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    return json.dumps(file | changes).encode()


TOKEN = {"id": 1, "content": "x", "special": False}
HOSTILE = {
    "no JSON": b"{",
    "no UTF-8": hostile(model={"vocab": {"Z": 0}}).replace(b"Z", b"\xff"),
    "a list": b"[]",
    "deeply nested": hostile(decoder="Z").replace(b'"Z"', b"[" * 100_000 + b"]" * 100_000),
    "no model": hostile(model=None),
    "an empty vocabulary": hostile(model={"vocab": {}}),
    "a list as its vocabulary": hostile(model={"vocab": [["a", 0.0]]}),
    "an id that takes all memory": hostile(model={"vocab": {"a": MOST_IDS}}),
    "a negative id": hostile(model={"vocab": {"a": 0, "b": -1}}),
    "an id that is not a number": hostile(model={"vocab": {"a": "0"}}),
    "an added id that takes all memory": hostile(added_tokens=[TOKEN | {"id": 1 << 40}]),
    "a negative added id": hostile(added_tokens=[TOKEN | {"id": -1}]),
    "an added token that is no object": hostile(added_tokens=[7]),
    "an added token without content": hostile(added_tokens=[{"id": 1, "special": False}]),
    "an object of added tokens": hostile(added_tokens={"a": TOKEN}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tokenizer_file_gives_no_lengths(case: str) -> None:
    with pytest.raises(TokenizerError, match=r"^my.json has no byte-level vocabulary"):
        token_byte_lengths(HOSTILE[case], "my.json")


TEXT = b"It was the best of times, it was the worst of times. " * 40


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (
            ["code", "code/python", "web"],
            "'code' is the parent of 'code/python'.*rename the parent, e.g. to 'code/all'",
        ),
        (["a/b", "a/b/c/d"], "'a/b' is the parent of 'a/b/c/d'"),
        (["ema", "web"], "'ema': eval/ema/ holds the metrics of averaged weights; rename this evaluation"),
        (["ema/late"], "'ema/late': eval/ema/"),
        (["length_16"], "'length_16': eval/length_16/ holds the metrics of sequences of another length; rename"),
    ],
)
def test_tags_with_clashing_metric_names_are_refused(tags: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        check_tags(tags)
    evaluations = {tag: lambda: TextBytes(TEXT, seed=5).iterate(0, 1) for tag in tags}
    with pytest.raises(UsageError, match=message):
        train(small_run(), TextBytes(TEXT), str(tmp_path), evaluations=evaluations)
    assert not list(tmp_path.glob("*/*/metrics.jsonl"))


def test_unrelated_tags_are_accepted() -> None:
    check_tags(["code/python", "code/c", "codes", "web/ema"])


def test_ngram_baselines_equal_their_formulas() -> None:
    text = TextBytes(b"abracadabra " * 50, rows=4, length=32)
    batches, lengths = [text.batch(step) for step in range(3)], np.ones(256, np.int64)
    counts = Counts.of(batches, 256)
    assert counts.tokens == sum(len(predictions(batch)[0]) for batch in batches) == 3 * 4 * 31
    assert counts.unigram().sum() == pytest.approx(1.0)
    for token in (ord("a"), ord("z")):
        everything = counts.bigram_of(np.full(256, token), np.arange(256), 2.0)
        assert everything.sum() == pytest.approx(1.0)
    scored = score(counts, batches, lengths)
    unigram, bigram = scored["unigram"][0], scored["bigram"][0]
    assert bits_per_byte(bigram) < bits_per_byte(unigram) < 8
    assert bigram.tokens == bigram.bytes == counts.tokens


def test_every_length_of_the_training_is_evaluated(tmp_path: Path) -> None:
    run = tiny_run(steps=4, evaluation=Evaluation(every_length=True))
    sets = {length: {"t": lambda length=length: TextBytes(length=length).iterate(0, 1)} for length in (16, 32)}

    def others(step: int) -> dict[int, Any]:
        return {16: sets[16]} if step > 3 else {32: sets[32]}

    with Loader(growing_batches()) as loader:
        outcome = train(run, loader, str(tmp_path), evaluations=sets[32], other_lengths=others, say=silent)
    figures = outcome.figures
    assert figures["eval/t/loss"] != figures["eval/length_16/t/loss"] == figures["eval/length_16/loss"]
    assert "eval/ema/length_16/t/loss" in figures
    assert not any(name.startswith("eval/length_32/") for name in figures)


def test_every_length_without_another_length_is_refused(tmp_path: Path) -> None:
    run = tiny_run(evaluation=Evaluation(every_length=True))
    with pytest.raises(UsageError, match="every_length = True has no effect if all sequences have the same length"):
        train(run, TextBytes(), str(tmp_path), evaluations={"t": lambda: TextBytes().iterate(0, 1)}, say=silent)


def test_waiting_for_batches_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tiny_run())
    state = trainer.fresh(0)

    def late() -> Iterator[Any]:
        time.sleep(0.2)
        yield from TextBytes().iterate(0, 1)

    found = evaluate(trainer, state["params"], state["model"], {"t": late})
    assert 0.2 <= found["eval/loading_time"] <= found["eval/total_time"]


def test_evaluation_with_a_capacity_is_refused_before_training_unless_devices_hold_whole_blocks(tmp_path: Path) -> None:
    tags = {"a": lambda: TextBytes().iterate(0, 1)}
    run = small_run(
        model=replace(small_run().model, capacity_rows=3, capacity_groups=2),
        evaluation=Evaluation(capacity_factors=(1.0,)),
    )
    lines = list[str]()
    with pytest.raises(UsageError, match="which are not whole blocks of 96 tokens"):
        train(run, TextBytes(), str(tmp_path), evaluations=tags, devices=jax.devices()[:1], say=lines.append)
    assert "fresh start" not in lines
