"""A root on S3 gets the bytes of a root on disk from rules, the answers of a model server, passages, edits, final rules
and document buckets, even if the driver is killed in each of them. The root is on a real S3 server over HTTP (moto).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import datakit
from datakit.pipeline.fate.fates import why
from datakit.pipeline.rule_effects.effects import SampleOptions, effects
from datakit.retention.leftovers import find_leftovers
from datakit.storage import urls
from datakit.validate.validation import validate
from tests.support.annotate.combined_shelf import documents, recipe_with
from tests.support.annotate.model_server import PROMPT, ChatServer, chat_server
from tests.support.faults.chaos import committed_twice
from tests.support.faults.cluster import wait_until
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root
from tests.support.small_shelf import settle
from tests.support.trees import tree

WORKERS = 3
TABLES = """
[annotate.model_server.judge]
url = "{url}"
model = "judge"
prompt = "{prompt}"
number = [0, 9]
[[rules]]
name = "judged"
where = "judge.score < 1"
[[select.rules]]
name = "doubtful"
where = "judge.score < 2 AND edited.stretches > 0"
"""
# A run is killed before each of these phases, one after another; the phases before them are done.
KILLS = [("rules", "apply"), ("passages", "write"), ("select", "buckets")]
# The whole flow takes long, because a server in Python serves it, so `make test` runs only its first stages.
UNTIL = ["rules", pytest.param(None, marks=pytest.mark.soak)]

pytestmark = pytest.mark.xdist_group("combined-on-s3")  # one worker makes the root on disk


def answer(text: str, number: int) -> str:
    return str(zlib.crc32(text.encode()) % 10)


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    with chat_server(answer) as server:
        yield server


@pytest.fixture(scope="module")
def recipe(server: ChatServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = recipe_with(tmp_path_factory.mktemp("shelf"), TABLES.format(url=server.url, prompt=PROMPT))
    settle()
    return made


@pytest.fixture(scope="module")
def on_disk(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> datakit.RunResult:
    """An undisturbed run on disk."""
    return datakit.run(recipe, root=tmp_path_factory.mktemp("disk"), workers=WORKERS)


def outputs(root: str) -> dict[str, str]:
    """The hash of every file of a root, except the answers, whose files hold what was asked for at the same time."""
    return {path: found for path, found in tree(root).items() if not path.startswith((".cache", ".answers"))}


def answers(root: str) -> dict[str, str]:
    """The answer about each document, by its id. Fails if a document has two."""
    files = [info for info in urls.listing(urls.join(root, ".answers")) if "-of-" in info.path]  # without the account
    lines = [json.loads(line) for info in files for line in urls.read_bytes(info.url).splitlines()]
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["id"]: json.dumps(line, sort_keys=True) for line in lines}


@pytest.mark.parametrize("until", UNTIL)
def test_root_on_s3_has_the_bytes_of_one_on_disk(
    recipe: Path, on_disk: datakit.RunResult, server: ChatServer, until: str | None
) -> None:
    with s3_root() as root:
        result = datakit.run(recipe, root=root, workers=WORKERS, until=until)
        expected = {(step.stage, step.source): step.manifest for step in on_disk.steps}
        assert [step.manifest for step in result.steps] == [expected[step.stage, step.source] for step in result.steps]
        assert outputs(root).items() <= outputs(on_disk.root).items()
        assert answers(root) == answers(on_disk.root)
        assert set(answers(root)) == {one.id for one in documents()}
        assert validate(root).findings == [] and find_leftovers(root) == []
        asked = len(server.requests)
        assert datakit.run(recipe, root=root, workers=WORKERS, until=until).reused
        assert len(server.requests) == asked
        if until is None:
            _same_commands(root, on_disk.root)


def _same_commands(root: str, other: str) -> None:
    """Compare what commands state about two roots."""
    assert outputs(root) == outputs(other)
    options = SampleOptions(3)
    assert replace(effects(f"{root}/shelf", options), step="") == replace(effects(f"{other}/shelf", options), step="")
    for one in documents()[:200:50]:
        fates = [why(f"{place}/shelf", id=one.id).documents for place in (root, other)]
        assert [[(stage.stage, stage.explanation) for stage in fate.stages] for fate in fates[0]] == [
            [(stage.stage, stage.explanation) for stage in fate.stages] for fate in fates[1]
        ]


@pytest.mark.soak
def test_driver_killed_in_each_stage_resumes_to_the_same_bytes(
    recipe: Path, on_disk: datakit.RunResult, server: ChatServer
) -> None:
    with s3_root() as root:
        _killed_while_asking(recipe, root, server)
        stored = set(answers(root))
        asked_before = len(server.requests)
        assert stored, "it was to be killed after some answers were stored"
        for stage, phase in KILLS:
            command = [sys.executable, "-m", "tests.support.annotate.combined_shelf", str(recipe), root, str(WORKERS)]
            killed = subprocess.run([*command, stage, phase], cwd=REPOSITORY, capture_output=True, check=False)
            assert killed.returncode == -signal.SIGKILL, (stage, phase, killed.stderr.decode()[-2000:])
            assert not any(
                f"/{stage}-" in info.url and info.url.endswith("manifest.json") for info in urls.listing(root)
            )
        datakit.run(recipe, root=root, workers=WORKERS)
        ids = {one.text: one.id for one in documents()}
        again = {ids[request.text] for request in server.requests[asked_before:]}
        assert not again & stored, "no stored answer is asked for again"
        assert outputs(root) == outputs(on_disk.root)
        assert answers(root) == answers(on_disk.root)
        assert not committed_twice(root) and find_leftovers(root) == []


def _killed_while_asking(recipe: Path, root: str, server: ChatServer) -> None:
    """Run the recipe in a process of its own, and kill it once answers are stored."""
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", root, "--workers", "1"]
    driver = subprocess.Popen(
        command, cwd=recipe.parent, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    begun = wait_until(lambda: bool(answers(root)), 120)
    os.killpg(driver.pid, signal.SIGKILL)
    assert begun and driver.wait(60) == -signal.SIGKILL, "it was to be killed in the middle"
