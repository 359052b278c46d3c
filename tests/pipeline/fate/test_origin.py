"""A document of a cache is traced to its raw record and to the cluster that it was kept for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from datakit.cache.reader import open_cache
from datakit.pipeline.fate.origin import Origin, origins_of
from tests.support.partitions import identity
from tests.support.small_shelf import prose


def nothing(done: int, total: int, what: str) -> None:
    """Report nothing."""


def test_documents_lead_to_their_records_and_clusters(finished: Path) -> None:
    cache = open_cache(str(finished / "root" / "shelf")).directory
    retained = identity(prose(5) + " and one more")  # dedup removed prose(5) in favor of it
    wanted = [("novels", identity(prose(0))), ("letters", retained), ("novels", identity(prose(7)))]
    copied, near, plain = origins_of(cache, wanted, nothing).values()
    assert copied.file is not None
    assert (Path(copied.file).name, copied.unit, copied.equal_texts, copied.removed) == ("a.jsonl", "byte", 1, 0)
    assert near.removed == 1
    assert near.cluster is not None
    assert near.file is not None
    assert Path(near.file).name == "b.jsonl"
    assert (plain.cluster, plain.removed, plain.equal_texts, plain.unknown) == (None, 0, 0, "")
    lines = [json.dumps({"text": prose(number), "n": number}) for number in range(7)]
    assert plain.position == sum(len(line) + 1 for line in lines)


def test_a_copied_cache_says_why_its_origins_are_unknown(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(open_cache(str(finished / "root" / "shelf")).directory, tmp_path / "cache")
    document = ("novels", identity(prose(7)))
    found = origins_of(str(tmp_path / "cache"), [document], nothing)
    assert found[document] == Origin(unknown=found[document].unknown)
    assert "which is not in" in found[document].unknown


def test_an_unknown_document_is_said_to_be_unknown(finished: Path) -> None:
    cache = open_cache(str(finished / "root" / "shelf")).directory
    found = origins_of(cache, [("novels", "0" * 32), ("nobody", "0" * 32)], nothing)
    assert [one.unknown for one in found.values()] == [
        "it is not in normalize",
        "no normalize step of source 'nobody' leads to the cache",
    ]
