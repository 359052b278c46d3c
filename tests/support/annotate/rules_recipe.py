"""A recipe with rules, and its texts."""

from __future__ import annotations

import json
from pathlib import Path

SHARED = [" ".join(f"s{number}w{word}" for word in range(20)) for number in range(20)]
LONG = " ".join(f"word{number}" for number in range(80))  # dedup retains it as the longest, unless a rule removes it
SHORT = " ".join(f"word{number}" for number in range(78))
RULES = """
[annotate.personal]
[[rules]]
name = "mail"
where = "len(personal.spans) > 0"
[[rules]]
name = "early"
where = "document.n < 5"
sources = ["a"]
[[rules]]
name = "long"
where = "document.long"
"""


def recipe_with(tmp_path: Path, rules: str = RULES) -> Path:
    """Two sources that share texts. In the first, some records are marked for rules."""
    records = {
        "a": [{"text": text, "n": number, "long": False} for number, text in enumerate(SHARED)]
        + [{"text": f"Write to ada@mail.invalid.org {text[::-1]}", "n": 100, "long": False} for text in SHARED[:3]]
        + [{"text": LONG, "n": 100, "long": True}, {"text": SHORT, "n": 101, "long": False}],
        "b": [
            {"text": text, "n": number, "long": False}
            for number, text in enumerate([*SHARED[:10], "Only in b", "And this"])
        ],
    }
    for name, rows in records.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "shelf.toml"
    sources = "".join(f'[[sources]]\nname = "{name}"\nurl = "{name}.jsonl"\n' for name in records)
    path.write_text(f'name = "shelf"\n{sources}{rules}\n[dedup]\n[tokenize]\ntokenizer = "bytes"\n')
    return path
