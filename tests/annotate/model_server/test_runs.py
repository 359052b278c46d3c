"""Whole runs: the answers decide the bytes, nothing is paid for twice, and no limit is passed in silence."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from datakit.annotate.model_server import phase
from datakit.api import plan, run
from datakit.engine.scheduler import driver
from datakit.engine.task import Step
from datakit.errors import DatakitError, PartialError, RefusedError, StorageError
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate
from tests.support.annotate.model_server import PROMPT, Answering, ChatServer, Fault, chat_server, completion
from tests.support.command_line import invoke
from tests.support.paths import REPOSITORY
from tests.support.processes import ended

TEXTS = [f"Story {number}, told in {number % 9 + 1} words" for number in range(150)]
TABLE = """
[annotate.model_server.quality]
url = "{url}"
model = "judge"
prompt = "{prompt}"
number = [0, 5]
"""
RULE = """
[[rules]]
name = "good"
where = "quality.score < 2"
[tokenize]
tokenizer = "bytes"
"""


def number_of(text: str, number: int = 1) -> str:
    return str(int(text.partition(",")[0].removeprefix("Story ")) % 6) if text.startswith("Story") else "1"


def recipe_of(folder: Path, server: ChatServer, more: str = "", after: str = "", annotate: str = "") -> Path:
    """Write a recipe with texts. more: further settings of the server. after, annotate: further tables."""
    folder.mkdir(exist_ok=True)
    (folder / "tales.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    table = TABLE.format(url=server.url, prompt=PROMPT) + more
    (folder / "shelf.toml").write_text(
        f'name = "shelf"\n[[sources]]\nname = "tales"\nurl = "tales.jsonl"\n{annotate}{table}{after}'
    )
    return folder / "shelf.toml"


def driver_of(recipe: Path, root: Path, workers: int, errors: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own."""
    words = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", str(root), "--workers", str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(words, env=environment, cwd=recipe.parent, stdout=subprocess.DEVNULL, stderr=errors)


def data_of(directory: str) -> dict[str, bytes]:
    data = Path(directory, "data")
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def stored_ids(root: Path) -> set[str]:
    paths = root.glob(".answers/*/*-of-*/*.jsonl")
    return {json.loads(line)["id"] for path in paths for line in path.read_text().splitlines()}


def ids_of(root: Path) -> dict[str, str]:
    """The id of each text."""
    paths = root.glob("sources/tales/normalize-*/data/tales/*.parquet")
    return {row["text"]: row["id"] for path in paths for row in read_shard(str(path)).to_pylist()}


def test_one_worker_and_three_write_the_same_bytes(tmp_path: Path) -> None:
    with chat_server(number_of) as server:
        recipe = recipe_of(tmp_path, server, after=RULE, annotate="[annotate.script]\n")
        results = [run(recipe, tmp_path / str(workers), workers=workers) for workers in (1, 3)]
        first, second = ({step.stage: step for step in result.steps} for result in results)
    assert len(server.requests) == 2 * len(TEXTS)
    for stage in ("annotate", "rules", "tokenize"):
        assert data_of(first[stage].directory) == data_of(second[stage].directory) != {}
        assert first[stage].manifest.identity == second[stage].manifest.identity
    kept = sum(int(number_of(text)) >= 2 for text in TEXTS)
    assert first["tokenize"].manifest.totals.rows == kept
    assert validate(str(tmp_path / "1")).findings == []


def test_other_answers_make_the_later_steps_again(tmp_path: Path) -> None:
    with chat_server(number_of) as server:
        recipe = recipe_of(tmp_path, server, after=RULE)
        first = run(recipe, tmp_path / "a", workers=2)
        server.answer = lambda text, number: "1" if text == TEXTS[3] else number_of(text)
        second = run(recipe, tmp_path / "b", workers=2)
    steps = [{step.stage: step.manifest for step in result.steps} for result in (first, second)]
    assert steps[0]["annotate"].fingerprint == steps[1]["annotate"].fingerprint
    for stage in ("rules", "select", "tokenize"):
        assert steps[0][stage].fingerprint != steps[1][stage].fingerprint
    for stage in ("normalize", "contract"):
        assert steps[0][stage].fingerprint == steps[1][stage].fingerprint


