"""A recipe with everything that decides about documents: rules and a rule set, dedup by an annotator's score, passages,
edits, final rules, equal texts and document buckets. `expected` computes the result in plain Python.

As a program, this module runs the recipe and kills itself when a phase of a stage would begin:
`python -m tests.support.annotate.combined_shelf RECIPE ROOT WORKERS STAGE PHASE`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import datakit
from datakit.engine.task import Plan, Step
from tests.support.partitions import identity

SOURCES = ("books", "mail", "web")
NOTICE = (
    "Copyright of this page belongs to its editors; it may be copied, printed and changed as long as this notice "
    "stays in each copy of it."
)
MAIL = re.compile(r"[a-z]+\d*@[a-z]+\.[a-z.]+[a-z]")
MASK = "<EMAIL>"
MODULE = """
import datakit
import pyarrow as pa
import pyarrow.compute as pc


@datakit.annotator(version=1, writes={"score": pa.float64()})
def quality(batch):
    has = pc.match_substring_regex(batch["text"], "score [0-9]+")
    found = pc.extract_regex(batch["text"], r"score (?P<score>[0-9]+)").field("score")
    return pa.record_batch({"score": pc.if_else(has, found, "50").cast(pa.float64())})
"""
SET = """
[[rules]]
name = "low"
where = "quality.score < 30"

[[rules]]
name = "worst"
lowest = 0.2
by = "quality.score"
"""
TABLES = """
[annotate.personal]
[annotate.user.quality]
function = "shelf_quality:quality"

[[rules]]
name = "protected"
action = "keep"
where = "source = 'web' AND document.n = 0"
[[rules]]
set = "rules/scores.toml"
sources = ["web"]
thresholds = { low = 10 }

[dedup]
prefer = ["score:quality.score", "source"]

[passages.notices]
unit = "paragraph"

[select]
equal_after_editing = "drop"
[select.edits.mail]
spans = "personal.spans"
kinds = ["email", "email_reserved"]
action = "mask"
replacement = "<EMAIL>"
[select.edits.notices]
spans = "passages.notices"
action = "cut"

[[select.rules]]
name = "little"
where = "edited.removed_share > 0.5"
[[select.rules]]
name = "tail"
lowest = 0.05
by = "quality.score"

[[select.buckets]]
name = "high"
highest = 0.3
by = "quality.score"
sources = ["books", "web"]
[[select.buckets]]
name = "edited"
where = "edited.stretches > 0"
sources = ["books"]

