"""Whatever a command prints fits into 80 columns, also with long names; only paths may be longer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from datakit.cli.console import WIDTH, count_text, table
from datakit.cli.run_command import stage_table
from datakit.pipeline.run_summary import StageLine
from tests.support.command_line import invoke
from tests.support.stdlib_shelf import texts

NAME = "a-collection-of-documents-with-a-name-that-is-much-longer-than-usual-2026"


def test_wide_tables_are_wrapped_without_losing_text() -> None:
    text = table(["name", "why", "count"], [[NAME, "because of this and that " * 3, 1_234_567], ["b", "", None]])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count("1,234,567") == 1 and text.splitlines()[-1].split() == ["b", "-"]
    names = [line.split("  ")[0] for line in text.splitlines()[1:-1]]
    assert "".join(names).replace(" ", "") == NAME


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, None), (9_999, "9,999"), (10_000, "10 k"), (10_777, "10.8 k"), (123_456, "123 k"), (999_499, "999 k"),
        (999_500, "1 M"), (1_234_567, "1.23 M"), (10**12 - 1, "1 T"), (12_345 * 10**12, "12,345 T"),
    ],
)  # fmt: skip
def test_counts_are_shortened_with_the_right_unit(number: int | None, text: str | None) -> None:
    assert count_text(number) == text


def test_texts_below_rows_keep_their_words_whole() -> None:
    path = "/data/" + "x" * 100
    lines = table(["a"], [["b"], ["c"]], [f"see {path} for more", ""]).splitlines()
    assert lines == ["a", "b", "    see", f"    {path}", "    for more", "c"]


LINE = StageLine("train-tokenizer", 1, 0, 15, 14, {"blank": 1}, {"with NUL removed": 3}, 5, 6, 7, 8.0, 9, 10)


def test_single_duplicates_and_files_are_singular() -> None:
    dropped = {"exact duplicates": 1, "exact duplicates across sources": 1, "fuzzy duplicates": 2, "blank": 1}
    text = stage_table([replace(LINE, dropped=dropped, found={"files": 1}, budget=0)])
    assert " ".join(" ".join(text.splitlines()[2:]).split()) == (
        "dropped 1 exact duplicate, 1 exact duplicate across sources, 2 fuzzy duplicates, 1 blank; 1 file"
    )


def test_stage_table_shortens_only_counts_that_do_not_fit() -> None:
    assert stage_table([LINE]).splitlines()[1:] == [
        "train-tokenizer  15    14  5 B        6  7 B      8.0 s",
        "    dropped 1 blank; 3 with NUL removed; memory 9 B of 10 B",
    ]
    huge = replace(LINE, rows_in=10**12, rows_out=10**12 - 1, tokens=10**15, text_bytes=10**15, reused=1)
    text = stage_table([LINE, huge])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert " 1 T " in text and "already done" in text


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    sources = "".join(f'[[sources]]\nname = "{n}-{NAME}"\nurl = "{n}"\nformat = "text"\n' for n in "ab")
    for name in "ab":
        (folder / name).mkdir()
        for number, (_, text) in enumerate(texts("*.py", 20)):
            (folder / name / f"{number}-{NAME}.txt").write_text(text)
    tokenizer = '[dedup]\nmax_removal = 1.0\n[tokenize]\ntokenizer = "train"\n[tokenize.train]\nvocabulary = 300\n'
    (folder / "recipe.toml").write_text(f'name = "{NAME}"\n{sources}{tokenizer}')
    return folder


def test_commands_fit_with_long_names(long_names: Path) -> None:
    dataset = f"root/{NAME}"
    commands = [
        ["plan", "recipe.toml", "--root", "root"],
        ["run", "recipe.toml", "--root", "root"],
        ["run", "recipe.toml", "--root", "root"],
        ["status", "root"],
        ["ls", "root"],
        ["inspect", dataset],
        ["inspect", "a"],
        ["cache", "stats", dataset],
        ["diff", dataset, f"{dataset}"],
    ]
    wide = []
    for command in commands:
        shown = invoke(*command, cwd=long_names)
        assert shown.returncode == 0, (command, shown.stderr)
        wide += [line for line in shown.stdout.splitlines() if len(line) > WIDTH and not _is_one_name(line)]
    assert not wide, "\n".join(wide)


def _is_one_name(line: str) -> bool:
    """Only a path makes the line too long: beside it, there is at most a long name, a label and a short command."""
    rest = [word for word in line.split() if len(word) <= WIDTH // 2]
    path = any("/" in word and len(word) > WIDTH // 2 for word in line.split())
    return len(line.split()) == 1 or (path and len(" ".join(rest)) <= 30)


def test_message_follows_the_data_printed_before_it(tmp_path: Path) -> None:
    script = "from datakit.cli.console import note, say; say('data'); note('message'); say('more')"
    merged = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    assert merged.stdout.split() == ["data", "message", "more"]
