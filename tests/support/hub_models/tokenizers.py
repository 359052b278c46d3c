"""Tokenizers with a begin-of-text token, and with post-processors that add various tokens to a text."""

from __future__ import annotations

import json
from typing import Any

from tests.support.caches import trained

BOS, EOS = ("<s>", 400), ("<|endoftext|>", 0)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def _template(*parts: str | None) -> dict[str, Any]:
    """A template of special tokens; None stands for the text."""
    ids = dict((BOS, EOS))

    def pieces(texts: str) -> list[Any]:
        found: list[Any] = []
        for number, name in enumerate(texts):
            part = {"Sequence": {"id": name, "type_id": number}}
            found += [{"SpecialToken": {"id": one, "type_id": number}} if one else part for one in parts]
        return found

    used = {part for part in parts if part}
    tokens = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in used}
    return {"type": "TemplateProcessing", "single": pieces("A"), "pair": pieces("AB"), "special_tokens": tokens}


PROCESSORS: dict[str, Any] = {
    "nothing": None,
    "offsets": BYTE_LEVEL,
    "begin": _template("<s>", None),
    "both ends": _template("<s>", None, "<|endoftext|>"),
    "offsets and end": {"type": "Sequence", "processors": [BYTE_LEVEL, _template(None, "<|endoftext|>")]},
    "roberta": {"type": "RobertaProcessing", "sep": EOS, "cls": BOS, "trim_offsets": True, "add_prefix_space": False},
}


def with_processor(processor: Any) -> bytes:
    """The trained tokenizer with a begin-of-text token and a post-processor."""
    document = json.loads(trained())
    document["added_tokens"].append(document["added_tokens"][0] | {"id": BOS[1], "content": BOS[0]})
    return json.dumps(document | {"post_processor": processor}).encode()
