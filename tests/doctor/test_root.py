"""`datakit doctor` reports what is wrong with a root, by using it: full disks, rights, keys and clocks.

Permissions are decided by the server itself (moto's own IAM) from real signatures.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datakit.doctor.finding import Finding, State
from datakit.doctor.root import check_store
from tests.support.faults.doctor import DOCTOR, findings_of
from tests.support.faults.faulty_proxy import faulty_proxy
from tests.support.faults.mounts import on_a_disk
from tests.support.s3 import s3_root

READER = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": "*"}],
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An empty root on a server without access control."""
    with s3_root() as url:
        yield url


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty root on a server that checks permissions; the environment has the key of a read-only user."""
    from botocore.session import get_session

    with s3_root() as url:
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
        yield url


def findings(root: str) -> dict[str, Finding]:
    """Check a root with the environment of this moment; returns the findings by check."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return {finding.check: finding for finding in check_store(root)}


def test_a_full_disk_is_a_problem(tmp_path: Path) -> None:
    fill = 'head -c 900k /dev/zero > "$DISK/fill"; "$@" --root "$DISK/root"'
    found = findings_of(on_a_disk(tmp_path / "disk", fill, *DOCTOR, SIZE="1m"))["root's disk"]
    assert found["state"] == "problem" and "another --root" in found["next_step"]


def test_a_working_store_is_ok(server: str) -> None:
    checks = findings(server)
    assert [checks[name].state for name in ("root", "conditional put", "clock")] == [State.OK] * 3


def test_a_read_only_bucket_is_a_problem(guarded: str) -> None:
    checks = findings(guarded)
    found = checks["root"]
    assert found.state is State.PROBLEM and f"no permission to write {guarded}" in found.message
    assert "get, put, list and delete" in found.next_step
    assert "conditional put" not in checks, "it cannot be tried without writing"


def test_a_wrong_secret_is_a_problem(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    found = findings(guarded)["root"]
    assert found.state is State.PROBLEM and "signature" in found.message and "credentials" in found.next_step


def test_a_silent_store_is_a_problem(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # the waits between retries add 7 s
    checks = findings(server)
    assert checks["root"].state is State.PROBLEM and "does not answer" in checks["root"].message
    assert "AWS_ENDPOINT_URL" in checks["root"].next_step
    assert checks["clock"].state is State.WARNING and "not compared" in checks["clock"].message


def test_a_missing_bucket_is_a_problem(server: str) -> None:
    found = findings("s3://no-such-bucket/root")["root"]
    assert found.state is State.PROBLEM and "no-such-bucket" in found.message


@pytest.mark.parametrize(("ahead", "state"), [(3600, State.PROBLEM), (-3600, State.PROBLEM), (120, State.WARNING)])
def test_clock_differences_are_measured(server: str, ahead: int, state: State) -> None:
    with faulty_proxy(0.0) as proxy:
        proxy.seconds_ahead = ahead
        found = findings(server)["clock"]
    assert found.state is state and "set the clock" in found.next_step
    shown = int(found.message.split()[0])
    assert abs(shown + ahead) < 60, "the difference as this machine sees it"
