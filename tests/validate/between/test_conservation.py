"""The equations hold for a sound step, whatever its size, and checking them takes no memory per document."""

from __future__ import annotations

from pathlib import Path

from datakit.storage.manifest import Manifest, Partition, Quarantine, read_manifest, totals_of, write_manifest
from datakit.validate.between import conservation
from datakit.validate.finding import Result
from datakit.validate.subject import open_subject

MANY = 10**17  # a list with an entry for each of so many documents cannot even be allocated


def wrong_reasons(directory: Path, leaving: dict[str, int], combinations: dict[str, int]) -> bool:
    """Write the manifest of a selection of 2 * MANY documents, and check whether its reasons add up."""
    left = sum(combinations.values())
    parts = [Partition("data/web/part-00000-of-00001.parquet", "web", left, 1, "0" * 32)]
    counters = {f"select/dropped_{name}": count for name, count in combinations.items()}
    counters |= {"select/records_in": 2 * MANY, "select/records_out": 2 * MANY - left, "select/marked_kept": 0}
    entry = {"records_in": 2 * MANY, "leaving": leaving, "combinations": combinations, "records_out": 2 * MANY - left}
    details = {"drop": ["exact", "fuzzy"], "sources": {"web": entry}}
    manifest = Manifest(
        "select", "d", "f" * 32, "f" * 32, {}, [], [], parts, totals_of(parts), counters, Quarantine(0), details,
        version=1,
    )  # fmt: skip
    write_manifest(manifest, str(directory))
    result = Result("conservation")
    conservation.check(open_subject(str(directory), read_manifest(str(directory)))[0], result)
    return any("the count by reason of 'web'" in str(one) for one in result.findings)


def test_reasons_of_a_huge_selection_are_added_up(tmp_path: Path) -> None:
    combinations = {"exact": MANY, "exact+fuzzy": 7, "fuzzy": 1}
    assert not wrong_reasons(tmp_path / "sound", {"exact": MANY + 7, "fuzzy": 8}, combinations)
    assert wrong_reasons(tmp_path / "wrong", {"exact": MANY, "fuzzy": 8}, combinations)
