"""A recipe with texts in several scripts that share lines and paragraphs. As a program, this module runs the recipe and
kills itself when a phase of the passages step would begin: `python -m tests.support.passages.shelf RECIPE ROOT PHASE`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import datakit
from datakit.engine.task import Plan, Step
from datakit.passages import stage
from datakit.passages.config import SearchConfig

HEADER = "Ünïversal header: Cookies 🍪 – 日本語, all rights reserved\n"
FOOTER = "© 2024 Footer, Straße 12\n\n\n"
TEXTS = {
    "web": [f"{HEADER}Text {n} über Dinge.\n\n{FOOTER}The end {n}\n{'Yes. ' * 14}\n{'Yes.  ' * 14}" for n in range(40)],
    "books": [f"Chapter {n}\n\n{FOOTER.lower()}Nothing else {n}." for n in range(20)],
}
TABLES = """
[dedup]
threshold = 1.0
[passages.lines]
unit = "line"
min_bytes = 40
[passages.paragraphs]
unit = "paragraph"
ignore = ["white_space", "case", "digits", "punctuation"]
min_bytes = 20
keep = 0
above = 5
[passages.repeats]
unit = "line"
within = "document"
min_bytes = 40
[passages.parts]
unit = "substring"
min_bytes = 32
ignore = []
[passages.stuck]
unit = "substring"
within = "document"
min_bytes = 32
ignore = []
[select.edits.boilerplate]
spans = "passages.lines"
action = "cut"
[select.edits.paragraphs]
spans = "passages.paragraphs"
action = "mask"
replacement = "<GLEICH>\\n"
sources = ["books"]
"""
SEARCHES = {
    "lines": SearchConfig("line", min_bytes=40),
    "paragraphs": SearchConfig(
        "paragraph", min_bytes=20, ignore=("white_space", "case", "digits", "punctuation"), keep=0, above=5
    ),
    "repeats": SearchConfig("line", "document", min_bytes=40),
    "parts": SearchConfig("substring", min_bytes=32, ignore=()),
    "stuck": SearchConfig("substring", "document", min_bytes=32, ignore=()),
}


def recipe_with(folder: Path, tables: str = TABLES) -> Path:
    """Write a recipe with these tables and the sources TEXTS."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ['name = "shelf"']
    for name, texts in TEXTS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        lines.append(f'[[sources]]\nname = "{name}"\nurl = "{name}.jsonl"')
    path = folder / "shelf.toml"
    path.write_text("\n".join([*lines, tables, '[consolidate]\n[tokenize]\ntokenizer = "bytes"\n']))
    return path


def killing(name: str) -> None:
    """Kill this process when the phase `name` of a passages step would begin."""
    original = stage.plan

    def plan(step: Step) -> Plan:
        inner = original(step)
        phase = next(inner)
        while True:
            if phase.name == name:
                os.kill(os.getpid(), signal.SIGKILL)
            results = yield phase
            try:
                phase = inner.send(results)
            except StopIteration as ended:
                return ended.value

    stage.plan = plan


if __name__ == "__main__":
    killing(sys.argv[3])
    datakit.run(sys.argv[1], sys.argv[2], workers=2)