[tokenize]
tokenizer = "bytes"
"""
BUCKETS = {"high": ("books", "web"), "edited": ("books",)}


@dataclass(frozen=True)
class Text:
    """A document. n: its number in the source. twin: the name of a group of near duplicates, or ""."""

    source: str
    n: int
    text: str
    twin: str = ""

    @property
    def id(self) -> str:
        return identity(self.text)

    @property
    def score(self) -> float:
        found = re.search(r"score ([0-9]+)", self.text)
        return float(found[1]) if found else 50.0


def documents() -> list[Text]:
    """Return the documents of all sources, in the order of the sources."""
    return [one for source in SOURCES for one in _of_source(source)]


def _of_source(source: str) -> list[Text]:
    found = [_plain(source, n) for n in range(60)]
    found += [
        Text(source, 100 + n, f"Mail {source}{n}@mail.invalid.org regarding counterintuitivenesses{n % 4}")
        for n in range(8)
    ]
    for n in range(8):  # near duplicates in the same and in other sources
        body = " ".join(f"twin{n}w{word}" for word in range(60))
        found.append(Text(source, 200 + n, f"{body} {source} score {(n * 31 + len(source) * 17) % 90 + 10}", f"t{n}"))
    if source != "books":
        found += [Text(source, 300 + n, _plain("books", n).text) for n in (3, 10, 17)]  # exact duplicates of books
    if source == "web":  # a notice alone, and one with few words
        words = " ".join(f"few{word}" for word in range(12))
        found += [Text(source, 400, NOTICE), Text(source, 401, f"{NOTICE}\n\n{words}")]
    return found


def _plain(source: str, n: int) -> Text:
    body = " ".join(f"{source}{n}w{word}" for word in range(40))
    notice = f"{NOTICE}\n\n" if n % 4 == 1 else ""
    mail = f" Write to {source}{n}@mail.invalid.org today." if n % 5 == 2 else ""
    return Text(source, n, f"{source} {n} has score {(n * 37) % 101}.{mail}\n\n{notice}{body}")


def recipe_with(folder: Path, more: str = "") -> Path:
    """Write the recipe with its texts, its annotator and its rule set; return its path. more: further tables."""
    (folder / "rules").mkdir(parents=True, exist_ok=True)
    (folder / "rules" / "scores.toml").write_text(SET)
    (folder / "shelf_quality.py").write_text(MODULE)
    head = 'name = "shelf"\n'
    for source in SOURCES:
        lines = [json.dumps({"text": one.text, "n": one.n}) + "\n" for one in documents() if one.source == source]
        (folder / f"{source}.jsonl").write_text("".join(lines))
        head += f'[[sources]]\nname = "{source}"\nurl = "{source}.jsonl"\n'
    path = folder / "shelf.toml"
    path.write_text(head + TABLES + more)
    return path


@dataclass
class Expected:
    """The expected fate of each document. reasons: the reasons for which a document leaves. applied: the documents to
    which a rule applies, by source and rule. decided: likewise, those for which it is the first such rule. edited: the
    texts after editing, of documents that rules and dedup retain. buckets: the buckets of the documents that stay in
    sources with buckets.
    """

    reasons: dict[Text, list[str]] = field(default_factory=dict)
    applied: dict[tuple[str, str], set[Text]] = field(default_factory=lambda: defaultdict(set))
    decided: dict[tuple[str, str], set[Text]] = field(default_factory=lambda: defaultdict(set))
    edited: dict[Text, str] = field(default_factory=dict)
    buckets: dict[Text, str] = field(default_factory=dict)

    def staying(self) -> list[Text]:
        return [one for one in documents() if one not in self.reasons]

    def apply(self, rules: dict[str, set[Text]], keep: str, reason: str) -> None:
        """Apply rules in order: the first one that applies decides."""
        for one in {text for found in rules.values() for text in found}:
            mine = [name for name, found in rules.items() if one in found]
            for name in mine:
                self.applied[one.source, name].add(one)
            self.decided[one.source, mine[0]].add(one)
            if mine[0] != keep:
                self.reasons[one] = [reason + name for name in mine if name != keep]


def expected() -> Expected:
    """Compute, with plain Python, what becomes of each document."""
    found = Expected()
    web = [one for one in documents() if one.source == "web"]
    rules = {
        "protected": {one for one in web if one.n == 0},
        "scores.low": {one for one in web if one.score < 10},
        "scores.worst": share(web, len(web) * 20 // 100, lowest=True),
    }
    found.apply(rules, "protected", "rule:")
    _dedup(found)
    _edit(found)
    staying = found.staying()
    final = {
        "little": {one for one in staying if _removed(one, found.edited[one]) > 0.5},
        "tail": share(staying, len(staying) * 5 // 100, lowest=True),
    }
    found.apply(final, "", "final:")
    _equal(found)
    staying = [one for one in found.staying() if one.source in BUCKETS["high"]]
    buckets = {
        "high": share(staying, len(staying) * 30 // 100, lowest=False),
        "edited": {one for one in staying if one.source == "books" and found.edited[one] != one.text},
    }
    for one in staying:
        mine = [name for name, members in buckets.items() if one in members]
        found.buckets[one] = (mine or ["rest"])[0]
        for name in mine:
            found.applied[one.source, name].add(one)
    return found


def share(population: list[Text], count: int, lowest: bool) -> set[Text]:
    """Return the documents with the lowest or the highest scores. Equal texts are treated alike."""
    keys = sorted((one.score, one.id) for one in population)
    chosen = set(keys[:count] if lowest else keys[len(keys) - count :])
    return {one for one in population if (one.score, one.id) in chosen}


def _dedup(found: Expected) -> None:
    """Remove all but one document of each group of duplicates: keep the one with the highest score or, of several, the
    one from the first source.
    """
    groups = defaultdict[str, list[Text]](list)
    for one in found.staying():
        groups[one.twin or one.id].append(one)
    for group in groups.values():
        kept = max(group, key=lambda one: (one.score, -SOURCES.index(one.source)))
        for one in group:
            if one is not kept:
                found.reasons[one] = ["fuzzy" if one.twin else "exact"]


def _edit(found: Expected) -> None:
    """Cut all notices but the first, in the order of the sources and then of the ids, and mask addresses."""
    seen = False
    for one in sorted(found.staying(), key=lambda one: (SOURCES.index(one.source), one.id)):
        text = one.text
        if NOTICE in text.split("\n\n"):
            text = text.replace(NOTICE + "\n\n", "").removesuffix(NOTICE) if seen else text
            seen = True
        found.edited[one] = MAIL.sub(MASK, text)
        if not found.edited[one].strip():
            found.reasons[one] = ["empty"]


def _removed(one: Text, edited: str) -> float:
    """Return the share of the text that was cut or masked."""
    masked = MAIL.findall(one.text)
    rest = len(edited.encode()) - len(MASK) * len(masked)
    return 1 - rest / len(one.text.encode())


def _equal(found: Expected) -> None:
    groups = defaultdict[str, list[Text]](list)
    for one in sorted(found.staying(), key=lambda one: (SOURCES.index(one.source), one.id)):
        groups[found.edited[one]].append(one)
    for group in groups.values():
        if any(found.edited[one] != one.text for one in group):
            found.reasons |= {one: ["equal_after_editing"] for one in group[1:]}


def killed(stage: str, name: str) -> None:
    """Replace a stage's plan by one that kills this process when a phase of this name would begin."""
    module = import_module(f"datakit.{stage}.stage")
    plan = module.plan

    def plan_until(step: Step) -> Plan:
        phases, results = plan(step), None
        while True:
            try:
                phase = next(phases) if results is None else phases.send(results)
            except StopIteration as end:
                return end.value
            if phase.name == name:
                os.kill(os.getpid(), signal.SIGKILL)
            results = yield phase

    module.plan = plan_until  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    killed(*sys.argv[4:6])
    datakit.run(sys.argv[1], root=sys.argv[2], workers=int(sys.argv[3]))
