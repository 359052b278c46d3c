"""Whatever goes wrong with whichever answer, a download is complete, or it is an error: nothing is lost silently."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from datakit.download.web import partial_file
from tests.support.hub_server.schedules import PART_BYTES, run_schedule, servers


def outcomes(seeds: range, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of schedules by outcome."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(partial_file, "PART_BYTES", PART_BYTES)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with servers() as (hub, web):
        return Counter(run_schedule(seed, hub, web, folder / str(seed)) for seed in seeds)


def test_fifty_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcomes(range(50), tmp_path, monkeypatch)
    assert found["complete"] >= 15, "the faults are not so many that every download fails"
    assert found.total() - found["complete"] >= 3, "nor so few that none does"


@pytest.mark.soak
def test_a_thousand_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcomes(range(1000, 2000), tmp_path, monkeypatch)
    assert found["complete"] >= 300
    assert len(found) >= 4, "errors of several kinds"
