"""Tokens come from files that only their owner can read, and mistakes in the options are errors."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.serve.server import UNREAD_MILLISECONDS, Settings, _open, access_of, hosts_of
from tests.support.command_line import command
from tests.support.engine.runs import wait_until
from tests.support.serve.process import serving

TOKEN = "0123456789" * 4


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(f"{text}\n")
    path.chmod(mode)
    return str(path)


def test_token_comes_from_a_private_file(tmp_path: Path) -> None:
    access = access_of(Settings("root", token_file=token_file(tmp_path)))
    assert access.token == TOKEN and not access.once


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [(TOKEN, 0o640, "chmod 600"), (TOKEN, 0o604, "chmod 600"), ("short", 0o600, "fewer than 32 characters")],
)
def test_unsafe_token_file_is_refused(tmp_path: Path, text: str, mode: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        access_of(Settings("root", token_file=token_file(tmp_path, text, mode)))


def test_missing_token_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--token-file .*none.*No such file"):
        access_of(Settings("root", token_file=str(tmp_path / "none")))


@pytest.mark.parametrize(("host", "token"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_other_addresses_need_a_token(host: str, token: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAKIT_SERVE_TOKEN", raising=False)
    access = access_of(Settings("root", host))
    assert bool(access.token) is token and access.once is token


def test_server_knows_its_names() -> None:
    assert hosts_of(Settings("root")) == {"localhost", "127.0.0.1", "::1"}
    assert hosts_of(Settings("root", names=("Data.Example",))) >= {"data.example"}
    assert socket.gethostname().lower() in hosts_of(Settings("root", "0.0.0.0"))


def test_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = command("serve", tmp_path, "--port", port, cwd=tmp_path)
    assert done.returncode == 2 and f"port {port}" in done.stderr and "choose another --port" in done.stderr


def test_interrupted_server_says_only_that_it_has_ended(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 130
        wait_until(lambda: len(server.said) > 1)
        assert server.said[1:] == ["interrupted; the server has ended"]


def test_missing_root_is_an_error(tmp_path: Path) -> None:
    done = command("serve", "none", cwd=tmp_path)
    assert done.returncode != 0 and "is not a directory" in done.stderr


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_browser_that_does_not_read_is_disconnected() -> None:
    with _open("127.0.0.1", 0) as opened, socket.create_connection(opened.getsockname()):
        accepted, _ = opened.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_MILLISECONDS
