"""Measures the search for personal data: speed beside datatrove's PIIFormatter, growth on hostile texts, and recall.

    python -m benchmarks.personal --peer PATH_OF_AN_INTERPRETER_WITH_DATATROVE --plant 10000

The input is all real text of `shared/data/text` (121 MB, 43,498 documents), in batches of 1,000 documents. Each round
runs both programs once, one after the other, and the medians of five rounds are printed, in CPU-seconds and MB (10^6
bytes) of text per CPU-second; reading and decompression are not counted. PIIFormatter replaces e-mail addresses and
public IPv4 addresses; datakit finds all 17 kinds, or the same two kinds, and then masks them, too. `--plant 10000`
plants that many items in those of the texts that have no findings, and prints recall and precision by kind.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Iterator

import pyarrow as pa

from datakit.annotate.editing import masking
from datakit.annotate.editing.masking import Action
from datakit.annotate.personal.config import PersonalConfig
from datakit.annotate.personal.kinds import KINDS
from tests.support.annotate.planting import planted, score, spans_of
from tests.support.data import need_data, texts_of

BATCH = 1000  # documents
HOSTILE = (
    *("1.2.3.4.", "1.2.3.4 ", "a@", "a@b.de ", "+49 ", "4111 ", "DE89 3704 ", "::", "token='", "eyJ.", "AKIA", "xoxb-"),
    *("-----BEGIN PRIVATE KEY-----\n", "\n", "漢"),
)
ALL, SAME = KINDS, ("email", "email_reserved", "ipv4")  # PIIFormatter also replaces reserved domains
PEER = """
import json, sys, time
from datatrove.pipeline.formatters import PIIFormatter
texts = [json.loads(line) for line in sys.stdin]
formatter = PIIFormatter()
start = time.process_time()
changed = sum(formatter.format(text) != text for text in texts)
print(json.dumps([time.process_time() - start, changed]))
"""


def all_texts() -> list[str]:
    """Return the texts of all files."""
    return [text for path in sorted((need_data() / "text").iterdir()) for text in texts_of(path)]


def batches(texts: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the texts in batches."""
    for first in range(0, len(texts), BATCH):
        yield pa.RecordBatch.from_arrays([pa.array(texts[first : first + BATCH], pa.large_string())], names=["text"])


def ours(inputs: list[pa.RecordBatch], kinds: tuple[str, ...], mask: bool) -> tuple[float, int]:
    """Return the CPU-seconds of the search (and of masking), and the number of documents with findings."""
    annotator, found = PersonalConfig(kinds).annotator(), 0
    actions = {kind: Action("mask", f"<{kind}>") for kind in kinds}
    start = time.process_time()
    for batch in inputs:
        spans = annotator.annotate(batch).column("spans")
        if mask:
            found += int((masking.edit(batch.column("text"), spans, actions).edits.to_numpy() > 0).sum())
        else:
            found += int((spans.value_lengths().to_numpy() > 0).sum())
    return time.process_time() - start, found


def peer(interpreter: str, lines: bytes) -> tuple[float, int]:
    """Return the CPU-seconds of PIIFormatter, and the number of texts that it changes."""
    done = subprocess.run([interpreter, "-c", PEER], input=lines, stdout=subprocess.PIPE, check=True)
    seconds, changed = json.loads(done.stdout.splitlines()[-1])
    return seconds, changed


def compare(texts: list[str], interpreter: str, rounds: int) -> None:
    """Print the medians of both programs."""
    size, inputs = sum(len(text.encode()) for text in texts), list(batches(texts))
    lines = "\n".join(map(json.dumps, texts)).encode()
    runs: dict[str, list[tuple[float, int]]] = {}
    for _ in range(rounds):
        runs.setdefault("datakit, 17 kinds", []).append(ours(inputs, ALL, mask=False))
        runs.setdefault("datakit, 17 kinds, masked", []).append(ours(inputs, ALL, mask=True))
        runs.setdefault("datakit, e-mail and IPv4, masked", []).append(ours(inputs, SAME, mask=True))
        if interpreter:
            runs.setdefault("datatrove PIIFormatter", []).append(peer(interpreter, lines))
    print(f"{len(texts):,} documents, {size / 1e6:.1f} MB")
    for name, results in runs.items():
        seconds = statistics.median(result[0] for result in results)
        print(f"{name:34} {seconds:6.2f} CPU-s {size / seconds / 1e6:5.0f} MB per CPU-s, {results[0][1]:,} documents")


def growth() -> None:
    """Print the time of 1 MB and of 4 MB of each hostile text."""
    for piece in HOSTILE:
        seconds = []
        for size in (1_000_000, 4_000_000):
            inputs = list(batches([piece * (size // len(piece.encode()))]))
            seconds.append(statistics.median(ours(inputs, ALL, mask=False)[0] for _ in range(5)))
        ratio = seconds[1] / seconds[0]
        print(f"{piece!r:14} 1 MB {seconds[0] * 1e3:6.1f} ms, 4 MB {seconds[1] * 1e3:6.1f} ms, ratio {ratio:.1f}")


def recall(texts: list[str], items: int) -> None:
    """Print recall and precision of planted items by kind."""
    clean = [text for text, spans in zip(texts, spans_of(texts), strict=True) if not spans]
    result = score(planted(clean, items, seed=7))
    for kind, count in sorted(result.items.items()):
        exact, wrong = result.exact[kind], result.wrong[kind]
        print(f"{kind:15} {count:4} items, recall {exact / count:.3f}, precision {exact / (exact + wrong):.3f}")


def main() -> None:
    """Print all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="", help="an interpreter with datatrove")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plant", type=int, default=0, help="the number of items to plant")
    options = parser.parse_args()
    masking.warm()
    texts = all_texts()
    compare(texts, options.peer, options.rounds)
    growth()
    if options.plant:
        recall(texts, options.plant)


if __name__ == "__main__":
    main()
