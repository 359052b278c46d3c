"""The rules of verification in plain Python."""

from __future__ import annotations

from datakit.dedup.verification.arrays import NONE
from datakit.dedup.verification.rules import COUNTED, Rules

BANDS = 3
Document = tuple[int, frozenset[int], tuple[int, ...]]  # id, shingles, band keys


def by_the_rules(components: list[list[Document]], rules: Rules) -> tuple[list[int], list[float], dict[str, int]]:
    """Return the representative of each document (its position, or NONE), the similarities and the counters."""
    representatives: list[int] = []
    similarities: list[float] = []
    counts = dict.fromkeys(COUNTED, 0)
    first = 0
    for component in components:
        listed: dict[int, list[int]] = {}
        uses: dict[int, int] = {}
        for place, (_, mine, keys) in enumerate(component):
            shared: dict[int, int] = {}
            for key in keys:
                for other in listed.get(key, []):
                    shared[other] = shared.get(other, 0) + 1
            counts["candidates"] += len(shared)
            verdict, similarity, compared = NONE, 0.0, 0
            for other in sorted(shared, key=lambda other: (-shared[other], component[other][0])):
                theirs = component[other][1]
                larger = max(len(mine), len(theirs)) if rules.measure == 0 else len(mine)
                if min(len(mine), len(theirs)) / larger < rules.threshold:
                    counts["ruled_out"] += 1
                    continue
                if compared == rules.most:
                    counts["capped"] += 1
                    break
                compared += 1
                counts["comparisons"] += 1
                both = len(mine & theirs)
                measured = both / (len(mine | theirs) if rules.measure == 0 else len(mine))
                if measured >= rules.threshold:
                    verdict, similarity = first + other, both / len(mine | theirs)
                    break
                counts["rejected"] += 1
            representatives.append(verdict)
            similarities.append(similarity)
            if verdict == NONE:
                counts["crowded"] += any(uses.get(key, 0) > rules.listed for key in keys)
                for key in keys:
                    uses[key] = uses.get(key, 0) + 1
                    if uses[key] <= rules.listed:
                        listed.setdefault(key, []).append(place)
        first += len(component)
    return representatives, similarities, counts
