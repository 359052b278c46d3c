"""Asking a model server about one document gives an answer, or a failure that the document caused."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from datakit.annotate.model_server.client import Client
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.dialogue import Dialogue, Pause, StoppedError
from datakit.annotate.model_server.request_body import PROBE
from datakit.annotate.model_server.spending import FOLDER, Allowance, Ledger
from tests.support.annotate.model_server import PROMPT, ChatServer, Fault, chat_server


@dataclass
class Hurried(Pause):
    """Notes the waits, and waits only for the ends of pauses."""

    waits: list[float] = field(default_factory=list)

    def wait(self, seconds: float = 0.0) -> None:
        self.waits.append(seconds)
        super().wait()


def dialogue_of(folder: Path, server: ChatServer, pause: Pause, **more: int) -> Dialogue:
    config = ModelServerConfig(server.url, "m", PROMPT, number=(0, 5), **more)  # pyright: ignore[reportArgumentType]
    return Dialogue(config, Client(config), Allowance("quality", config, str(folder), 9), pause, config.answer_format())


def test_request_that_waits_for_its_turn_when_the_task_stops_is_not_charged(tmp_path: Path) -> None:
    pause, stopped = Pause(), list[StoppedError]()
    with chat_server(lambda text, number: "3") as server:
        dialogue = dialogue_of(tmp_path, server, pause, requests_per_minute=1)

        def second() -> None:
            try:
                dialogue.ask("b", "b")
            except StoppedError as error:
                stopped.append(error)

        assert dialogue.ask("a", "a").answer == "3"
        thread = threading.Thread(target=second)
        thread.start()
        pause.stop.set()
        thread.join(60)
        dialogue.allowance.close()
        dialogue.client.close()
    assert len(stopped) == 1 and len(server.requests) == 1
    assert Ledger(f"{tmp_path}/{FOLDER}").totals().requests == 1


OUTAGES = {"500": Fault(500), "reset": Fault(reset=True), "garbage": Fault(body=b"<html>")}


@pytest.mark.parametrize("name", OUTAGES)
def test_document_is_not_blamed_if_the_server_comes_back_with_the_probe(tmp_path: Path, name: str) -> None:
    """The server is down for all attempts at a document, and answers from the next request on."""
    with chat_server(lambda text, number: OUTAGES[name] if len(server.requests) <= 4 else "3") as server:
        dialogue = dialogue_of(tmp_path, server, Hurried())
        found = dialogue.ask("a", "a")
        dialogue.client.close()
    assert found.answer == "3"
    assert [one.text for one in server.requests] == ["a"] * 4 + [PROBE, "a"]


def test_last_attempt_decides_whether_the_server_was_down(tmp_path: Path) -> None:
    answers: list[str | Fault] = ["no", Fault(500), Fault(500), Fault(500), "1", "3"]
    with chat_server(lambda text, number: answers[len(server.requests) - 1]) as server:
        dialogue = dialogue_of(tmp_path, server, Hurried())
        assert dialogue.ask("a", "a").answer == "3"
        dialogue.client.close()


def test_document_that_makes_the_server_fail_is_blamed(tmp_path: Path) -> None:
    with chat_server(lambda text, number: Fault(500) if text == "a" else "3") as server:
        dialogue = dialogue_of(tmp_path, server, Hurried())
        found = dialogue.ask("a", "a")
        dialogue.client.close()
    assert (found.answer, found.failure, found.attempts) == (None, "HTTP 500 (after 5 attempts)", 4)


def test_waits_are_longer_without_an_answer_than_after_an_invalid_one(tmp_path: Path) -> None:
    """With the default number of attempts, an outage of several seconds passes before the probe."""
    waits = dict[str, float]()
    for name, fault in {"down": Fault(500), "invalid": "no"}.items():
        pause = Hurried()
        with chat_server(lambda text, number, fault=fault: fault if number <= 3 else "3") as server:
            dialogue = dialogue_of(tmp_path / name, server, pause)
            assert dialogue.ask("a", "a").answer == "3"
            dialogue.client.close()
        waits[name] = sum(pause.waits)
    assert 1.75 <= waits["invalid"] <= 3.5 and 7 <= waits["down"] <= 14
