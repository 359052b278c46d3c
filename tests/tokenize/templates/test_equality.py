"""Texts, ids and masks are those of `apply_chat_template` of transformers, for templates of well-known models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tokens.template_cases import (
    CONVERSATIONS,
    EXPECTED,
    TOKENIZERS,
    InlineRenderer,
    ask_transformers,
    encoded,
    encoder_of,
    stored_templates,
)


def compare(templates: dict[str, str], results: dict[str, Any]) -> dict[str, int]:
    """Compare all cases, and count what was compared. A conversation that transformers cannot render must be lost."""
    counts: dict[str, int] = dict.fromkeys(("texts", "ids", "masks", "lost", "inconsistent"), 0)
    made = {kind: make() for kind, make in TOKENIZERS.items()}
    for name, template in templates.items():
        renderer = InlineRenderer(template)
        compiled, _ = renderer.made[0]
        for kind, tokenizer in made.items():
            chats = encoder_of(tokenizer, renderer)
            for title, conversation in CONVERSATIONS.items():
                expected, place = results[kind][name][title], (kind, name, title)
                found = encoded(chats, conversation)
                if isinstance(expected, str):
                    assert found.lost, place
                    counts["lost"] += 1
                    continue
                text, ids, mask = expected
                assert compiled.render(conversation.messages, conversation.tools) == text, place
                counts["texts"] += 1
                if found.lost:
                    assert found.lost[0].startswith("writes the beginning") and not compiled.has_spans, (
                        place,
                        found.lost,
                    )
                    counts["inconsistent"] += 1
                    continue
                assert found.texts == [text] and found.ids.tolist() == ids, place
                counts["ids"] += 1
                if compiled.has_spans:
                    assert found.mask.tolist() == mask, place
                    counts["masks"] += sum(mask) > 0
    return counts


def test_stored_templates_give_what_transformers_gives() -> None:
    counts = compare(stored_templates(), json.loads(EXPECTED.read_text()))
    assert counts["texts"] > 150 and counts["ids"] > 120 and counts["masks"] > 50 and counts["lost"] > 5, counts


def test_templates_of_well_known_models_give_what_transformers_gives(tmp_path: Path) -> None:
    found = ask_transformers(tmp_path, more=True)
    assert {name: found["results"]["bytes.json"][name] for name in stored_templates()} == json.loads(
        EXPECTED.read_text()
    )["bytes.json"]
    counts = compare(found["templates"], found["results"])
    print(len(found["templates"]), "templates:", counts)
    if len(found["templates"]) == len(stored_templates()):
        pytest.skip("the package trl is not installed there, so only the stored templates were compared")
    assert counts["ids"] > 300, counts
