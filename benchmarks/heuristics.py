"""Compares the rule sets of the annotator `heuristics` with datatrove's filters: verdicts, numbers and CPU-seconds.

    python -m benchmarks.heuristics --python PEERS/bin/python                         # everything, once
    python -m benchmarks.heuristics --python PEERS/bin/python --every 40 --rounds 5   # for speed

The input is the 13 real files and the texts of `hostile_texts.py`; `--every` takes only a part of the documents. In
each round, both programs process one file after the other. The first table compares verdicts with those of datatrove's
filters as they are, and the second one with those of the same filters after they were given our words and sentences. A
difference is put down to words or sentences if it is gone in the second table, and else to one of the causes in
`heuristics_causes.py`, which are those that docs/annotate/heuristics.md lists; the program fails if there is any other.
The last table gives MB (10^6 bytes of text) per CPU-second, as medians of the rounds; imports and reading are not
counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.heuristics_causes import REASONS, cause_of_number, causes_of_verdict
from benchmarks.hostile_texts import hostile_texts
from datakit.annotate.heuristics.config import HeuristicsConfig
from datakit.annotate.heuristics.kernels.characters import ALONE, CLOSERS, TERMINAL, flags_table
from datakit.annotate.heuristics.stop_word_lists import stop_word_lists
from datakit.rule_sets.files import Rules, parts_of, rule_set
from tests.support.data import need_data, rows_of

PEER = Path(__file__).parent / "peers" / "heuristics.py"
SETS = ("gopher_quality", "gopher_repetition", "c4", "mc4", "fineweb_quality")
FINEWEB2 = "fineweb2"
HOSTILE = "hostile texts"
BATCH = 1000  # documents
DATABASE = duckdb.connect()
GUARD = 5  # CPU-seconds of the peer for a hostile text
CODES = {"ar": "arb", "cs": "ces", "zh": "cmn", "de": "deu", "el": "ell", "fr": "fra", "hi": "hin", "id": "ind",
         "it": "ita", "ja": "jpn", "ko": "kor", "nl": "nld", "pl": "pol", "pt": "por", "ro": "ron", "ru": "rus",
         "es": "spa", "sv": "swe", "sw": "swh", "uk": "ukr", "vi": "vie"}  # fmt: skip


@dataclass
class Found:
    """The counts. verdicts: by run of the peer, filter and outcome. causes: of differing verdicts, by run, filter
    and cause. numbers: by column and cause, "" for equal ones. seconds: by program and round.
    """

    verdicts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    causes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    numbers: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    unfinished: Counter[str] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    megabytes: float = 0.0


def language_of(identifier: str) -> str:
    """Return FineWeb-2's name of the language that a document's id tells; empty for none."""
    folder, _, rest = identifier.partition("/")
    code = {"udhr2": rest[:3], "laws-de": "deu", "php-ja": "jpn"}.get(folder, "")
    if folder.startswith("pages."):
        code = CODES.get(folder[6:8], "")
    return next((name for name in parts_of(FINEWEB2) if code and name.startswith(code)), "")


def inputs(every: int) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the name, the texts and the texts' languages of each set of documents."""
    for path in sorted((need_data() / "text").iterdir()):
        name, rows = path.name.split(".")[0], rows_of(path)[::every]
        keys = [name + "/" if name in {"laws-de", "php-ja"} else row["id"] for row in rows]
        yield name, [row["text"] for row in rows], [language_of(key) for key in keys]
    texts = hostile_texts()[::every]
    names = [*parts_of(FINEWEB2)]
    yield HOSTILE, texts, [names[number % len(names)] for number in range(len(texts))]


