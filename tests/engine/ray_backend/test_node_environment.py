"""Nodes get settings but no secrets that the user has not listed, and Ray stores and shows none of what they get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.engine.ray_backend import node_environment
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.ray_backend.node_environment import FORWARD, sent_variables, withheld_variables
from datakit.errors import RootError, UsageError
from tests.support.canary import (
    leaks_in_environments,
    leaks_in_files,
    leaks_in_memory,
    leaks_in_text,
    planted,
    rays_processes,
    watched,
)
from tests.support.engine.attempts import attempt, run_all
from tests.support.faults.cluster import SharedCluster
from tests.support.faults.signed_server import signed_server
from tests.support.normalize.sources import write_lines
from tests.support.s3 import s3_root

SENT, NOT_SENT = ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"], ["HF_TOKEN", "AZURE_STORAGE_KEY"]
DRIVER = """
import json, os, sys
from pathlib import Path
from datakit.pipeline import running
from datakit.engine.executor import Cause
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.errors import DatakitError
from datakit.recipe import load_recipe
from tests.support.engine.attempts import attempt, run_all

address, root, recipe, names = sys.argv[1:]
executor = RayExecutor(address, root, 2)  # also keeps the connection for the run
done = running.run(load_recipe(recipe), root, ray="auto", until="normalize")
try:
    running.run(load_recipe(recipe.replace("good", "bad")), root, ray="auto", until="normalize")
except DatakitError as error:
    failed = str(error)
outcomes = run_all(executor, [attempt("ray_tasks:variables", Path(root), names=names.split(","))])
failing = run_all(executor, [attempt("ray_tasks:fail_with", Path(root), variable="AWS_SESSION_TOKEN")])
seen = {"seen": outcomes[0].result.details, "rows": done.steps[-1].manifest.totals.rows, "failed": failed}
print(json.dumps(seen | {"message": failing[0].message}), flush=True)
sys.stdin.readline()
executor.close()
"""


def test_rays_processes_and_files_hold_no_secrets(shared_cluster: SharedCluster, tmp_path: Path) -> None:
    cluster, root = shared_cluster.cluster, tmp_path / "root"
    write_lines(tmp_path / "served/a.jsonl", *({"text": f"document {number}"} for number in range(20)))
    with planted() as canaries, watched(canaries) as titles, signed_server(tmp_path / "served") as server:
        good = tmp_path / "good.toml"
        url = server.sign("a.jsonl", canaries.signature)
        good.write_text(f'name = "shelf"\n[[sources]]\nname = "web"\nurl = "{url}"\n')
        (tmp_path / "bad.toml").write_text(good.read_text().replace(canaries.signature, f"old{canaries.signature}"))
        variables = {FORWARD: ",".join(SENT), "RAY_ADDRESS": cluster.address, "AWS_ACCESS_KEY_ID": "test"}
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, cluster.address, str(root), str(good), ",".join([*SENT, *NOT_SENT])],
            env=os.environ | cluster.environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        own = rays_processes(cluster.mark)
        (head,) = (one for one in own if one.name() == "gcs_server")
        workers = sum(one.cmdline()[0].startswith("ray::") for one in own)
        leaks = leaks_in_environments(canaries, own) + leaks_in_memory(canaries, head)
        _, errors = process.communicate("\n", timeout=300)
    facts = json.loads(line or "{}")
    assert facts, errors
    leaks += leaks_in_text(canaries, "messages", facts["failed"] + facts["message"] + errors)
    leaks += leaks_in_files(canaries, root, cluster.folder)
    assert workers and (leaks, titles) == ([], [])
    assert facts["seen"] == {name: canaries.variables[name] for name in SENT} | dict.fromkeys(NOT_SENT)
    assert facts["rows"] == 20 and "newly signed URL" in facts["failed"]


def test_credentials_that_were_not_sent_are_named(executor: RayExecutor) -> None:
    with s3_root() as root, pytest.MonkeyPatch.context() as patch:
        patch.delenv(FORWARD)
        with pytest.raises(RootError, match="does not share the root") as refused:
            RayExecutor("auto", root)
        patch.setenv(FORWARD, "AWS_*")
        RayExecutor("auto", root).close()
    message = str(refused.value)
    assert "credentials of the driver's machine were not sent to the node" in message
    assert message.endswith(f"with {FORWARD}=AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY")


def test_variables_replace_those_of_earlier_executors(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(used: RayExecutor) -> list[dict[str, str | None] | str]:
        names = ["DATAKIT_FIRST", "DATAKIT_SECOND"]
        attempts = [attempt("ray_tasks:variables", tmp_path, number, names=names) for number in range(4)]
        return [outcome.result.details if outcome.result else outcome.message for outcome in run_all(used, attempts)]

    with monkeypatch.context() as patch:
        patch.setenv("DATAKIT_FIRST", "1")
        first = RayExecutor("auto", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setenv("DATAKIT_SECOND", "2")
        second = RayExecutor("auto", str(tmp_path))
    for _ in range(2):
        assert seen(first) == [{"DATAKIT_FIRST": "1", "DATAKIT_SECOND": None}] * 4
        assert seen(second) == [{"DATAKIT_FIRST": None, "DATAKIT_SECOND": "2"}] * 4
    first.close()
    second.close()


def test_only_settings_are_sent_unless_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith((*node_environment.STORES, node_environment.OWN)):
            monkeypatch.delenv(name)
    settings = {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://host:9000", "DATAKIT_DEBUG": "1"}
    secrets = {"AWS_ACCESS_KEY_ID": "k", "AWS_PROFILE": "p", "HF_TOKEN": "t", "FSSPEC_S3_KEY": "k"}
    for name, value in {**settings, **secrets, "DATAKIT_API_TOKEN": "t"}.items():
        monkeypatch.setenv(name, value)
    assert sent_variables() == settings
    assert withheld_variables() == tuple(sorted(secrets))
    monkeypatch.setenv(FORWARD, "AWS_*, HF_TOKEN")
    assert set(withheld_variables()) == {"FSSPEC_S3_KEY"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:word@host:9000")
    monkeypatch.delenv(FORWARD)
    assert "AWS_ENDPOINT_URL" in withheld_variables()


@pytest.mark.parametrize(
    ("listed", "message"), [("HF_TOKN", "names HF_TOKN, which is not set here"), ("*", "matches too many variables")]
)
def test_unusable_lists_are_refused(listed: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORWARD, listed)
    with pytest.raises(UsageError, match=message):
        sent_variables()


def test_adopted_variables_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_environment, "_before", {})
    monkeypatch.setattr(node_environment, "_adopted", None)
    monkeypatch.setenv("DATAKIT_ONE", "own")
    assert node_environment.adopt({"DATAKIT_ONE": "a", "DATAKIT_TWO": "b"})
    assert not node_environment.adopt({"DATAKIT_ONE": "a", "DATAKIT_TWO": "b"})
    assert (os.environ["DATAKIT_ONE"], os.environ["DATAKIT_TWO"]) == ("a", "b")
    assert node_environment.adopt({})
    assert os.environ["DATAKIT_ONE"] == "own" and "DATAKIT_TWO" not in os.environ
