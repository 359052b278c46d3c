"""Writes a small real dataset whose recipe has annotators of every kind, rules, edits and dedup.

It is the standard library's text of `stdlib_shelf`. The sources name people and addresses, so spans are found in many
documents.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.stdlib_shelf import texts, write_shelf

MODULE = """
import datakit
import pyarrow as pa
import pyarrow.compute as pc


@datakit.annotator(version=1, writes={{"defs": pa.int32(), "size": pa.int64()}})
def marks(batch, word="def "):
    {code}
    return pa.record_batch({{
        "defs": pc.count_substring(batch["text"], word).cast(pa.int32()),
        "size": pc.binary_length(batch["text"]).cast(pa.int64()),
    }})
"""
TABLES = """
[annotate]
max_quarantined = {limit}
[annotate.script]
[annotate.heuristics]
[annotate.personal]
[annotate.contamination]
min_words = 6
[annotate.contamination.sets.quiz]
path = "quiz.jsonl"
[annotate.user.marks]
function = "shelf_marks:marks"

[[rules]]
name = "kept"
action = "keep"
where = "source = 'modules' AND marks.size > 60_000"
[[rules]]
name = "quoted"
where = "len(contamination.hits) >= 2"
[[rules]]
name = "empty"
where = "heuristics.words < 40"
[[rules]]
name = "without_functions"
where = "marks.defs < 2"
sources = ["modules"]
[[rules]]
name = "least_letters"
lowest = 0.1
by = "heuristics.alphabetic_word_ratio"

[select.edits.mail]
spans = "personal.spans"
kinds = ["email", "email_reserved"]
action = "mask"
replacement = "<EMAIL>"
[select.edits.quiz]
spans = "contamination.spans"
action = "cut"
"""
RULES = ("kept", "quoted", "empty", "without_functions", "least_letters")


def write_curated_shelf(folder: Path, code: str = "pass", limit: float = 0) -> Path:
    """Write the recipe, its texts, the evaluation set and the user's annotator; return the recipe's path.

    code: statements of the annotator, which see `batch`. limit: the value of `annotate.max_quarantined`.
    """
    recipe = write_shelf(folder)
    recipe.write_text(recipe.read_text() + TABLES.format(limit=limit))
    (folder / "shelf_marks.py").write_text(MODULE.format(code=code))
    (folder / "quiz.jsonl").write_text("".join(json.dumps({"question": line}) + "\n" for line in _questions()))
    return recipe


def _questions() -> list[str]:
    """Return lines of 6 words or more: two of the same module, and one of each of five others."""
    lines = [
        [line for line in text.splitlines() if len(line.split()) >= 8 and line.isascii()]
        for _, text in texts("*.py", 60)
    ]
    long = [found for found in lines if len(found) > 4]
    return [*long[0][:2], *(found[1] for found in long[1:6])]