def settings() -> dict[str, Any]:
    """Return what the peer needs to know of our rules."""
    table, ranges = flags_table(), []
    for character in (table & ALONE).nonzero()[0].tolist():
        if ranges and ranges[-1][1] == character - 1:
            ranges[-1][1] = character
        else:
            ranges.append([character, character])
    lists = {name: {rule["name"]: float(rule["where"].split()[-1]) for rule in rules} for name, rules in
             parts_of(FINEWEB2).items()}  # fmt: skip
    return {
        "alone": ranges,
        "terminal": [chr(character) for character in (table & TERMINAL).nonzero()[0].tolist()],
        "closers": CLOSERS,
        "limits": lists,
        "stop_words": {name: stop_word_lists()[name] for name in lists},
    }


def verdicts(table: pa.Table, sets: dict[str, Rules]) -> list[dict[str, Any]]:
    """Return the name of the first rule of each set that is true, for each row; empty for none."""
    cases = [
        "CASE " + " ".join("WHEN {where} THEN '{name}'".format(**rule) for rule in rules) + f" ELSE '' END AS {name}"
        for name, rules in sets.items()
    ]
    DATABASE.register("heuristics", table)
    return DATABASE.sql(f"SELECT {', '.join(cases)} FROM heuristics").to_arrow_table().to_pylist()


def table_of(annotator: Any, texts: Sequence[str]) -> Callable[[], pa.Table]:
    """Return a function that computes the numbers of texts."""
    batches = [
        pa.record_batch({"text": pa.array(texts[i : i + BATCH], pa.large_string())})
        for i in range(0, len(texts), BATCH)
    ]
    return lambda: pa.Table.from_batches([annotator.annotate(batch) for batch in batches])


def ours(texts: Sequence[str], languages: Sequence[str], found: Found, turn: int) -> list[dict[str, Any]]:
    """Return our numbers and verdicts of texts, and count the CPU-seconds."""
    compute = table_of(HeuristicsConfig().annotator(), texts)
    start = time.process_time()
    table = compute()
    found.seconds["datakit, annotator"][turn] += time.process_time() - start  # pyright: ignore[reportArgumentType]
    results = verdicts(table, {name: rule_set(name) for name in SETS})
    found.seconds["datakit, annotator and rules"][turn] += time.process_time() - start  # pyright: ignore
    rows = [{"numbers": row, **result} for row, result in zip(table.to_pylist(), results, strict=True)]
    for name in set(languages) - {""}:
        places = [i for i, one in enumerate(languages) if one == name]
        numbers = table_of(HeuristicsConfig((name,)).annotator(), [texts[i] for i in places])()
        for i, answer in zip(places, verdicts(numbers, {FINEWEB2: rule_set(FINEWEB2, name)}), strict=True):
            rows[i].update(answer)
    return rows