def test_answers_outlive_the_step_and_serve_other_recipes(tmp_path: Path) -> None:
    numbers = iter(range(10**6))
    with chat_server(lambda text, number: str(next(numbers) % 6)) as server:
        first = run(recipe_of(tmp_path, server), tmp_path / "root", workers=2)
        changed = run(recipe_of(tmp_path, server, annotate="[annotate.script]\n"), tmp_path / "root", workers=2)
    one, other = (result.steps_of("annotate")[0] for result in (first, changed))
    assert one.directory != other.directory and len(server.requests) == len(TEXTS)
    scores = [{name: data for name, data in data_of(step.directory).items() if "quality" in name}
              for step in (one, other)]  # fmt: skip
    assert scores[0] == scores[1] != {}


def test_garbage_collection_keeps_the_answers(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with chat_server(number_of) as server:
        run(recipe_of(tmp_path, server), root, workers=2)
        run(recipe_of(tmp_path, server, "version = 2\n"), root, workers=2)
    before = stored_ids(root)
    done = invoke("gc", root, "--unreachable", "--delete", "--older-than", "0", cwd=tmp_path)
    assert done.returncode == 0 and len(list(root.glob("sources/tales/annotate-*"))) == 1, done.stderr
    assert len(list(root.glob(".answers/*"))) == 2 and stored_ids(root) == before


def test_killed_driver_loses_no_stored_answer(tmp_path: Path) -> None:
    """The second run sends only what is not stored: at most one batch and the requests under way were lost."""
    with chat_server(lambda text, number: Fault(wait=0.02, body=completion(number_of(text)))) as server:
        recipe = recipe_of(tmp_path, server, "concurrency = 2\n", after=RULE)
        driver = driver_of(recipe, tmp_path / "root", workers=2)
        family = list[psutil.Process]()
        deadline = time.monotonic() + 120
        while len(server.requests) < 100 and time.monotonic() < deadline:
            time.sleep(0.02)
        family += psutil.Process(driver.pid).children(recursive=True)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        while not all(map(ended, family)) and time.monotonic() < deadline:
            time.sleep(0.05)
        before, stored = server.counts(), stored_ids(tmp_path / "root")
        assert 64 <= len(stored) < len(TEXTS)
        server.answer = lambda text, number: "0"
        result = run(recipe, tmp_path / "root", workers=2)
        after = server.counts() - before
    ids = ids_of(tmp_path / "root")
    assert after == {text: 1 for text, one in ids.items() if one not in stored}
    assert len(after) + len(stored) == len(TEXTS)
    (step,) = result.steps_of("annotate")
    scores = {row["id"]: row["score"] for path in Path(step.directory).glob("data/tales/quality/*")
              for row in read_shard(str(path)).to_pylist()}  # fmt: skip
    assert all(scores[one] == float(number_of(text) if one in stored else "0") for text, one in ids.items())


def test_two_drivers_at_the_same_time_pay_once(tmp_path: Path) -> None:
    numbers = iter(range(10**6))
    answer = lambda text, number: Fault(wait=0.01, body=completion(str(next(numbers) % 6)))  # noqa: E731
    with chat_server(answer) as server:
        recipe = recipe_of(tmp_path, server)
        drivers = [driver_of(recipe, tmp_path / "root", workers=1, errors=subprocess.PIPE) for _ in range(2)]
        codes = [(driver.communicate(timeout=200)[1], driver.returncode) for driver in drivers]
    assert [code for _, code in codes] == [0, 0], codes
    assert server.counts() == dict.fromkeys(TEXTS, 1)


def test_spent_budget_ends_the_step_as_partial_and_a_raised_one_goes_on(tmp_path: Path) -> None:
    with chat_server(number_of) as server:
        recipe = recipe_of(tmp_path, server, "max_requests = 40\n", after=RULE)
        words = ("run", str(recipe), "--root", str(tmp_path / "root"), "--workers", "2")
        for _ in range(2):  # the second run sends nothing
            done = invoke(*words, cwd=tmp_path)
            assert done.returncode == 3 and len(server.requests) == 40
            message = " ".join(done.stderr.split())
            assert f"{len(TEXTS) - 40} records" in message and "max_requests is 40; raise max_requests" in message
        assert not list(tmp_path.glob("root/shelf/tokenize-*/manifest.json"))
        (partial,) = tmp_path.glob("root/sources/tales/annotate-*/partial.json")
        assert json.loads(partial.read_text())["failed"][0]["open"] == len(TEXTS) - 40
        (planned,) = plan(recipe, tmp_path / "root").requests
        assert (planned.open, planned.sent, planned.max_requests) == (len(TEXTS) - 40, 40, 40)
        recipe_of(tmp_path, server, f"max_requests = {len(TEXTS)}\n", after=RULE)
        result = run(recipe, tmp_path / "root", workers=2)
    assert server.counts() == dict.fromkeys(TEXTS, 1) and not partial.exists()
    assert result.steps_of("tokenize")[0].manifest.totals.rows > 0


def except_late_answer(fault: str, until: int) -> Answering:
    """No valid answer about one text, until the server has been asked about it so often."""
    return lambda text, number: fault if text == TEXTS[7] and number <= until else number_of(text)


def test_attempts_raised_after_the_limit_was_exceeded_ask_again_in_the_same_step(tmp_path: Path) -> None:
    """The answers that the first run has written for the next phase are not in the way."""
    root = tmp_path / "root"
    with chat_server(except_late_answer("no", 4)) as server:
        with pytest.raises(PartialError, match="1 record"):
            run(recipe_of(tmp_path, server), root, workers=2)
        result = run(recipe_of(tmp_path, server, "attempts = 5\n"), root, workers=2)
        assert server.counts() == dict.fromkeys(TEXTS, 1) | {TEXTS[7]: 5}
        other = run(recipe_of(tmp_path, server), tmp_path / "other", workers=2)
    (step,), (whole,) = (one.steps_of("annotate") for one in (result, other))
    assert len(list(root.glob("sources/tales/annotate-*"))) == 1
    assert data_of(step.directory) == data_of(whole.directory) and step.manifest.identity == whole.manifest.identity


def test_attempts_raised_after_tables_were_written_name_the_directory_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run ends between its last table and its manifest."""
    root, limit = tmp_path / "root", "[annotate]\nmax_quarantined = 1\n"
    with chat_server(except_late_answer("no", 4)) as server:
        recipe = recipe_of(tmp_path, server, annotate=limit)
        with monkeypatch.context() as patch:
            finish = driver.finish_step

            def interrupted(step: Step, *more: Any) -> Any:
                if step.stage == "annotate":
                    raise StorageError("interrupted")
                return finish(step, *more)

            patch.setattr(driver, "finish_step", interrupted)
            with pytest.raises(DatakitError, match="interrupted"):
                run(recipe, root, workers=2)
        (directory,) = root.glob("sources/tales/annotate-*")
        before = data_of(str(directory))
        assert before, "tables were written"
        raised = recipe_of(tmp_path, server, "attempts = 5\n", annotate=limit)
        with pytest.raises(
            DatakitError, match=rf"`attempts` of a model server was raised .*remove {directory} and run"
        ):
            run(raised, root, workers=2)
        assert data_of(str(directory)) == before
        shutil.rmtree(directory)
        (step,) = run(raised, root, workers=2).steps_of("annotate")
    assert Path(step.directory) == directory and step.manifest.counters["annotate/documents"] == len(TEXTS)
    assert server.counts() == dict.fromkeys(TEXTS, 1) | {TEXTS[7]: 5}, "no answer was paid for again"


def test_stored_answers_of_another_recipe_do_not_enter_the_identity(tmp_path: Path) -> None:
    """A document that the first server cannot judge has an answer of the second one, which another recipe has asked."""
    with chat_server(except_late_answer("no", 99)) as one, chat_server(number_of) as other:
        limit, table = "[annotate]\nmax_quarantined = 1\n", TABLE.format(url=other.url, prompt=PROMPT)
        both = table.replace("quality", "second")
        run(recipe_of(tmp_path / "other", other), tmp_path / "shared", workers=2)
        assert other.counts()[TEXTS[7]] == 1
        recipe = recipe_of(tmp_path / "both", one, annotate=limit, after=both)
        steps = [run(recipe, tmp_path / root, workers=2).steps_of("annotate")[0] for root in ("shared", "alone")]
    assert other.counts()[TEXTS[7]] == 1, "left out, so it was not sent"
    assert steps[0].manifest.identity == steps[1].manifest.identity
    assert data_of(steps[0].directory) == data_of(steps[1].directory)


def test_spent_money_ends_the_step(tmp_path: Path) -> None:
    """Each request costs 0.012; the last ones are kept back, because a request might cost more."""
    prices = "price_per_1k_input_tokens = 1.0\nprice_per_1k_output_tokens = 1.0\nmax_bytes = 1024\nmax_tokens = 2\n"
    with chat_server(number_of) as server:
        recipe = recipe_of(tmp_path, server, f"{prices}max_cost = 3.0\nconcurrency = 1\n")
        with pytest.raises(PartialError, match=r"max_cost is 3; raise max_cost, and run again"):
            run(recipe, tmp_path / "root", workers=1)
    assert 50 < len(server.requests) < len(TEXTS) and 0.012 * len(server.requests) < 3.0


def test_plan_says_what_would_leave_and_the_run_sends_just_that(tmp_path: Path) -> None:
    with chat_server(number_of) as server:
        more = "price_per_1k_input_tokens = 0.1\nmax_bytes = 1024\n"
        recipe = recipe_of(tmp_path, server, more)
        (unknown,) = plan(recipe, tmp_path / "root").requests
        assert (unknown.host, unknown.open, unknown.text_bytes) == (f"127.0.0.1:{server.port}", None, None)
        shown = " ".join(invoke("plan", recipe, "--root", tmp_path / "root", cwd=tmp_path).stdout.split())
        assert f"model server quality (127.0.0.1:{server.port}): would be sent documents of tales" in shown
        assert "unknown until normalize is done" in shown
        run(recipe, tmp_path / "root", workers=2, until="normalize")
        (planned,) = plan(recipe, tmp_path / "root").requests
        size = sum(len(text.encode()) for text in TEXTS)
        assert (planned.documents, planned.open, planned.text_bytes) == (len(TEXTS), len(TEXTS), size)
        shown = " ".join(invoke("plan", recipe, "--root", tmp_path / "root", cwd=tmp_path).stdout.split())
        assert f"would be sent {len(TEXTS)} of {len(TEXTS)} documents of tales" in shown
        assert f"in {len(TEXTS)} requests if none is repeated, for about " in shown and not server.requests
        run(recipe, tmp_path / "root", workers=2)
        assert len(server.requests) == planned.open
        assert sum(len(one.text.encode()) for one in server.requests) == planned.text_bytes
        assert plan(recipe, tmp_path / "root").requests == ()
        changed = recipe_of(tmp_path, server, more, annotate="[annotate.script]\n")
        assert plan(changed, tmp_path / "root").requests[0].open == 0, "all answers are stored"


def test_slow_server_is_not_taken_for_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase, "HANG_SECONDS", 10.0)
    slow = lambda text, number: Fault(wait=20.0, body=completion(number_of(text)))  # noqa: E731
    with chat_server(slow) as server:
        recipe = recipe_of(tmp_path, server, "concurrency = 150\n")
        run(recipe, tmp_path / "root", workers=1)
    assert server.counts() == dict.fromkeys(TEXTS, 1)


def forms(key: str) -> list[bytes]:
    """The forms in which a key may be written."""
    return [key.encode(), quote(key, safe="").encode(), base64.b64encode(key.encode()).rstrip(b"=")[:-1]]


def test_key_is_in_no_file_and_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no output holds the key, whatever the server does with it."""
    key = "canary/key+0123456789abcdef"
    monkeypatch.setenv("SHELF_API_KEY", key)
    echo = [Fault(500, body=key.encode()), Fault(body=completion(key)), Fault(body=key.encode()), Fault(reset=True)]
    titles = list[bytes]()
    with chat_server(lambda text, number: echo[number - 1] if number <= len(echo) else number_of(text)) as server:
        more = 'key_env = "SHELF_API_KEY"\nattempts = 8\nconcurrency = 150\n'
        recipe = recipe_of(tmp_path / "recipe", server, more)
        stop = threading.Event()
        watch = threading.Thread(target=lambda: titles.extend(_titles(stop)), daemon=True)
        watch.start()
        words = ("--root", str(tmp_path / "root"))
        outputs = [invoke(command, str(recipe), *words, cwd=tmp_path) for command in ("plan", "run")]
        server.answer = lambda text, number: Fault(401, body=key.encode())
        refused = recipe_of(tmp_path / "recipe", server, f"{more}version = 2\n")
        outputs += [invoke("run", str(refused), *words, cwd=tmp_path), invoke("status", "shelf", *words, cwd=tmp_path)]
        stop.set()
        watch.join()
        assert {one.headers["authorization"] for one in server.requests} == {f"Bearer {key}"}
    assert [done.returncode for done in outputs][:3] == [0, 0, 2]
    assert "does not accept the key" in outputs[2].stderr
    places = {
        "output": b"".join(f"{done.stdout}{done.stderr}".encode() for done in outputs),
        "titles": b"".join(titles),
    }
    places |= {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(places) > 20
    assert [place for place, data in places.items() if any(form in data for form in forms(key))] == []


def _titles(stop: threading.Event) -> set[bytes]:
    found = set[bytes]()
    while not stop.wait(0.1):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found.add(path.read_bytes())
            except OSError:
                continue
    return found


def test_run_without_the_key_is_refused_before_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHELF_API_KEY", raising=False)
    with chat_server(number_of) as server:
        recipe = recipe_of(tmp_path, server, 'key_env = "SHELF_API_KEY"\n')
        with pytest.raises(RefusedError, match=r"SHELF_API_KEY, which holds the key of 127\.0\.0\.1"):
            run(recipe, tmp_path / "root")
        assert not list(tmp_path.glob("root/sources/*/*")) and server.requests == []
        monkeypatch.setenv("SHELF_API_KEY", "key-0123456789")
        run(recipe, tmp_path / "root", workers=2)
        monkeypatch.delenv("SHELF_API_KEY")
        assert run(recipe, tmp_path / "root").steps, "a finished step needs no key"


def test_recipe_without_a_url_is_refused(tmp_path: Path) -> None:
    with chat_server(number_of) as server:
        recipe = recipe_of(tmp_path, server)
        recipe.write_text(
            "".join(line for line in recipe.read_text().splitlines(True) if not line.startswith('url = "http'))
        )
        done = invoke("run", str(recipe), "--root", str(tmp_path / "root"), cwd=tmp_path)
    assert done.returncode == 2 and "url" in done.stderr


def test_simulation_needs_no_server(tmp_path: Path) -> None:
    with chat_server(number_of) as server:
        recipe = recipe_of(tmp_path, server, after=RULE)
        done: Any = invoke("plan", str(recipe), "--simulate", "1GB", cwd=tmp_path)
    assert done.returncode == 0 and server.requests == []
