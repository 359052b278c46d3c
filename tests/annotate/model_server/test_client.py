"""Whatever a server does, a request ends in an answer or in a failure of the right kind, and no message quotes it."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from datakit.annotate.model_server import client as clients
from datakit.annotate.model_server.client import BadAnswerError, Client, PassingError, RefusedDocumentError, Reply
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.request_body import request_body
from datakit.errors import ModelServerError
from tests.support.annotate.model_server import PROMPT, ChatServer, Fault, chat_server, completion

SECRET = "the-text-that-no-message-quotes"
KEY = "key-0123456789"


def ask(server: ChatServer | str, timeout: float = 5.0) -> Reply:
    url = server if isinstance(server, str) else server.url
    config = ModelServerConfig(url, "m", PROMPT, number=(0, 5), timeout=timeout, allow_http=True)
    client = Client(config, KEY)
    try:
        return client.ask(request_body(config, SECRET))
    finally:
        client.close()


def test_answer_with_its_tokens() -> None:
    with chat_server(lambda text, number: "3") as server:
        assert ask(server) == Reply("3", 10, 2)
        (request,) = server.requests
    assert request.path == "/v1/chat/completions" and request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "m" and request.text == SECRET


FAULTS = {
    "500": (Fault(500, body=SECRET.encode()), PassingError, "HTTP 500"),
    "503": (Fault(503), PassingError, "HTTP 503"),
    "429": (Fault(429, {"retry-after": "7"}), PassingError, "HTTP 429"),
    "reset": (Fault(reset=True), PassingError, "connection failed"),
    "slow": (Fault(wait=3.0, body=completion("3")), PassingError, "no response within 1 s"),
    "truncated": (Fault(body=completion("3"), cut=20), PassingError, "connection failed"),
    "empty": (Fault(), PassingError, "not in the form of the API"),
    "garbage": (Fault(body=b"\xff\x00" + SECRET.encode()), PassingError, "not in the form of the API"),
    "html": (Fault(body=b"<html>" + SECRET.encode()), PassingError, "not in the form of the API"),
    "deep": (Fault(body=b"[" * 100_000), PassingError, "not in the form of the API"),
    "other JSON": (Fault(body=b'{"choices": [{"text": "3"}]}'), PassingError, "not in the form of the API"),
    "no choice": (Fault(body=b'{"choices": []}'), BadAnswerError, "no answer"),
    "null": (Fault(body=completion(None)), BadAnswerError, "no answer"),
    "cut answer": (Fault(body=completion("1", finish="length")), BadAnswerError, "longer than max_tokens"),
    "400": (Fault(400, body=SECRET.encode()), RefusedDocumentError, "HTTP 400"),
    "413": (Fault(413), RefusedDocumentError, "HTTP 413"),
    "401": (Fault(401, body=KEY.encode()), ModelServerError, "does not accept the key"),
    "403": (Fault(403), ModelServerError, "does not permit"),
    "404": (Fault(404), ModelServerError, "no such address or model"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str) -> None:
    fault, kind, message = FAULTS[name]
    with chat_server(lambda text, number: fault) as server, pytest.raises(kind, match=message) as caught:
        ask(server, timeout=1.0 if name == "slow" else 5.0)
    assert SECRET not in str(caught.value) and KEY not in str(caught.value)
    if name == "429":
        assert isinstance(caught.value, PassingError) and caught.value.after == 7.0 and caught.value.busy


def test_redirects_are_not_followed() -> None:
    """Neither the text nor the key goes to a host that the recipe does not name."""
    with chat_server(lambda text, number: "3") as other:
        target = {"location": f"http://localhost:{other.port}/v1/chat/completions"}
        for status in (301, 302, 303, 307, 308):
            refused = pytest.raises(ModelServerError, match="redirects to another address")
            with chat_server(lambda text, number, status=status: Fault(status, target)) as server, refused:
                ask(server)
        assert other.requests == []


def test_endless_response_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MOST_BYTES", 1 << 16)
    cut = pytest.raises(PassingError, match="a response of more than")
    with chat_server(lambda text, number: Fault(body=b" " * (1 << 20))) as server, cut:
        ask(server)


def test_time_limit_holds_for_a_response_that_trickles() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        import threading

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                try:
                    for _ in range(100):
                        connection.sendall(b" ")
                        time.sleep(0.1)
                except OSError:
                    pass  # the client has given up

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        with pytest.raises(PassingError, match="no response within 1 s"):
            ask(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", timeout=1.0)
        thread.join()


def test_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(PassingError, match="no connection"):
        ask(f"http://127.0.0.1:{port}/v1")


def test_proxies_are_not_asked_about_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with chat_server(lambda text, number: "3") as server:
        assert ask(server).content == "3"


def test_settings_of_the_recipe_are_not_changed() -> None:
    config = ModelServerConfig("https://host/v1/", "m", PROMPT, number=(0, 5))
    assert replace(config, concurrency=3).content() == config.content()
