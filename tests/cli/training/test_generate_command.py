"""`datakit generate` prints a continuation as it comes, or as JSON, and repeats it for a seed."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

pytest.importorskip("pyarrow")
from datakit.cli import main
from tests.support.hub_models.runs import directory_of_run, finished_run

pytestmark = pytest.mark.xdist_group("hub-runs")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command on the finished run; returns what it prints."""
    directory = str(directory_of_run(finished_run()))

    def call(*words: str) -> str:
        assert main(["generate", directory, *words]) == 0
        return capsys.readouterr().out

    return call


def test_the_same_seed_gives_the_same_text(run: Any) -> None:
    words = ["--prompt", "lorem", "--tokens", "8"]
    first, again, other = (json.loads(run(*words, "--seed", seed, "--json")) for seed in ("1", "1", "2"))
    assert first == again
    assert first["tokens"] != other["tokens"]
    assert (len(first["tokens"]), first["ended_by"], first["step"], first["prompt"]) == (8, "length", 3, "lorem")


def test_the_prompt_can_come_from_standard_input(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--tokens", "4", "--temperature", "0", "--json"]
    expected = json.loads(run("--prompt", "of the", *words))
    monkeypatch.setattr("sys.stdin", io.StringIO("of the"))
    assert json.loads(run("--prompt", "-", *words)) == expected


def test_the_text_is_printed_as_it_is_returned(run: Any) -> None:
    """Control characters are escaped in a terminal, but not in JSON."""
    from datakit.printable import printable

    words = ["--prompt", "lorem", "--tokens", "8", "--seed", "1"]
    assert run(*words) == printable(json.loads(run(*words, "--json"))["text"]) + "\n"


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(directory_of_run(finished_run()))
    for words, message in (
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a", "--temperature", "0", "--top-k", "3"], "--top-k has no effect at temperature 0"),
        (["--prompt", "a", "--tokens", "0"], "--tokens is 0"),
        (["--prompt", "a", "--set", "steps=3"], "--set has no effect"),
    ):
        assert main(["generate", directory, *words]) == 2
        assert message in capsys.readouterr().err
