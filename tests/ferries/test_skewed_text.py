"""The generated texts have the promised shapes, depend on the scale alone, and need little memory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from datakit.engine import interpreter
from datakit.ferries import skewed_text
from datakit.ferries.child import run_program
from datakit.ferries.skewed_text import generate
from datakit.ferries.stages import GENERATOR

DIGEST = "4feb017800a981cec3ce3cddc568c03937ab8b854a392b4512fbbe8cb5d521cd"


def digest(folder: Path) -> str:
    """One hash of all files and their names."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def lines(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_texts_are_always_the_same(tmp_path: Path) -> None:
    generate(tmp_path / "a", 0.001)
    assert digest(tmp_path / "a") == DIGEST


def test_texts_have_their_shapes(tmp_path: Path) -> None:
    generate(tmp_path, 0.002)
    huge = [path.read_bytes() for path in sorted((tmp_path / "huge-documents").iterdir())]
    assert [len(one) - 1 for one in huge] == [round(0.002 * skewed_text.RECORD_BYTES)] * 2
    assert all(len(json.loads(one)["text"]) > 500_000 for one in huge) and huge[0] != huge[1]
    same = lines(tmp_path / "identical-documents" / "all.jsonl")
    assert len(same) == 10_000 and len(set(same)) == 1
    giant = lines(tmp_path / "giant-file" / "all.jsonl")
    assert len(set(giant)) == len(giant) and sum(map(len, giant)) > 0.95 * 0.002 * skewed_text.GIANT_BYTES
    assert len([*(tmp_path / "tiny-files").rglob("*.txt")]) == 60
    variations = lines(tmp_path / "one-template" / "all.jsonl")
    assert len(set(variations)) == 600
    assert len(set(variations[0].split()) ^ set(variations[1].split())) <= 2


def test_words_are_different() -> None:
    assert len(set(skewed_text.words())) == skewed_text.WORDS


def test_generator_needs_little_memory(tmp_path: Path) -> None:
    """The memory does not grow with the texts: 110 MB here, of which each huge document is 13 MB."""
    usages = [
        run_program(interpreter.command(GENERATOR, str(tmp_path / str(scale)), str(scale)), tmp_path / f"run{scale}")
        for scale in (0.001, 0.05)
    ]
    assert [usage.code for usage in usages] == [0, 0]
    assert usages[1].peak_rss - usages[0].peak_rss < 8 << 20
