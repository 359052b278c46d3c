"""A real server answers only requests to its own name, for what is in its root, and with a token only after sign-in."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from datakit.serve.access import HEADERS, LONGEST_ADDRESS, MOST_WRONG, Access, host_name
from datakit.serve.app import MOST_FORM_BYTES
from datakit.serve.server import MOST_HEADER_BYTES
from tests.support.serve.process import Answer, ServeProcess, serving

TOKEN = "correct-horse-battery-staple-0123456789"
SECRET = "this-is-outside-of-the-root"


@pytest.fixture(scope="module")
def root(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished root, with a secret beside it and links to the secret in it."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(finished / "root", folder / "root")
    outside = folder / "outside" / "runs" / "r"
    outside.mkdir(parents=True)
    (outside / "events.jsonl").write_text(f'{{"event": "note", "time": 1.0, "number": 1, "text": "{SECRET}"}}\n')
    (folder / "outside" / "secret.txt").write_text(SECRET)
    (folder / "root" / "stolen").symlink_to(folder / "outside")
    (folder / "root" / "shelf" / "runs" / "stolen").symlink_to(outside)
    inner = folder / "root" / "shelf" / "runs" / "inner"
    inner.mkdir()
    (inner / "events.jsonl").symlink_to(outside / "events.jsonl")
    return folder / "root"


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[ServeProcess]:
    with serving(root) as process:
        yield process


@pytest.fixture(scope="module")
def guarded(root: Path) -> Iterator[ServeProcess]:
    """A server with a token."""
    with serving(root, DATAKIT_SERVE_TOKEN=TOKEN) as process:
        yield process


def run_of(root: Path) -> str:
    return next(path.name for path in (root / "shelf" / "runs").iterdir() if path.name.startswith("20"))


def signed_in(server: ServeProcess, token: str, **headers: str) -> Answer:
    body = urlencode({"token": token})
    return server.ask("/sign-in", "POST", body, Content_Type="application/x-www-form-urlencoded", **headers)


def test_pages_have_security_headers_and_no_text(server: ServeProcess, root: Path) -> None:
    run = run_of(root)
    paths = ("/", "/datasets/shelf", f"/runs/shelf/{run}", "/assets/live.js", "/sign-in", "/missing")
    for path in paths:
        answer = server.ask(path)
        assert answer.status == (404 if path == "/missing" else 200), path
        assert answer.headers.items() >= {name.lower(): value for name, value in HEADERS.items()}.items()
        assert "word1" not in answer.body and "server" not in answer.headers, "texts of the shelf consist of such words"


def test_report_of_a_finished_run_is_served(finished: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished / "root", tmp_path / "root"))
    with serving(root) as server:
        for path in (f"/runs/shelf/{run_of(root)}/report", "/datasets/shelf/report"):
            answer = server.ask(path)
            assert answer.status == 200, answer.body
            assert "datakit report" in answer.body and "<del>" not in answer.body
            assert "default-src &#39;none&#39;" in answer.body and answer.headers["content-security-policy"]


def test_report_that_would_read_a_linked_log_is_refused(server: ServeProcess, root: Path) -> None:
    answer = server.ask("/datasets/shelf/report")
    assert answer.status == 500 and SECRET not in answer.body
    assert f"{root}/shelf/runs/" in answer.body and "is outside of the root that is served" in answer.body


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421), ("127.0.0.1.evil.example:80", 421), ("localhost@evil.example", 421), ("", 421),
        ("10.0.0.1", 421), ("localhost.evil", 421), ("localhost:9999", 200), ("LOCALHOST", 200), ("[::1]:1", 200),
    ],
)  # fmt: skip
def test_foreign_host_header_is_refused(server: ServeProcess, host: str, status: int) -> None:
    assert server.ask("/", Host=host).status == status


def test_request_without_or_with_two_host_headers_is_refused(server: ServeProcess) -> None:
    assert b" 400 " in server.raw(b"GET / HTTP/1.0\r\n\r\n").partition(b"\r\n")[0]
    two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert b" 400 " in server.raw(two).partition(b"\r\n")[0]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_get_and_head_are_allowed(server: ServeProcess, method: str) -> None:
    assert server.ask("/", method).status == 405
    assert server.ask("/", "HEAD").status == 200


def test_requests_of_other_sites_are_refused(server: ServeProcess) -> None:
    foreign = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "empty"}
    assert server.ask("/events", **foreign).status == 403
    assert server.ask("/", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image").status == 403
    followed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert server.ask("/", **followed).status == 200
    framed = followed | {"Sec_Fetch_Dest": "iframe"}
    assert server.ask("/", **framed).status == 403
    assert server.ask("/", Origin="https://evil.example").status == 403


TRAVERSALS = [
    "/../outside/secret.txt",
    "/datasets/../../outside",
    "/datasets/%2e%2e/outside",
    "/datasets/..%2foutside",
    "/datasets/%2e%2e%2f%2e%2e%2foutside%2fsecret.txt",
    "/datasets/%252e%252e%252foutside",
    "/datasets//etc/passwd",
    "/datasets/%2fetc%2fpasswd",
    "/datasets/..%5coutside",
    "/datasets/..\\outside",
    "/datasets/shelf%00",
    "//etc/passwd",
    "/assets/../serve.css",
    "/assets/%2e%2e/__init__.py",
    "/assets/..%2f..%2f..%2fetc%2fpasswd",
    "/assets/layout.html.jinja",
    "/runs/shelf/..",
    "/runs/shelf/%2e%2e",
    "/runs/shelf/..%2f..",
    "/runs/../../outside/runs/r",
    "/runs/stolen/r",
    "/runs/shelf/stolen",
    "/datasets/stolen",
    "/datasets/stolen/report",
    "/trainings/shelf/..",
    "/runs/shelf/stolen/report",
    "/datasets/sources",
    "/datasets/.cache",
    "/datasets/shelf/ledger",
    "/files/shelf/r",
    "/datasets/" + "a" * 9000,
    "/datasets/file:%2f%2f%2fetc%2fpasswd",
    "/datasets/s3:%2f%2fbucket",
    "http://evil.example/etc/passwd",
]


@pytest.mark.parametrize("path", TRAVERSALS, ids=lambda path: path[:40])
def test_nothing_outside_the_root_is_served(server: ServeProcess, path: str) -> None:
    answer = server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    status = int(answer.split(b" ", 2)[1])
    assert status in (400, 404, 414), answer[:300]
    assert SECRET.encode() not in answer and b"root:" not in answer


def test_log_that_is_a_link_out_of_the_root_is_not_read(server: ServeProcess) -> None:
    answer = server.ask("/runs/shelf/inner")
    assert answer.status == 200 and "is a link out of the root" in answer.body and SECRET not in answer.body
    assert SECRET not in server.ask("/").body


def test_address_or_header_that_is_too_long_is_refused(server: ServeProcess) -> None:
    assert server.ask("/?" + "a" * LONGEST_ADDRESS).status == 414
    answer = server.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (MOST_HEADER_BYTES + 1))
    assert answer.split(b" ", 2)[1] == b"400"
    assert server.ask("/").status == 200


def test_token_is_exchanged_for_a_strict_cookie(guarded: ServeProcess) -> None:
    refused = guarded.ask("/")
    assert refused.status == 401 and "shelf" not in refused.body and 'action="/sign-in"' in refused.body
    assert guarded.ask("/events").status == 401 and guarded.ask("/datasets/shelf/report").status == 401
    assert signed_in(guarded, "wrong").status == 401
    answer = signed_in(guarded, TOKEN)
    cookie = answer.headers["set-cookie"]
    assert answer.status == 303 and answer.headers["location"] == "/" and TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(re.split("; *", cookie)) and "Secure" not in cookie
    session = cookie.partition(";")[0]
    assert guarded.ask("/", Cookie=session).status == 200
    assert guarded.ask("/", Cookie=session[:-2] + "AA").status == 401
    assert guarded.ask("/", Cookie=f"other=1; {session}").status == 200
    assert TOKEN not in " ".join(guarded.said)


def test_cookie_is_secure_behind_a_proxy_with_tls(guarded: ServeProcess) -> None:
    assert "Secure" in signed_in(guarded, TOKEN, X_Forwarded_Proto="https").headers["set-cookie"]


def test_sign_in_from_another_site_is_refused(guarded: ServeProcess) -> None:
    navigation = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert signed_in(guarded, TOKEN, Origin="https://evil.example").status == 403
    assert signed_in(guarded, TOKEN, Sec_Fetch_Site="cross-site", **navigation).status == 403
    assert signed_in(guarded, "x" * MOST_FORM_BYTES).status == 413


def test_sign_in_works_where_browsers_send_only_an_origin(guarded: ServeProcess) -> None:
    """Over plain http to another machine, browsers send no Sec-Fetch headers, and the policy decides on the origin."""
    assert signed_in(guarded, TOKEN, Origin=guarded.url).status == 303
    assert signed_in(guarded, TOKEN, Origin="null").status == 403
    assert HEADERS["Referrer-Policy"] == "same-origin", "with no-referrer, the origin of a form is null"


def test_session_of_a_given_token_outlives_a_restart(root: Path, guarded: ServeProcess) -> None:
    session = signed_in(guarded, TOKEN).headers["set-cookie"].partition(";")[0]
    with serving(root, DATAKIT_SERVE_TOKEN=TOKEN) as again:
        assert again.ask("/", Cookie=session).status == 200


def test_printed_token_works_once_on_other_addresses(root: Path) -> None:
    with serving(root, "--host", "0.0.0.0") as process:
        while not (found := [re.search(r"/sign-in: (\S+)$", text) for text in process.said if "token" in text]):
            assert process.process.poll() is None
        assert found[0] is not None
        assert process.ask("/").status == 401
        assert process.ask("/", Host=os.uname().nodename).status == 401
        assert process.ask("/", Host="evil.example").status == 421
        assert signed_in(process, found[0][1]).status == 303
        assert signed_in(process, found[0][1]).status == 401


def test_wrong_tokens_are_limited() -> None:
    access = Access(TOKEN)
    for _ in range(MOST_WRONG):
        assert access.exchange("wrong") is None
    with pytest.raises(TimeoutError, match="too many wrong tokens"):
        access.exchange(TOKEN)


def test_sessions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(TOKEN)
    session = f"datakit_session={access.exchange(TOKEN)}"
    assert access.admits(session) and not Access(TOKEN + "x").admits(session)
    monkeypatch.setattr("datakit.serve.access.time.time", lambda: 1e11)
    assert not access.admits(session)


@pytest.mark.parametrize(
    "cookies", ["", "datakit_session=", "datakit_session=..", "datakit_session=9e9.x.é", "\x00=;;"]
)
def test_malformed_cookies_admit_nobody(cookies: str) -> None:
    assert not Access(TOKEN).admits(cookies)


def test_malformed_host_headers_have_no_name() -> None:
    assert [host_name(header) for header in ("[::1", "a b", "/", "a:b:c", "user@localhost", "localhost.")] == [
        "", "a b", "", "a", "", "localhost",
    ]  # fmt: skip
