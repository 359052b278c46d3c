"""Checks that the counts of what select does after texts are edited add up: those of its rules, of equal texts and of
document buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from datakit.conditions.config import DROP
from datakit.select.final.equal_texts import EQUAL
from datakit.select.final.plan import RULES
from datakit.storage import urls
from datakit.storage.manifest import Manifest
from datakit.storage.selection.buckets import FOLDER, REST, bucket_path, buckets_of
from datakit.storage.selection.leaving_rows import FINAL

Equation = tuple[str, object, str, object]  # (name, value, name, value): two values that must be equal


def final_equations(select: Manifest) -> Iterator[Equation]:
    """Yield the equations of a select step."""
    yield from _rules(select)
    yield from _equal(select)
    yield from _buckets(select)


def _rules(select: Manifest) -> Iterator[Equation]:
    rules = select.parameters.get(RULES, [])
    for source, counts in select.details.get(RULES, {}).items():
        combinations = select.details["sources"][source]["combinations"]
        leaves = sum(count for reasons, count in combinations.items() if reasons.startswith(FINAL))
        decided = sum(counts[rule["name"]]["decides"] for rule in rules if rule["action"] == DROP)
        yield f"what leaves {source!r} because of rules of [select]", leaves, "what these rules decide", decided
    for rule in rules:
        total = sum(counts[rule["name"]]["decides"] for counts in select.details[RULES].values())
        counter = f"select/{rule['action']}_{rule['name']}"
        yield counter, select.counters[counter], "the sum over the sources", total


def _equal(select: Manifest) -> Iterator[Equation]:
    counts = select.details.get(EQUAL, {})
    if counts:
        yield f"select/{EQUAL}", select.counters[f"select/{EQUAL}"], "the sum over the sources", sum(counts.values())
    for source, count in counts.items() if EQUAL in select.details["drop"] else ():
        leaves = select.details["sources"][source]["leaving"].get(EQUAL, 0)
        yield f"the equal texts that leave {source!r}", leaves, "those that were found", count


def _buckets(select: Manifest) -> Iterator[Equation]:
    totals, lists = Counter[str](), 0
    for source, counts in select.details.get(FOLDER, {}).items():
        stay = select.details["sources"][source]["records_out"]
        documents = {name: one["documents"] for name, one in counts.items()}
        totals.update(documents)
        yield f"the documents in the buckets of {source!r}", sum(documents.values()), "those that stay", stay
        yield f"the buckets of {source!r}", sorted(documents), "those of the recipe", sorted(buckets_of(select, source))
        for bucket in (name for name in documents if name != REST):
            names = [bucket_path(source, bucket, urls.name(part.path)) for part in select.partitions_of(source)]
            found = [select.files_by_path[name].rows for name in names if name in select.files_by_path]
            lists += len(found)
            yield f"the lists of {source}.{bucket}", len(found), "the number of partitions", len(names)
            yield f"the documents of {source}.{bucket}", documents[bucket], "the rows of its lists", sum(found)
    for bucket, count in totals.items():
        yield f"select/bucket_{bucket}", select.counters[f"select/bucket_{bucket}"], "the sum over the sources", count
    listed = sum(file.path.startswith(f"{FOLDER}/") for file in select.files)
    yield "the number of lists of buckets", listed, "that of all buckets", lists
