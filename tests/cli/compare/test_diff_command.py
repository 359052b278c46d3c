"""`datakit diff` fits a terminal, ends with the next command, and never shows text."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import invoke
from tests.support.partitions import identity
from tests.support.small_shelf import prose, step


def test_reasons_are_a_table_that_ends_with_what_to_do_next(finished: Path) -> None:
    letters = str(step(finished, "root/sources/letters/normalize-*").relative_to(finished))
    shown = invoke("diff", letters, "root/shelf", cwd=finished)
    assert shown.returncode == 0, shown.stderr
    table = shown.stdout.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    assert table[1].split(maxsplit=3) == ["-", "letters", "3", "the other keeps its text in another source"]
    assert "in both: 47 documents" in shown.stdout
    assert "word" not in shown.stdout + shown.stderr
    command = next(line for line in shown.stderr.splitlines() if "ask about" in line).partition("datakit ")[2]
    assert "exactly the same text" in " ".join(invoke(*command.split(), cwd=finished).stdout.split())


def test_ids_and_json_are_for_programs(finished: Path) -> None:
    letters = str(step(finished, "root/sources/letters/normalize-*"))
    lines = invoke("diff", letters, "root/shelf", "--ids", cwd=finished).stdout.splitlines()
    exact = {line.split("\t")[2] for line in lines if line.startswith("-\tletters\t") and line.endswith("\texact")}
    assert exact == {identity(prose(n)) for n in (2, 3, 4)}
    found = json.loads(invoke("diff", letters, "root/shelf", "--json", cwd=finished).stdout)
    assert found["second"]["documents"] == 143
    assert found["first"]["absent"][0]["reason"] == "exact"
    refused = invoke("diff", letters, letters, "--ids", "--json", cwd=finished)
    assert refused.returncode == 2
