"""A root in an object store is served like one on a disk."""

from __future__ import annotations

from datakit.engine.observe.event_file import EventFile
from tests.support.s3 import s3_root
from tests.support.serve.process import serving

RUN = "20260102T030405678Z-1234-0a1b2c"
STEP = {"stage": "dedup", "dataset": "shelf"}


def test_run_in_an_object_store_is_shown() -> None:
    with s3_root() as root:
        log = EventFile(f"{root}/shelf/runs/{RUN}")
        log.write(
            "run_started",
            {"dataset": "shelf", "root": root, "recipe": "shelf.toml", "host": "elsewhere", "options": {}},
        )
        log.write("phase_started", {**STEP, "phase": "join", "tasks": 4, "done": 3, "slots": 2})
        log.publish()
        with serving(root) as server:
            page = server.ask(f"/runs/shelf/{RUN}")
            assert page.status == 200 and 'data-state="running"' in page.body
            assert "3 of 4 tasks done" in page.body and f"datakit run shelf.toml --root {root}" in page.body
            assert RUN in server.ask("/").body
            assert server.ask("/runs/shelf/..%2f..").status == 404
