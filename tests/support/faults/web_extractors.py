"""Makes extractors fail on marked pages as defects in them do: with a real segmentation fault, an endless loop in
compiled code, or memory that grows without end; through a preload.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace
from typing import Any

from datakit.engine.task import Phase, Plan, Preload

SEGFAULT, LOOP, GROW, RAISE = "PILL-SEGFAULT", "PILL-LOOP", "PILL-GROW", "PILL-RAISE"
MEMORY = 400 << 20


def faulty(plan: Plan, memory_bytes: int = MEMORY) -> Plan:
    """Install the faults in every child of a plan. memory_bytes: what an attempt may use."""
    results: Any = None
    try:
        while True:
            phase: Phase = next(plan) if results is None else plan.send(results)
            preload = Preload(__name__, f"{__name__}:install")
            results = yield replace(phase, preloads=(*phase.preloads, preload), memory_bytes=memory_bytes)
    except StopIteration as stop:
        return stop.value


def install() -> None:
    """Replace both extractors, in this process and its forks, by functions that fail on marked pages."""
    import trafilatura
    from resiliparse.extract import html2text

    for module, name in ((html2text, "extract_plain_text"), (trafilatura, "extract")):
        setattr(module, name, _failing(getattr(module, name)))


def _failing(extract: Any) -> Any:
    def failing(html: str, **options: Any) -> Any:
        if SEGFAULT in html:
            ctypes.string_at(0)
        if LOOP in html:
            # CPython checks for signals only between bytecodes, so no exception can end this call
            sum(range(1 << 62))
        if GROW in html:
            held = []
            while True:
                held.append(b"x" * (16 << 20))
                time.sleep(0.02)  # lets the limit on memory act before the one on CPU time, even on a busy machine
        if RAISE in html:
            raise RecursionError("this message may quote the page")
        return extract(html, **options)

    return failing
