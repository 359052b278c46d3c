"""An alert reaches the webhook once per cause, and neither leaks the webhook's URL nor holds text or paths."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from datakit.ferries import alert
from datakit.ferries.alert import REMEMBERED, WEBHOOK_VARIABLE, new_failures, payload, send
from datakit.ferries.history import append, read_history, settle
from datakit.ferries.machine import this_machine
from datakit.ferries.record import Failure, Record
from datakit.ferries.status import Started
from tests.support.command_line import invoke
from tests.support.ferries.tiny_ferry import LIMITS, sail, tiny_ferry

SECRET = "T0SECRET/B0/xyzzy"


@dataclass
class Webhook:
    """A real HTTP server, and the bodies that it received. status: with which it answers."""

    url: str = ""
    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    found = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(found.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            found.bodies.append({"redirected": True})
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_port}/services/{SECRET}"
        monkeypatch.setenv(WEBHOOK_VARIABLE, found.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield found
        server.shutdown()


def failed(nonce: str, *failures: Failure, alerted: bool = False) -> Record:
    return Record(
        "tiny", nonce, "tiny-0", 0.0, 1.0, "failed", "run", True, 1.0, this_machine(), "0.1", failures=[*failures],
        alerted=[*failures] if alerted else [],
    )  # fmt: skip


def test_scheduled_failures_alert_once_per_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datakit.ferries.regression.FIGURES", ())  # a busy machine adds no causes
    slow = replace(tiny_ferry(tmp_path / "texts"), limits=replace(LIMITS, cpu=0.0))
    large = replace(slow, limits=replace(LIMITS, peak_rss=1))
    with webhook(monkeypatch) as hook:
        by_hand = sail(slow, tmp_path / "ferries")
        assert by_hand.record.outcome == "failed" and hook.bodies == []
        first, again, other = (sail(one, tmp_path / "ferries", scheduled=True) for one in (slow, slow, large))
        texts = [body["text"] for body in hook.bodies]
    assert [len(one.record.alerted) for one in (first, again, other)] == [1, 0, 1]
    assert [set(body) for body in hook.bodies] == [{"text"}, {"text"}]
    assert "datakit ferry tiny: failed\n- performance: the CPU limit is exceeded (" in texts[0]
    assert "0 of the last 2 runs passed" in texts[0]
    assert "the memory limit is exceeded" in texts[1]
    assert not any(str(tmp_path) in text or "word1" in text or first.record.root in text for text in texts)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "ferries").rglob("*") if path.is_file())
    assert b"xyzzy" not in kept and b"127.0.0.1:" not in kept


def test_killed_runs_alert_once_in_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ferry, parent = tiny_ferry(tmp_path / "texts", "compare"), tmp_path / "ferries"
    parent.mkdir()
    with webhook(monkeypatch) as hook:
        for nonce in ("first", "second"):
            append(str(parent), Started("tiny", nonce, f"{parent}/gone", 0.0, True, 1.0, "", 1.0))
            sail(ferry, parent)
    assert len(hook.bodies) == 1 and "- start: the ferry was killed" in hook.bodies[0]["text"]
    killed = [record for record in read_history(str(parent)).records if record.outcome == "killed"]
    assert [(record.nonce, len(record.alerted)) for record in killed] == [("first", 1), ("second", 0)]


def test_killed_run_that_the_history_command_found_alerts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ferry, parent = tiny_ferry(tmp_path / "texts", "compare"), tmp_path / "ferries"
    parent.mkdir()
    append(str(parent), Started("tiny", "first", f"{parent}/gone", 0.0, True, 1.0, "", 1.0))
    assert "killed" in invoke("ferry", "history", "--root", parent, cwd=tmp_path).stdout
    with webhook(monkeypatch) as hook:
        sail(ferry, parent, scheduled=True)
        sail(ferry, parent, scheduled=True)
    assert sum("the ferry was killed" in body["text"] for body in hook.bodies) == 1


def test_alert_about_a_killed_run_is_tried_until_the_webhook_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ferry, parent = tiny_ferry(tmp_path / "texts", "compare"), tmp_path / "ferries"
    parent.mkdir()
    for nonce in ("first", "second"):
        append(str(parent), Started("tiny", nonce, f"{parent}/gone", 0.0, True, 1.0, "", 1.0))
    settle(str(parent))
    sail(ferry, parent)  # the baseline, by hand and without a webhook
    with webhook(monkeypatch) as hook:
        hook.status = 500
        sail(ferry, parent, scheduled=True)
        refused, hook.status = len(hook.bodies), 200
        for _ in range(3):
            sail(ferry, parent, scheduled=True)
    texts = [body["text"] for body in hook.bodies[refused:]]
    assert refused and sum("the ferry was killed" in text for text in texts) == 1, "one is about both runs"


def test_runs_that_start_at_once_send_one_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(str(tmp_path), Started("tiny", "first", f"{tmp_path}/gone", 0.0, True, 1.0, "", 1.0))
    settle(str(tmp_path))
    with webhook(monkeypatch) as hook, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: alert.settle(str(tmp_path), True, lambda line: None), range(8)))
    assert len(hook.bodies) == 1


def test_commands_of_a_ferry_do_not_see_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ferry = tiny_ferry(tmp_path / "texts")
    code = f"\nimport os\nif {WEBHOOK_VARIABLE!r} in os.environ: os._exit(7)\n"
    (tmp_path / "texts" / "ferry_transforms.py").open("a").write(code)
    monkeypatch.setenv(WEBHOOK_VARIABLE, f"http://127.0.0.1:9/{SECRET}")
    assert sail(ferry, tmp_path / "ferries").record.outcome == "no baseline"


def test_cause_is_remembered_for_thirty_runs() -> None:
    cause = Failure("run", "the command ended with exit code 1", "first detail")
    new = failed("new", replace_detail(cause))
    sent = failed("0", cause, alerted=True)
    between = [failed(str(number), cause) for number in range(1, REMEMBERED)]
    assert new_failures(new, []) == [replace_detail(cause)]
    assert new_failures(new, [sent, *between]) == []
    assert new_failures(new, [sent, *between, failed("x", cause)]) == [replace_detail(cause)]
    assert new_failures(new, between) == [replace_detail(cause)], "what was not sent is sent"


def replace_detail(failure: Failure) -> Failure:
    """The same cause with other figures."""
    return Failure(failure.stage, failure.cause, "second detail")


@pytest.mark.parametrize("status", [302, 307, 404, 500])
def test_refusals_of_the_webhook_are_reported(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with webhook(monkeypatch) as hook:
        hook.status = status
        problem = send(payload(failed("0", Failure("run", "cause")), [Failure("run", "cause")], ""))
        assert len(hook.bodies) == 1, "a redirect is not followed"
    assert str(status) in problem and "xyzzy" not in problem


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:9/{SECRET}",
        f"file:///{SECRET}",
        f"http://[{SECRET}",
        f"https://{SECRET}.invalid/",
        "http:",
        " ",
    ],
)
def test_unusable_urls_are_reported_without_the_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, url)
    monkeypatch.setenv("no_proxy", "*")
    problem = send(b"{}")
    assert problem and "xyzzy" not in problem and "SECRET" not in problem


def test_failed_alert_is_shown_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ferry = replace(tiny_ferry(tmp_path / "texts"), limits=replace(LIMITS, cpu=0.0))
    monkeypatch.setattr("datakit.ferries.catalog.FERRIES", (ferry,))
    words = ("ferry", "run", "tiny", "--scheduled", "--root", tmp_path / "ferries")
    with webhook(monkeypatch) as hook:
        hook.status = 500
        shown = invoke(*words, cwd=tmp_path)
        hook.status = 200
        assert "an alert was sent" in invoke(*words, cwd=tmp_path).stderr
    assert "no alert was sent: the webhook answered with status 500" in shown.stderr and shown.returncode == 1
    assert "xyzzy" not in shown.stdout + shown.stderr
    assert [len(one.alerted) for one in read_history(str(tmp_path / "ferries")).records] == [0, 1]