def theirs(python: str, texts: Sequence[str], languages: Sequence[str], guard: bool) -> list[dict[str, Any]]:
    """Return the peer's results of texts."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("texts.parquet", "settings.json", "output.json")]
        columns = {"text": pa.array(texts, pa.large_string()), "list": pa.array(languages, pa.string())}
        pq.write_table(pa.table(columns), paths[0])
        Path(paths[1]).write_text(json.dumps(settings()))
        subprocess.run([python, str(PEER), *paths, *(["--guard", str(GUARD)] if guard else [])], check=True)
        return json.loads(Path(paths[2]).read_text())


def compare(text: str, our: dict[str, Any], their: dict[str, Any], found: Found) -> None:
    """Count how the results of a text differ."""
    different = {}
    for key, value in their.items():
        kind, _, name = key.partition(".")
        if kind == "number":
            different[name] = cause_of_number(text, name, our["numbers"][name], value)
            found.numbers[name, different[name]] += 1
            found.examples.setdefault((name, different[name]), repr(text[:60]))
    for run in ("own", "ours"):
        for name in (*SETS, FINEWEB2):
            if name not in our:
                continue
            answer = their.get(f"{run}.{name}")
            if answer is None:
                found.unfinished[f"{name}, {'its own' if run == 'own' else 'our'} words"] += 1
                continue
            reason = REASONS.get(str(answer), str(answer))
            found.verdicts[run, name, outcome(our[name], reason)] += 1
            if our[name] != reason:
                plain = REASONS.get(str(their.get(f"ours.{name}")), "") if run == "own" else reason
                causes = causes_of_verdict(name, text, (our[name], reason, plain), different)
                found.causes[run, name, causes] += 1
                found.examples.setdefault((f"{run} {name}", causes), f"{our[name]!r} {answer!r} {text[:60]!r}")


def outcome(our: str, their: str) -> str:
    """Return how two verdicts compare."""
    if their.startswith("error"):
        return "error"
    if our == their:
        return "drop" if our else "keep"
    return "reason" if our and their else "ours" if our else "theirs"


def show(found: Found) -> None:
    """Print all tables."""
    for run, title in (("own", "datatrove as it is"), ("ours", "datatrove's formulas, with our words and sentences")):
        print(f"\n{title}\n{'':18}{'both':>9}{'both':>9}{'for other':>10}{'only':>8}{'only':>8}{'its':>8}")
        print(f"{'':18}{'keep':>9}{'drop':>9}{'reasons':>10}{'ours':>8}{'theirs':>8}{'errors':>8}")
        for name in (*SETS, FINEWEB2):
            kinds = zip(("keep", "drop", "reason", "ours", "theirs", "error"), (9, 9, 10, 8, 8, 8), strict=True)
            print(f"{name:18}" + "".join(f"{found.verdicts[run, name, kind]:{width},}" for kind, width in kinds))
        for (one, name, causes), count in sorted(found.causes.items()):
            if one == run:
                print(f"  {name}: {count:,} because of {causes}")
    print(f"\nnumbers: {sum(found.numbers.values()):,} compared")
    for (name, cause), count in sorted(found.numbers.items()):
        if cause:
            print(f"  {name}: {count:,} differ because of {cause}")
    for name, count in found.unfinished.items():
        print(f"not finished in {GUARD} CPU-seconds: {count} texts, {name}")
    print(f"\n{found.megabytes:.1f} MB")
    for name, turns in found.seconds.items():
        seconds = statistics.median(turns.values())
        print(f"{name:44} {seconds:9.2f} CPU-s {found.megabytes / seconds:9.3f} MB per CPU-s")


def main() -> None:
    """Compare, print, and fail if a difference has no documented cause."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter with datatrove")
    parser.add_argument("--every", type=int, default=1, help="take each N-th document")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="names of files")
    parser.add_argument("--examples", action="store_true", help="print the beginning of a text for each cause")
    options = parser.parse_args()
    found = Found()
    for turn in range(options.rounds):
        for name, texts, languages in inputs(options.every):
            if options.only and name not in options.only:
                continue
            their = theirs(options.python, texts, languages, name == HOSTILE)
            our = ours(texts, languages, found, turn) if name != HOSTILE else ours(texts, languages, Found(), turn)
            if name != HOSTILE:
                found.megabytes += 0 if turn else sum(len(text.encode()) for text in texts) / 1e6
                for key, value in ((key, value) for row in their for key, value in row.items() if "_seconds." in key):
                    run, _, part = key.partition("_seconds.")
                    kind = "datatrove" if run == "own" else "datatrove, our words"
                    found.seconds[f"{kind}: {part}"][turn] += value
                    if run == "own" or part != "words":
                        found.seconds[f"{kind}, all"][turn] += value
            if not turn:
                for text, one, other in zip(texts, our, their, strict=True):
                    compare(text, one, other, found)
                print(f"{name}: {len(texts):,} documents", flush=True)
    show(found)
    if options.examples:
        for (name, cause), example in sorted(found.examples.items()):
            if cause:
                print(f"{name}, {cause}: {example}")
    unknown = [key for key in (*found.causes, *found.numbers) if "unknown" in key[-1]]
    if unknown:
        raise SystemExit(f"differences without a documented cause: {unknown}")


if __name__ == "__main__":
    main()
