"""Plans the rounds that find the documents at which the shares of rules end (`ranks.py`), and other phases that
evaluate expressions in every partition.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import count

import msgspec

from datakit.conditions.config import Rule
from datakit.conditions.phase_data import Ranked, SearchState, Shared, Work
from datakit.conditions.ranks import Search, counted
from datakit.engine.partition_grouping import neighbours
from datakit.engine.task import BATCH_HANG_SECONDS, Phase, Task, TaskResult

MEMORY = 512 << 20
COUNT = "datakit.conditions.count_ranks:count"


def phase_of(name: str, function: str, works: Sequence[Work], shared: Shared) -> Phase:
    """Return a phase whose tasks process neighboring partitions."""
    tasks = tuple(
        Task(
            f"{one.start:05d}",
            function,
            {"partitions": msgspec.to_builtins(works[one.start : one.stop])},
            sum(work.bytes for work in works[one.start : one.stop]),
        )
        for one in neighbours([work.bytes for work in works])
    )
    return Phase(
        name, tasks, msgspec.to_builtins(shared), memory_bytes=MEMORY, memory_per_input_byte=1.0,
        hang_seconds=BATCH_HANG_SECONDS,
    )  # fmt: skip


def find_cuts(
    works: Sequence[Work], shared: Shared, name: str = "ranks"
) -> Generator[Phase, Sequence[TaskResult], dict[str, str]]:
    """Yield the rounds that find the key at which the share of each rule ends, and return these keys by the number of
    the rule, "" if the share contains no document. name: the beginning of the names of the phases.
    """
    cuts: dict[str, str] = {}
    searches = {number: Search() for number, rule in enumerate(shared.rules) if rule.ranks}
    for number in count():
        if not searches:
            return cuts
        states = tuple(SearchState(rule, f"{one.prefix:x}", one.bits, one.lists) for rule, one in searches.items())
        results = yield phase_of(f"{name}-{number}", COUNT, works, replace(shared, searches=states))
        found = [msgspec.convert(result.details, Ranked) for result in results]
        for index, state in enumerate(states):
            search = searches.pop(state.rule)
            if state.lists:
                cuts[str(state.rule)] = sorted(key for one in found for key in one.keys[index])[search.rank]
                continue
            counts = counted(one.counts[index] for one in found)
            if search.remaining is None:
                search = _begun(shared.rules[state.rule], sum(counts.values()))
            if search is None:
                cuts[str(state.rule)] = ""
            else:
                searches[state.rule] = search.narrowed(counts)
    raise AssertionError("the loop ends by itself")


def _begun(rule: Rule, population: int) -> Search | None:
    """Return the search for the last document of the lowest or the first of the highest; None if there is none."""
    chosen = rule.chosen(population)
    if not chosen:
        return None
    return Search(rank=chosen - 1 if rule.lowest is not None else population - chosen)
