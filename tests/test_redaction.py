"""Secrets in texts are replaced, the rest of the text is kept, and no file or message of a run contains a secret."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.task import Task
from datakit.errors import InputError, RefusedInputsError
from datakit.redaction import has_user_info, redacted
from tests.support.canary import Canaries, leaks_in_files, leaks_in_text, planted, watched
from tests.support.command_line import command
from tests.support.faults.signed_server import signed_server
from tests.support.normalize.sources import write_lines

SIGNED = "https://host/b/a.jsonl?X-Amz-Credential=AK%2F1&X-Amz-Signature=0a1b2c"
REQUEST = aiohttp.RequestInfo(
    URL(SIGNED), "GET", CIMultiDictProxy(CIMultiDict(Authorization="Bearer hf_abcdefghijklmnopqrst")), URL(SIGNED)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{SIGNED} does not exist", "https://host/b/a.jsonl?[redacted] does not exist"),
        (f"cannot read {SIGNED}; run again", "cannot read https://host/b/a.jsonl?[redacted]; run again"),
        ("url: /b/a?X-Amz-Signature=0a (Caused by x)", "url: /b/a?[redacted] (Caused by x)"),
        ("https://host/a?0a1b2c", "https://host/a?[redacted]"),
        ("ftp://user:wo@rd@host/a", "ftp://[redacted]@host/a"),
        ("s3://AKIA:se/cr+et@bucket/a", "s3://[redacted]@bucket/a"),
        ("GET&X-Amz-Signature=0a1b", "GET&X-Amz-Signature=[redacted]"),
        ("Credential=AKIA/2026, SignedHeaders=host", "Credential=[redacted], SignedHeaders=host"),
        ("'Authorization': 'Basic dXNlcjp3b3Jk'", "'Authorization': '[redacted]'"),
        ("b'X-Amz-Security-Token: FwoGZXIvYXdz'", "b'X-Amz-Security-Token: [redacted]'"),
        ("the token hf_abcdefghijklmnopqrst is wrong", "the token [redacted] is wrong"),
        ('{"aws_secret_access_key": "abcdefghijkl"}', '{"aws_secret_access_key": "[redacted]"}'),
    ],
)
def test_secrets_are_replaced(text: str, expected: str) -> None:
    assert redacted(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/part-?.jsonl: no files match *.jsonl",
        "hf://datasets/organization/name@main/data is empty",
        "http://host:8080/a@b",
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's token",
        "did you mean 'threshold'?",
        "used 12 MiB (budget: 10 MiB); numpy.MemoryError = no",
        "/data/user@host/a.jsonl:120: not JSON",
    ],
)
def test_texts_without_secrets_are_kept(text: str) -> None:
    assert redacted(text) == text
    assert not has_user_info(text)


def test_messages_of_clients_are_redacted() -> None:
    error = aiohttp.ClientResponseError(REQUEST, (), status=403, message="Forbidden")
    for text in (str(error), repr(error)):
        safe = redacted(text)
        assert "0a1b2c" not in safe and "hf_abc" not in safe and "Forbidden" in safe


def test_values_of_secret_variables_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "correct/horse")
    monkeypatch.setenv("MY_TOKEN_PATH", "/home/someone/token")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert redacted("denied: correct/horse, correct%2Fhorse") == "denied: [redacted], [redacted]"
    assert redacted("/home/someone/token is empty; s3://test/a") == "/home/someone/token is empty; s3://test/a"


def test_errors_and_outcomes_are_redacted() -> None:
    assert str(InputError(f"cannot read {SIGNED}")) == "cannot read https://host/b/a.jsonl?[redacted]"
    refused = RefusedInputsError([SIGNED, "b"])
    assert "0a1b2c" not in str(refused) and "0a1b2c" not in "".join(refused.messages)
    attempt = Attempt(Task("0", "module:function", {}, secret="0a1b2c"), "fetch", "/step", 1, 1, 1)
    assert "0a1b2c" not in Outcome.of(attempt, Cause.ERROR, message=SIGNED).message
    assert "0a1b2c" not in repr(attempt)


class Runs:
    """Runs commands with canaries in the environment, and collects the leaks of their output."""

    def __init__(self, canaries: Canaries, folder: Path) -> None:
        self.canaries, self.folder, self.leaks = canaries, folder, list[str]()
        (folder / "tmp").mkdir()

    def run(self, *arguments: str, recipe: str = "", **variables: str) -> tuple[int, str]:
        """Run a command on a recipe, which is removed afterwards, as it may contain a signature."""
        path = self.folder / "recipe.toml"
        path.write_text(recipe)
        words = [str(path) if word == "RECIPE" else word for word in arguments]
        done = command(*words, cwd=self.folder, TMPDIR=str(self.folder / "tmp"), **variables)
        path.unlink()
        self.leaks += leaks_in_text(self.canaries, " ".join(arguments[:1]), done.stdout + done.stderr)
        return done.returncode, done.stdout + done.stderr


def recipe(url: str, more: str = "") -> str:
    return f'name = "shelf"\n[[sources]]\nname = "web"\nurl = "{url}"\n[tokenize]\ntokenizer = "bytes"\n{more}'


def test_runs_leak_no_secrets(tmp_path: Path) -> None:
    source = tmp_path / "served"
    write_lines(source / "a.jsonl", *({"text": f"document {number}"} for number in range(20)))
    with planted() as canaries, watched(canaries) as titles, signed_server(source) as server:
        runs = Runs(canaries, tmp_path)
        signed = server.sign("a.jsonl", canaries.signature)
        root = ("--root", "data")
        code, text = runs.run("run", "RECIPE", *root, recipe=recipe(signed))
        assert code == 0, text
        assert runs.run("plan", "RECIPE", *root, "--json", recipe=recipe(signed))[0] == 0
        for debug in ({}, {"DATAKIT_DEBUG": "1"}):
            server.accepted.clear()  # the signature expires
            other = ("run", "RECIPE", "--root", "other", "--log", "json", "--log-level", "debug")
            code, text = runs.run(*other, recipe=recipe(signed), **debug)
            assert (code, "newly signed URL" in text) == (2, True), text
            assert all(json.loads(line)["time"] for line in text.splitlines())
            code, text = runs.run("run", "RECIPE", "--root", "other", recipe=recipe(signed), **debug)
            assert (code, "newly signed URL" in text) == (2, True), text
            closed = {"AWS_ENDPOINT_URL": f"http://user:{canaries.password}@127.0.0.1:9"}
            closed |= {"AWS_ACCESS_KEY_ID": "k", "AWS_MAX_ATTEMPTS": "1", **debug}
            assert runs.run("run", "RECIPE", *root, recipe=recipe("s3://bucket/a"), **closed)[0] == 1
            assert runs.run("doctor", "--root", "s3://bucket/a", **closed)[0] == 2
            password = recipe(f"https://user:{canaries.password}@host/a.jsonl")
            code, text = runs.run("run", "RECIPE", *root, recipe=password, **debug)
            assert (code, "contains a user name or a password" in text) == (2, True), text
            hub = recipe(str(source), "").replace("bytes", "org/model")
            assert runs.run("run", "RECIPE", *root, recipe=hub, HF_ENDPOINT=server.address, **debug)[0] == 2
        assert runs.run("status", "data", "--all")[0] == 0
        assert runs.run("inspect", "data/shelf", "--json")[0] == 0
        assert titles == []
        assert runs.leaks == []
        assert leaks_in_files(canaries, tmp_path) == []
        logs = [path.read_text().splitlines() for path in (tmp_path / "data/shelf/runs").rglob("events.jsonl")]
        names = {json.loads(line)["event"] for lines in logs for line in lines}
        assert names >= {"run_started", "attempt_ended", "step_ended", "run_ended"}


def test_search_finds_planted_secrets(tmp_path: Path) -> None:
    """A search that cannot find a secret proves nothing."""
    with planted() as canaries:
        (tmp_path / "file").write_text(f"a{canaries.variables['HF_TOKEN']}b")
        assert leaks_in_files(canaries, tmp_path) == [f"{tmp_path / 'file'}: HF_TOKEN"]
        assert leaks_in_text(canaries, "out", f"?sig={canaries.signature}") == ["out: signature"]
