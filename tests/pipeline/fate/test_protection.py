"""`datakit.why` names the rule that protects a document, and the rules that would otherwise have removed it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.api import run
from datakit.conditions.config import Rule
from datakit.pipeline.fate.fates import why
from datakit.pipeline.fate.protection import Found, explained_protection
from tests.support.partitions import identity

MAIL = "Write to ada@mail.invalid.org and ask her about number"
RULES = """
[annotate.personal]
[[rules]]
name = "trusted"
where = "document.trusted"
action = "keep"
sources = ["a"]
[[rules]]
name = "mail"
where = "len(personal.spans) > 0"
[[rules]]
name = "early"
where = "document.n < 2"
[[rules]]
name = "lowest"
where = "document.n < 3"
lowest = 0.4
by = "document.n"
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("protected")
    for name in "ab":
        rows = [{"text": f"{MAIL} {n} {name}", "n": n, "trusted": n % 2 == 0} for n in range(4)]
        rows += [{"text": f"Nothing about {n} {name}", "n": 4 + n, "trusted": n % 2 == 0} for n in range(2)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = "".join(f'[[sources]]\nname = "{name}"\nurl = "{name}.jsonl"\n' for name in "ab")
    (folder / "shelf.toml").write_text(f'name = "shelf"\n{sources}{RULES}')
    run(folder / "shelf.toml", root=folder / "root", workers=1, until="rules")
    return str(folder / "root" / "shelf")


@pytest.mark.parametrize(
    ("text", "outcome", "explanation"),
    [
        (
            f"{MAIL} 0 a", "kept", "by rule trusted, which protects it; mail, early would otherwise have removed it; "
            "so would lowest, if it is in the rule's share, which is not recorded",
        ),
        (f"{MAIL} 1 a", "removed", "by rule mail; early would have removed it as well"),
        (f"{MAIL} 0 b", "removed", "by rule mail; early, lowest would have removed it as well"),
        ("Nothing about 0 a", "kept", "by rule trusted, which protects it; no other rule would have removed it"),
        ("Nothing about 1 a", "kept", "no rule removes it"),
        ("Nothing about 0 b", "kept", "no rule removes it"),
    ],
)  # fmt: skip
def test_why_names_the_rule_that_keeps(dataset: str, text: str, outcome: str, explanation: str) -> None:
    (fate,) = why(dataset, id=identity(text)).documents
    (found,) = [one for one in fate.stages if one.stage == "rules"]
    assert (found.outcome, found.explanation) == (outcome, explanation)


KEEP, SHARE = Rule("keep", "true", "keep"), Rule("best", "true", "keep", highest=0.1, by="x")
DROP = Rule("drop", "true")


@pytest.mark.parametrize(
    ("found", "explanation"),
    [
        (
            [Found(SHARE, False, True), Found(DROP, False, False)],
            "no rule removes it; best protects it if it is in this rule's share, which is not recorded",
        ),
        (
            [Found(SHARE, False, True), Found(DROP, True, False)],
            "by rule best, which protects it; drop would otherwise have removed it",
        ),
        (
            [Found(SHARE, False, True), Found(KEEP, True, False), Found(DROP, True, False)],
            "by rule best or keep, which protects it; drop would otherwise have removed it",
        ),
        (
            [Found(DROP, True, False), Found(KEEP, True, False)],
            "no rule removes it, although rule drop applies to it; was a directory changed?",
        ),
    ],
)
def test_share_that_is_not_recorded_is_said_to_be_unknown(found: list[Found], explanation: str) -> None:
    assert explained_protection(found) == explanation


FINAL_RULES = """
[annotate.personal]
[select.edits.mail]
spans = "personal.spans"
kinds = ["email"]
action = "mask"
replacement = "<M>"
[[select.rules]]
name = "trusted"
where = "document.trusted AND edited.stretches = 1"
action = "keep"
[[select.rules]]
name = "masked"
where = "edited.stretches > 0"
"""


def test_why_names_the_final_rule_that_keeps_an_edited_document(tmp_path: Path) -> None:
    rows = [{"text": f"Write to ada@mail.dev about number {n}", "trusted": n % 2 == 0} for n in range(4)]
    rows += [{"text": f"Nothing about {n}", "trusted": n % 2 == 0} for n in range(2)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "shelf.toml"
    recipe.write_text(f'name = "shelf"\n[[sources]]\nname = "a"\nurl = "a.jsonl"\n{FINAL_RULES}')
    run(recipe, root=tmp_path / "root", workers=1, until="select")

    def found(text: str) -> tuple[str, str]:
        (fate,) = why(str(tmp_path / "root" / "shelf"), id=identity(text)).documents
        (stage,) = [one for one in fate.stages if one.stage == "select"]
        return stage.outcome, stage.explanation

    assert found(str(rows[0]["text"])) == (
        "edited",
        "1 stretch masked by mail; by final rule trusted, which protects it; masked would otherwise have removed it",
    )
    assert found(str(rows[1]["text"])) == ("removed", "by final rule masked")
    assert found(str(rows[4]["text"])) == ("kept", "it stays in the dataset")
