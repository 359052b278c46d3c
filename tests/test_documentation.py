"""Documentation stays true: its links, paths and quoted messages exist, and its paragraphs are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import module_index
from tests.support.paths import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
PARAGRAPH_WORDS = 120
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
PATH = re.compile(r"\b(?:datakit|tests|benchmarks|docs)/[\w./-]+\.(?:py|toml|md|bin)\b")
MODULE = re.compile(r"python -m (benchmarks(?:\.\w+)+)")


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and list items, without tables, code and headings."""
    for block in re.split(r"\n\s*\n", FENCE.sub("", text)):
        if not block.lstrip("\n").startswith(("|", "    ", "#", "<")):
            yield from re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_path_exists(page: Path) -> None:
    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [path for path in PATH.findall(text) if not (REPOSITORY / path).exists()]
    missing += [name for name in MODULE.findall(text) if not (REPOSITORY / f"{name.replace('.', '/')}.py").exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_paragraph_is_long(page: Path) -> None:
    long = [part.strip()[:60] for part in paragraphs(page.read_text()) if len(part.split()) > PARAGRAPH_WORDS]
    assert long == []


def test_the_list_of_modules_is_current() -> None:
    assert module_index.written() == module_index.index(), "run `python -m tests.support.module_index`"


def test_messages_in_operations_are_those_of_the_code() -> None:
    """Each literal piece of a message in the table *Messages* occurs in the package's source."""
    source = "".join(path.read_text() for path in sorted((REPOSITORY / "datakit").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    table = (REPOSITORY / "docs" / "operations.md").read_text().partition("## Messages")[2].partition("\n## ")[0]
    messages = re.findall(
        r"`([^`]+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if row.count("|") > 3)
    )
    assert len(messages) > 15
    pieces = [piece.strip(" ;:()`") for message in messages for piece in message.split("...")]
    assert [piece for piece in pieces if piece and piece not in source] == []
