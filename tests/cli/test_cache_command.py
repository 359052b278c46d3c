"""Tests of `datakit cache show` and `datakit cache stats`."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from datakit.cache.reader import open_cache
from datakit.cache.summary import counted
from datakit.cli.console import WIDTH
from tests.support.caches import make_cache
from tests.support.commands import run_command, run_json
from tests.support.partitions import identity, words
from tests.support.paths import REPOSITORY

ODD = "naïve \U0001f469\u200d\U0001f680 日本語\n\ttab \x1b[31mred\x1b[0m end"


TEXTS = {"novels": [*words(1, 60), ODD], "laws": words(2, 30)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_cache(tmp_path_factory.mktemp("made"), TEXTS, bits=1))


def test_show_document_by_id_row_or_position(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    opened, text = open_cache(cache), TEXTS["laws"][7]
    row = opened.find(identity(text))
    assert row is not None
    expected = text + "<|endoftext|>"
    for choice in (["--document", identity(text)], ["--document", str(row)],
                   ["--position", str(opened.position_of(row) + 3)]):  # fmt: skip
        found = run_json(capsys, "cache", "show", cache, *choice)
        assert "".join(piece["text"] for piece in found["pieces"]) == expected
        assert (found["document"], found["row"], found["source"]) == (identity(text), row, "laws")
        code, out, err = run_command(capsys, "cache", "show", cache, *choice)
        assert code == 0
        assert out.replace("⟧⟦", "").strip("⟦⟧\n") == expected
        assert out.count("⟦") == found["count"]
        assert f"document {identity(text)}, row {row}, source laws" in " ".join(err.split())
        assert max(map(len, err.splitlines())) <= WIDTH


def test_show_step_is_a_sequence_of_the_cache(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "cache", "show", cache, "--step", "3", "--length", "50")
    ids = [number for piece in found["pieces"] for number in piece["ids"]]
    assert ids == open_cache(cache).read(150, 200).tolist()
    code, out, _ = run_command(capsys, "cache", "show", cache, "--step", "3", "--length", "50", "--limit", "5", "--ids")
    assert (code, out.splitlines()[-1]) == (0, " ".join(map(str, ids[:5])))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (["--document", "0" * 31 + "a"], "has no document '0000"),
        (["--document", "99999"], "document 99999 is out of range"),
        (["--position", "99999999"], "token 99999999 is out of range"),
        (["--step", "99999"], r"has \d+ sequences of 4,096 tokens, numbered from 0"),
        (["--step", "0", "--length", "0"], "sequences of 0 tokens"),
        (["--step", "0", "--position", "0"], "give only one of"),
    ],
)
def test_missing_documents_are_usage_errors(
    cache: str, capsys: pytest.CaptureFixture[str], choice: list[str], message: str
) -> None:
    code, out, err = run_command(capsys, "cache", "show", cache, *choice)
    assert (code, out) == (2, "")
    assert re.search(message, err), err


def test_documents_cannot_control_the_terminal(cache: str) -> None:
    """On a terminal each token has a color, and the only escape sequences are ours."""
    command = [sys.executable, "-m", "datakit", "cache", "show", cache, "--document", identity(ODD)]
    coloured = on_a_terminal(command)
    text = re.sub(rb"\x1b\[(48;5;\d+|0)m", b"", coloured)
    assert b"\x1b" not in text
    assert "␛[31mred␛[0m" in text.decode()
    assert len(set(re.findall(rb"\x1b\[48;5;\d+m", coloured))) > 3


def test_no_color_shows_brackets_on_a_terminal(
    cache: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[48;5;" in run_command(capsys, "cache", "show", cache, "--document", identity(ODD))[1]
    monkeypatch.setenv("NO_COLOR", "1")
    plain = run_command(capsys, "cache", "show", cache, "--document", identity(ODD))[1]
    assert "\x1b" not in plain
    assert "⟦" in plain


def on_a_terminal(command: list[str], **variables: str) -> bytes:
    """The output of a command on a terminal."""
    leader, follower = pty.openpty()
    environment = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "PYTHONPATH": str(REPOSITORY)}
    environment |= {"TERM": "xterm-256color", **variables}
    process = subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment)
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # on Linux: the other end is closed
            break
        if not part:
            break
        written += part
    os.close(leader)
    assert process.wait() == 0
    return written


def test_stats_match_the_documents(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "cache", "stats", cache)
    lengths = [len(document.tokens) for document in open_cache(cache).documents()]
    assert found["documents"] == len(lengths)
    for bucket in found["lengths"]:
        assert bucket["documents"] == sum(bucket["from"] <= length < bucket["below"] for length in lengths)
    assert sum(bucket["documents"] for bucket in found["lengths"]) == len(lengths)
    exact = dict(counted(open_cache(cache), 1000))
    assert all(0 < entry["count"] <= exact[entry["id"]] for entry in found["frequent"])
    assert sum(source["tokens"] for source in found["sources"].values()) == found["tokens"] == sum(lengths)
    code, out, _ = run_command(capsys, "cache", "stats", cache)
    assert code == 0
    assert re.search(r"^novels +2 +61 ", out, re.MULTILINE)


def test_plot_is_written_and_replaced(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "stats.png"
    for _ in range(2):  # the second replaces the first
        code, _, err = run_command(capsys, "cache", "stats", cache, "--plot", str(target))
        assert (code, f"plot: {target}" in err) == (0, True)
        assert target.read_bytes().startswith(b"\x89PNG")
        assert len(target.read_bytes()) > 20_000
    code, _, err = run_command(capsys, "cache", "stats", cache, "--plot", str(tmp_path / "stats.txt"))
    assert (code, "must end in .png" in err) == (2, True)


def test_examples_of_the_documentation_run(cache: str) -> None:
    page = (REPOSITORY / "docs" / "cache.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    opened = open_cache(cache)
    exec(examples[0], {"directory": cache})
    names: dict[str, Any] = {"directory": cache}
    exec(examples[1], names)
    document = opened.document(opened.documents_count - len(names["lengths"]))
    assert names["first"].tolist() == document.tokens.tolist()
    assert names["starts"][-1] == len(names["tokens"]) == opened.shards[-1].tokens
