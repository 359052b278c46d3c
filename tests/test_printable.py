"""Names from data reach no terminal, log or page with characters that could control or mislead it."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

import datakit
from datakit.engine.observe.event_log import EventLog
from datakit.engine.observe.progress import LineView
from datakit.printable import escaped_json, one_line, printable
from tests.support.command_line import invoke
from tests.support.small_shelf import write_lines

UNSAFE = "".join(chr(code) for code in (*range(9), *range(11, 32), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x2028, 0x202E,
                                        0x2066, 0xFEFF, 0xDC80, 0xE0041))  # fmt: skip
NAME = "\x1b]0;owned\x07 \u202etxt.live\nerror: all is lost"


def unsafe_in(text: str) -> list[str]:
    return [
        sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") and sign not in "\t\n"
    ]


def test_unsafe_characters_are_escaped_and_all_others_kept() -> None:
    assert unsafe_in(printable(UNSAFE)) == [] and printable(UNSAFE).isascii()
    kept = "tab\t, line\n, Ελληνικά, עברית, 👩🏽\u200d🚀, \u00a0"
    assert printable(kept) == kept
    assert one_line("a\tb\n") == r"a\tb\n"


def test_escaped_json_has_the_same_meaning() -> None:
    value = {"name": UNSAFE.replace("\udc80", "") + "\U0001f680"}
    text = escaped_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value and unsafe_in(text) == []


def test_lone_surrogates_are_shown_as_escapes() -> None:
    """They stand for bytes that are not UTF-8 in the name of a file."""
    assert printable("a\udcff") == r"a\udcff"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A recipe whose sources have files with hostile names, one of which cannot be used."""
    write_lines(tmp_path / "texts" / f"{NAME}.jsonl", [f"document {number}" for number in range(5)])
    recipe = tmp_path / "r.toml"
    recipe.write_text('name = "r"\n[[sources]]\nname = "s"\nurl = "texts"\n')
    return recipe


def test_commands_show_hostile_names_escaped(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "texts" / f"{NAME}.unknown").write_text("x")
    (tmp_path / "texts" / f"{NAME}.link").symlink_to("/dev/zero")
    for words in (("inspect", "texts"), ("inspect", "texts", "--json"), ("plan", hostile), ("run", hostile)):
        done = invoke(*words, cwd=tmp_path)
        assert unsafe_in(done.stdout + done.stderr) == [], words
        assert not any(line.startswith("error: all is lost") for line in (done.stdout + done.stderr).splitlines())
        assert r"\u202etxt.live" in done.stdout + done.stderr


def test_events_and_progress_show_hostile_names_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(str(tmp_path))
    log.note(NAME + "\x7f\x9b")
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert unsafe_in(line) == [] and json.loads(line)["text"] == NAME + "\x7f\x9b"
    LineView().note(NAME)
    assert unsafe_in(capsys.readouterr().err) == []


def test_summary_as_html_is_escaped(hostile: Path, tmp_path: Path) -> None:
    root = tmp_path / "<b>\x1b\u202e"
    result = datakit.run(hostile, root, until="normalize")
    page = result._repr_html_()
    assert unsafe_in(page + repr(result)) == [] and "<b>\\x1b" not in page
