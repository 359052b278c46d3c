"""Measures the annotators `words` and `urls`: CPU-seconds by size of the list, with peers in the same run, and the
memory of a list of 1,000,000 entries.

    python -m benchmarks.lists words [ROUNDS]          # against Python sets and RE2, on the 121 MB of real text
    python -m benchmarks.lists urls [PYTHON]           # PYTHON: an interpreter that has datatrove
    python -m benchmarks.lists memory

Of the entries of a list of words, a tenth are drawn at random from the different words and pairs of words of a quarter
of the texts; the others are random letters. `frequent` are the 10,000 most frequent words, so most words of a text are
found. Figures are medians of 5 rounds, in which the programs take turns; loading lists and kernels does not count. The
peers get a sample of the texts, because they are slow.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import re2

from datakit.annotate.annotator import Annotator
from datakit.annotate.lists.config import UrlList, UrlsConfig, WordList, WordsConfig
from tests.support.data import need_data, texts_of

BATCH_BYTES = 4 << 20
URLS = 400_000
ROUNDS = 5


def batches_of(texts: Sequence[str], column: str) -> list[pa.RecordBatch]:
    """Return the texts in batches of about `BATCH_BYTES`."""
    ends = np.cumsum([len(text.encode()) for text in texts]) // BATCH_BYTES
    cuts = np.flatnonzero(np.diff(ends)) + 1
    parts = [pa.array(part, pa.large_string()) for part in np.split(np.array(texts, object), cuts)]
    return [pa.record_batch({column: part}) for part in parts if len(part)]


def all_texts() -> list[str]:
    """Return all real texts."""
    return [text for path in sorted((need_data() / "text").glob("*.*")) for text in texts_of(path)]


def random_entries(count: int, generator: np.random.Generator, letters: str = "etaoinshrdlu") -> list[str]:
    """Return different strings of 5 to 14 random letters."""
    found: dict[str, None] = {}
    while len(found) < count:
        sizes = generator.integers(5, 15, size=count)
        picked = generator.integers(len(letters), size=(count, 14))
        rows = np.array([*letters])[picked]
        found |= dict.fromkeys("".join(row[:size]) for row, size in zip(rows, sizes, strict=True))
    return [*found][:count]


def word_entries(texts: Sequence[str], count: int) -> list[str]:
    """Return the entries of a list of words; see the module's docstring."""
    generator, different = np.random.default_rng(count), dict[str, None]()
    for text in texts[::4]:
        words = re.findall(r"[a-z]{4,}", text.lower())
        different |= dict.fromkeys(words) | dict.fromkeys(map(" ".join, itertools.pairwise(words)))
    pool = [*different]
    chosen = dict.fromkeys(pool[i] for i in generator.permutation(len(pool))[: count // 10])
    fill = [one for one in random_entries(count, generator) if one not in chosen]
    return [*chosen, *fill[: count - len(chosen)]]


def rounds_of(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median CPU-seconds of each side; the sides take turns."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            start = time.process_time()
            work()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def run_all(annotator: Annotator, batches: Sequence[pa.RecordBatch]) -> None:
    """Annotate all batches."""
    for batch in batches:
        annotator.annotate(batch)


def words_annotator(entries: Sequence[str], folder: Path, kind: str = "words") -> Annotator:
    """Return the annotator of one list, which is written to the folder."""
    path = folder / "list.txt"
    path.write_text("\n".join(entries))
    return WordsConfig({"x": WordList(str(path), kind)}).annotator()


def with_sets(texts: Sequence[str], entries: Sequence[str]) -> int:
    """Count words and pairs of words as a Python program would: with a regular expression and a set."""
    known, found = set(entries), 0
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        found += sum(word in known for word in words)
        found += sum(f"{one} {other}" in known for one, other in itertools.pairwise(words))
    return found


def with_re2(texts: Sequence[str], entries: Sequence[str]) -> int:
    """Count occurrences with one regular expression of all entries."""
    options = re2.Options()
    options.max_mem, options.case_sensitive = 1 << 30, False
    pattern = re2.compile(r"\b(?:" + "|".join(re.escape(one) for one in entries) + r")\b", options)
    return sum(1 for text in texts for _ in pattern.finditer(text))


def words(rounds: int = ROUNDS) -> None:
    """Print MB per CPU-second for lists of words and of substrings."""
    texts = all_texts()
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    batches, sample = batches_of(texts, "text"), texts[:: len(texts) // 1000]
    sample_megabytes = sum(len(text.encode()) for text in sample) / 1e6
    counted = Counter(word for text in texts for word in re.findall(r"\w+", text.lower()))
    lists = {f"{count:,}": word_entries(texts, count) for count in (10_000, 1_000_000)}
    lists["10,000 frequent"] = [word for word, _ in counted.most_common(10_000) if word.isascii() and len(word) > 1]
    for kind in ("words", "substrings"):
        for name, entries in lists.items():
            with tempfile.TemporaryDirectory() as folder:
                annotator = words_annotator(entries, Path(folder), kind)
            run_all(annotator, batches[:1])
            found = sum(sum(annotator.annotate(batch)["x"].to_pylist()) for batch in batches)
            sides: dict[str, Callable[[], object]] = {"datakit": lambda one=annotator: run_all(one, batches)}
            if kind == "words":
                sides["sets"] = lambda one=entries: with_sets(sample, one)
            if name == "10,000" and kind == "words":
                sides["re2"] = lambda one=entries: with_re2(sample[::10], one)
            taken = rounds_of(sides, rounds)
            sizes = {"datakit": megabytes, "sets": sample_megabytes,
                     "re2": sum(len(text.encode()) for text in sample[::10]) / 1e6}  # fmt: skip
            speeds = ", ".join(f"{side} {sizes[side] / seconds:.1f}" for side, seconds in taken.items())
            print(f"{kind}, {name} entries: {found:,} occurrences in {megabytes:.0f} MB; MB per CPU-second: {speeds}")


def url_list(count: int, generator: np.random.Generator) -> list[str]:
    """Return the URLs of invented pages: hosts of the form a.b.c and paths of some words."""
    names = random_entries(50_000, generator)
    tops = ["com", "org", "net", "de", "co.uk", "io"]
    picks = generator.integers(len(names), size=(count, 5))
    return [
        f"https://{'www.' if i % 2 else ''}{names[a]}.{tops[i % 6]}/{names[b]}/{names[c]}-{names[d]}?id={e}"
        for i, (a, b, c, d, e) in enumerate(picks.tolist())
    ]


def urls(python: str = "") -> None:
    """Print URLs per CPU-second for a list of domains and one of substrings, and those of datatrove's URLFilter."""
    generator = np.random.default_rng(0)
    found = url_list(URLS, generator)
    hosts = [url.split("/")[2].removeprefix("www.") for url in found]
    domains = [*dict.fromkeys([*hosts[:5000], *(f"{one}.com" for one in random_entries(1_000_000, generator))])]
    substrings = random_entries(1000, generator)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "domains.txt").write_text("\n".join(domains))
        (folder / "substrings.txt").write_text("\n".join(substrings))
        (folder / "urls.json").write_text(json.dumps(found))
        lists = {"domains": UrlList(str(folder / "domains.txt")),
                 "substrings": UrlList(str(folder / "substrings.txt"), "substrings")}  # fmt: skip
        batches, sides = batches_of(found, "url"), {}
        for kind in ("domains", "substrings", "both"):
            chosen = lists if kind == "both" else {kind: lists[kind]}
            annotator = UrlsConfig(chosen).annotator()
            sides[kind] = functools.partial(run_all, annotator, batches)
        taken = rounds_of(sides, ROUNDS)
        both = UrlsConfig(lists).annotator()
        table = pa.Table.from_batches([both.annotate(batch) for batch in batches])
        hits = {one: sum(value > 0 for value in table[one].to_pylist()) for one in lists}
        size = sum(len(url) for url in found) / 1e6
        print(f"{URLS:,} URLs ({size:.0f} MB); {len(domains):,} domains, {len(substrings):,} substrings; hits: {hits}")
        for kind, seconds in taken.items():
            print(
                f"  datakit, {kind}: {URLS / seconds / 1e6:.2f} million URLs ({size / seconds:.0f} MB) per CPU-second"
            )
        if python:
            script = str(Path(__file__).parent / "peers" / "url_filter.py")
            answer = subprocess.run([python, script, name], check=True, capture_output=True, text=True)
            print(f"  datatrove: {answer.stdout.strip()}")


def memory() -> None:
    """Print the memory and the CPU time that a list of 1,000,000 words takes, in a process of its own."""
    entries = word_entries(all_texts(), 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "list.txt").write_text("\n".join(entries))
        for kind in ("words", "substrings"):
            command = [sys.executable, "-m", "benchmarks.lists", "load", f"{folder}/list.txt", kind]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def load(path: str, kind: str) -> None:
    """Load a list, and print what it takes."""
    import psutil

    small = Path(path).with_name("small.txt")
    small.write_text("word")
    WordsConfig({"x": WordList(str(small), kind)}).annotator()
    before, start = psutil.Process().memory_info().rss, time.process_time()
    annotator = WordsConfig({"x": WordList(path, kind)}).annotator()
    seconds, after = time.process_time() - start, psutil.Process().memory_info().rss
    (_, index, _) = annotator._searches[0]  # pyright: ignore[reportAttributeAccessIssue]
    arrays = [*index.entries.keys, *index.entries[1:], *index.anchors, index.anchor_ends, index.lengths]
    size = sum(array.nbytes for array in arrays)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(
        f"{kind}: {len(index.entries.lists):,} entries: index {size / 1e6:.0f} MB, {seconds:.1f} CPU-seconds to load; "
        f"memory of the process {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after, at most {peak / 1e6:.0f} MB"
    )


def main() -> None:
    """Run the measurement that the arguments name."""
    name, *arguments = sys.argv[1:]
    if name == "words":
        words(*map(int, arguments))
    elif name == "urls":
        urls(*arguments)
    elif name == "load":
        load(*arguments)
    else:
        memory()


if __name__ == "__main__":
    main()
