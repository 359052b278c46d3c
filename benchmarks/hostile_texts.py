"""Makes hostile texts for benchmarks of annotators: giant lines, punctuation, scripts, controls and repetitions."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.data import need_data

GIANT = 50_000  # characters; the peer takes quadratic time for some of these
PIECES = (
    *("a", "a ", "word ", "漢字 ", "字", "か", "ที่", "سلام ", "e\u0301", "a\u0301\u0301 ", "😀", "👨‍👩‍👧 ", "."),
    *("...", "…", "!? "),
    *("- ", "• a\n", "- item\n", "a\n", "a.\r\n", "\n", "a\n\n", "\t", "\u2028", "a\x85", "\u00a0", "\u200b", "\x01"),
    "\x1b[0m ",
    *("#", "# ", "{", "[1]", "[1", '"', "'", "Mr. ", "1.2.3.", "a@b.c ", "http://a.b/c ", "a/b", "a-b", "$1,000.00 "),
    *("lorem ipsum. ", "Use cookies. ", "JavaScript. ", "the quick brown fox jumps. ", "of and the to be\n"),
    *("One two three. [1]\n", "One two three.[1] \n", "One two three. \n"),
)  # fmt: skip
LINES = (
    *("", " ", "\n", "\n\n\n", "\r\n", "a", "a b", "a b\n", "\na\n", "\n\na b c.\n\n", "\ufeff", "\u200b", "\x1c"),
    *("...", "IS_ALPHA"),
    "\nOne line of text that is long enough to count as one.\n",
)  # fmt: skip
SENTENCE = "The people of the town have to be fed with the bread and the wine that they like"


def prose(end: str, newline: str, count: int) -> str:
    """Return different lines of words that the filters keep, up to their ends."""
    return "".join(f"{SENTENCE} {number * 'x'}{end}{newline}" for number in range(1, count + 1))


def pathological() -> list[str]:
    """Return the texts of those hostile files that are plain JSON Lines, and the naughty strings."""
    folder = need_data() / "pathological"
    naughty: list[str] = json.loads((folder / "blns" / "blns.json").read_text(encoding="utf-8"))
    texts = [*naughty, "\n".join(naughty), " ".join(naughty)]
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, folder / "mk_pathological.py", made], check=True, stdout=subprocess.DEVNULL)
        for path in sorted(one for one in Path(made).glob("*.jsonl") if one.is_file()):
            for line in path.read_bytes().splitlines():
                try:
                    record = json.loads(line)
                    texts.append(record["text"].encode().decode()[: 10 * GIANT])
                except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
                    continue  # files that no reader accepts are not the subject
    return sorted(set(texts))


def mixed(count: int) -> list[str]:
    """Return texts of random pieces."""
    generator = random.Random(15)
    return ["".join(generator.choices(PIECES, k=generator.choice((5, 50, 500)))) for _ in range(count)]


def hostile_texts() -> list[str]:
    """Return all hostile texts."""
    giant = [piece * (GIANT // len(piece)) for piece in PIECES]
    small = [piece * 60 for piece in PIECES]
    documents = [
        prose(end, newline, 12)
        for end in (".", ". ", "!", "...", "…", "", ". [1]", ".[1]", "。", '."', "? }", " {")
        for newline in ("\n", "\r\n", "\n\n", "\r", "\u2028", " ")
    ]
    return [*LINES, *small, *giant, *documents, *mixed(300), *pathological()]
