"""`datakit doctor` on an object store in trouble: nobody there, no rights, another key, another clock; over real HTTP.

Rights are judged by the server itself (moto's own IAM), against real signatures.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datakit.doctor.finding import Finding, State
from datakit.doctor.machine import examine
from tests.support.faults.faulty_proxy import faulty_proxy
from tests.support.s3 import s3_root
from tests.support.small_shelf import command

READER = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": "*"}],
}


@pytest.fixture
def root() -> Iterator[str]:
    """An empty root on a server of its own."""
    with s3_root() as url:
        yield url


def examined(root: str, cwd: Path) -> dict[str, dict[str, Any]]:
    """The findings, by check, of the command, which must end with 2: something is wrong in each test here."""
    done: subprocess.CompletedProcess[str] = command("doctor", "--root", root, "--json", cwd=cwd)
    assert done.returncode == 2, done.stdout + done.stderr
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def make_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the server checks rights, and the environment has the key of one who may only read."""
    from botocore.session import get_session

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    iam: Any = get_session().create_client("iam", endpoint_url=endpoint)
    iam.create_user(UserName="reader")
    iam.put_user_policy(UserName="reader", PolicyName="reads", PolicyDocument=json.dumps(READER))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    plain = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0", plain, method="POST")
    urllib.request.urlopen(request).close()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])


def test_a_bucket_that_may_only_be_read_is_found(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_reader(monkeypatch)
    checks = examined(root, tmp_path)
    assert checks["root"]["state"] == "problem" and f"no permission to write {root}" in checks["root"]["message"]
    assert "get, put, list, delete" in checks["root"]["next_step"]
    assert "conditional put" not in checks, "what cannot be written cannot be tried"


def test_a_wrong_secret_is_found(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_reader(monkeypatch)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    found = examined(root, tmp_path)["root"]
    assert found["state"] == "problem" and "signature" in found["message"] and "credentials" in found["next_step"]


def test_a_store_that_does_not_answer_is_found(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    checks = examined(root, tmp_path)
    assert checks["root"]["state"] == "problem" and "does not answer" in checks["root"]["message"]
    assert "AWS_ENDPOINT_URL" in checks["root"]["next_step"]
    assert checks["clock"]["state"] == "warning" and "not compared" in checks["clock"]["message"]


def test_a_bucket_that_is_not_there_is_found(root: str, tmp_path: Path) -> None:
    found = examined("s3://no-such-bucket/root", tmp_path)["root"]
    assert found["state"] == "problem" and "no-such-bucket" in found["message"]


def clock(root: str) -> Finding:
    """What the check of the clock finds."""
    return next(finding for finding in examine(root) if finding.check == "clock")


@pytest.mark.parametrize(("ahead", "state"), [(3600, State.PROBLEM), (-3600, State.PROBLEM), (120, State.WARNING)])
def test_a_store_with_another_clock_is_found(root: str, ahead: int, state: State) -> None:
    with faulty_proxy(0.0) as proxy:
        proxy.seconds_ahead = ahead
        found = clock(root)
    assert found.state is state and "set the clock" in found.next_step
    shown = int(found.message.split()[0])
    assert abs(shown + ahead) < 60, "the difference as this machine sees it"
