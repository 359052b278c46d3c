"""Byte-level tokenizers of every supported pre-tokenizer, and hypothesis strategies for texts that are hard to cut."""

from __future__ import annotations

import functools
import json
from typing import Any

from hypothesis import strategies as st

from datakit.tokenize.encoders.safe_cuts import CL100K_KIND, GPT2
from datakit.tokenize.encoders.tokenizer import Tokenizer, parse
from tests.support.caches import trained

KINDS = ["gpt2", "gpt2 as expression", *(f"cl100k {number}" for number in range(len(CL100K_KIND)))]


NORMALIZERS = [None, "NFC", "NFD", "NFKC", "NFKD"]


ADDED = ["<|sep|>", "   ", "|x y|", "é ", "<n>", "zé", "sep"]  # "sep" is inside a special token


CHARACTERS = st.sampled_from([
    *"aBz19 .,!'-/_|<>\n\r\t\x1c\x85\u00a0\u3000²٣éß漢字。カ한\u0301\u0323\u3099\u200d\ufb01\uff1c\u00a8", "\U0001f469",
])  # fmt: skip


FRAGMENTS = st.sampled_from(
    ["'s", "'ll", "\r\n", "  ", "the ", "<|endoftext|>", "<|end", *ADDED, "e\u0301", "\u1100\u1161"]
)


RUNS = st.builds(lambda text, times: text * times, CHARACTERS | FRAGMENTS, st.integers(1, 60))


TEXTS = st.lists(RUNS | CHARACTERS | FRAGMENTS, max_size=50).map("".join)


@functools.cache
def tokenizer_of(kind: str, normalizer: str | None) -> Tokenizer:
    """A small byte-level BPE with this pre-tokenizer, and added tokens of every sort."""
    definition: dict[str, Any] = json.loads(trained(600))
    if kind != "gpt2":
        number = kind.removeprefix("cl100k ")
        expression = sorted(CL100K_KIND)[int(number)] if number.isdigit() else GPT2
        split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    definition["normalizer"] = normalizer and {"type": normalizer}
    plain = {"single_word": False, "lstrip": False, "rstrip": False}
    for number, content in enumerate(ADDED):
        flags = {**plain, "normalized": number % 2 == 1, "special": number == 0}
        definition["added_tokens"].append({"id": 600 + number, "content": content, **flags})
    made = parse(json.dumps(definition).encode(), "here")
    assert isinstance(made, Tokenizer)
    return made
