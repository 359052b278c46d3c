"""Messages on stderr: text or JSON lines, from a level onward, without secrets and unsafe characters."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datakit import messages
from datakit.messages import Level
from tests.support.command_line import command, invoke
from tests.support.small_shelf import make_shelf, write_pages

NAME = "a\x1b[2J\u202eb.txt"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with messages.command():
        yield


def lines(text: str) -> list[dict[str, Any]]:
    """Parse every line of stderr."""
    return [json.loads(line) for line in text.splitlines()]


def test_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    messages.show("warning: two\nlines", directory="left out")
    assert capsys.readouterr().err == "warning: two\nlines\n"


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", "dniwe"), ("info", "niwe"), ("warning", "we"), ("error", "e")],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_level_decides_which_messages_are_shown(
    level: messages.LevelName, shown: str, form: messages.Format, capsys: pytest.CaptureFixture[str]
) -> None:
    messages.configure(form, level)
    messages.show("d", Level.DEBUG)
    messages.show("n")
    messages.show("i", Level.INFO)
    messages.show("warning: w")
    messages.show("error: e")
    printed = capsys.readouterr().err
    found = [line["message"] for line in lines(printed)] if form == "json" else re.findall(r"(\w)\n", printed)
    assert "".join(found) == shown


def test_json_line_has_time_level_event_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    messages.configure("json", "info")
    messages.show("warning: one\ntwo", event="attempt_ended", task="00001", done=3)
    (line,) = lines(capsys.readouterr().err)
    assert line.pop("time") > 1e9
    assert line == {
        "level": "warning", "event": "attempt_ended", "message": "one\ntwo", "task": "00001", "done": 3,
    }  # fmt: skip


def test_json_has_no_line_breaks_of_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    messages.configure("json", "info")
    messages.show("step 1:\n    loss 2")
    messages.show("Traceback\n    raise", event="traceback")
    texts = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert texts == ["step 1: loss 2", "Traceback\n    raise"]


def test_json_is_redacted_and_escaped_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    messages.configure("json", "info")
    signed = "https://host/a?X-Amz-Signature=0a1b"
    messages.show(f"{NAME} {signed}", names=[NAME, signed], nested={"url": signed, "lone": "\udcff"})
    printed = capsys.readouterr().err
    assert printed.isascii() and "0a1b" not in printed and "\x1b" not in printed
    (line,) = lines(printed)
    assert line["names"] == [NAME, "https://host/a?[redacted]"]
    assert line["nested"] == {"url": "https://host/a?[redacted]", "lone": "\udcff"}


def test_messages_of_logging_are_shown_in_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    messages.configure("text", "info")
    logging.getLogger("datakit.loader").warning("slow")
    assert capsys.readouterr().err == "slow\n"
    messages.configure("json", "info")
    logging.getLogger("datakit.loader").warning("slow: https://host/a?sig=0a1b")
    logging.getLogger("library").error("%s failed", "it")
    warnings.warn("old", stacklevel=1)
    found = [(line["level"], line["event"], line["logger"]) for line in lines(capsys.readouterr().err)]
    assert found == [
        ("warning", "log", "datakit.loader"), ("error", "log", "library"), ("warning", "log", "py.warnings"),
    ]  # fmt: skip


def test_settings_end_with_the_command(tmp_path: Path) -> None:
    refused = invoke("catalog", "recipe", "dmeo", "--log", "json", "--log-level", "error", cwd=tmp_path)
    (line,) = lines(refused.stderr)
    assert (line["level"], line["event"], line["exit_code"], line["error"]) == ("error", "error", 2, "RecipeError")
    assert messages.settings() == messages.Settings() and not logging.getLogger().handlers.count(messages._handler)
    assert invoke("catalog", "recipe", "dmeo", cwd=tmp_path).stderr.startswith("error: no recipe")


@pytest.mark.parametrize(
    "words", [["--log", "json", "catalog", "list", "--frsh"], ["catalog", "list", "--frsh", "--log=json"]]
)
def test_mistakes_in_options_are_json_wherever_the_option_stands(tmp_path: Path, words: list[str]) -> None:
    refused = invoke(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert [(line["event"], line["exit_code"]) for line in lines(refused.stderr)] == [("error", 2)]


def test_run_reports_its_steps_in_json(tmp_path: Path) -> None:
    recipe = make_shelf(tmp_path / "shelf")
    ran = command("run", recipe, "--root", "root", "--json", "--log", "json", "--log-level", "debug", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    stages = {stage["stage"] for stage in json.loads(ran.stdout)["stages"]}
    found = lines(ran.stderr)
    for event in ("step_started", "step_ended"):
        assert {line["stage"] for line in found if line["event"] == event} == stages
    assert {line["level"] for line in found if line["event"] == "attempt_ended"} == {"debug"}
    assert all(Path(line["directory"]).is_dir() for line in found if line["event"] == "step_ended")


def test_quiet_run_prints_failed_attempts_and_the_error(tmp_path: Path) -> None:
    recipe = write_pages(tmp_path, "poisoned")
    ran = command("run", recipe, "--root", "root", "--log", "json", "--log-level", "warning", cwd=tmp_path)
    assert ran.returncode == 3, ran.stderr
    found = lines(ran.stderr)
    assert [line["event"] for line in found][-1] == "error" and found[-1]["exit_code"] == 3
    assert {line["cause"] for line in found if line["event"] == "attempt_ended"} == {"crash"}
    assert {line["level"] for line in found} == {"warning", "error"}
