"""The event log has one JSON object per event."""

from __future__ import annotations

import json
from pathlib import Path

from datakit.engine.observe.event_log import FILE_NAME, EventLog
from datakit.engine.observe.observer import EVENTS, Observer, ObserverGroup
from tests.support.engine.runs import run_numbers


def test_events_of_a_step_are_written_in_order(tmp_path: Path) -> None:
    run_numbers(tmp_path / "step", 3, observer=EventLog(str(tmp_path / "runs")))
    events = [json.loads(line) for line in (tmp_path / "runs" / FILE_NAME).read_text().splitlines()]
    attempts = [event for event in events if event["event"] == "attempt_ended"]
    others = [event for event in events if event["event"] != "attempt_ended"]
    assert [event["event"] for event in others] == ["step_started", "phase_started", "phase_started", "step_ended"]
    assert len(attempts) == 6
    assert {event["cause"] for event in attempts} == {"done"}
    assert (others[1]["tasks"], others[1]["done"], others[-1]["reused"]) == (3, 0, False)


def test_group_passes_every_event_to_all_observers() -> None:
    class Recorder(Observer):
        def __init__(self) -> None:
            self.seen: list[tuple[str, int]] = []
            for event in EVENTS:
                setattr(self, event, lambda *facts, event=event: self.seen.append((event, len(facts))))

    recorders = [Recorder(), Recorder()]
    group = ObserverGroup(recorders)
    for number, event in enumerate(EVENTS):
        getattr(group, event)(*range(number))
    assert recorders[0].seen == recorders[1].seen == [(event, number) for number, event in enumerate(EVENTS)]
    assert set(EVENTS) == {name for name in vars(Observer) if not name.startswith("_")}
