"""Small tokenizers of the kinds that well-known models use, each with a vocabulary that shows where words end."""

from __future__ import annotations

import functools
import json
from typing import Any

from datakit.tokenize.encoders.tokenizer import Tokenizer, parse
from tests.support.caches import trained

SPACE = "Ġ"
MERGES = [
    (SPACE, SPACE), (SPACE * 2, SPACE * 2), ("Ċ", "Ċ"), ("á", "ł"), ("áł", "İ"), (SPACE * 2, "áłİ"), ("1", "2"),
    ("12", "3"), ("123", "4"), ("'", "s"), ("s", "'"), ("a", "'"), ("æ", "¼"), ("æ¼", "¢"), ("å", "Ń"), ("åŃ", "Ĺ"),
    ("æ¼¢", "æ¼¢"), ("A", "B"), ("B", "c"), ("!", "a"), ("!", "Ċ"), ("/", "Ċ"), ("Ċ", "/"),
]  # fmt: skip
DIGITS = r"\p{N}{1,3}"
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
DEEPSEEK = (
    DIGITS,
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDS}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDS}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EXPRESSIONS = {"llama": (LLAMA,), "deepseek": DEEPSEEK, "o200k": (O200K,), "digit groups": (r"\p{N}{3}", LLAMA)}
KINDS = [*EXPRESSIONS, "single digits", "ignore_merges", "gemma", "byte_fallback"]


@functools.cache
def small_tokenizer(kind: str) -> Tokenizer:
    """A small tokenizer of this kind."""
    definition = _gemma(kind) if kind in ("gemma", "byte_fallback") else _byte_level(kind)
    made = parse(json.dumps(definition).encode(), "here")
    assert isinstance(made, Tokenizer)
    return made


def _byte_level(kind: str) -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(trained(600))
    model = definition["model"]
    for first, second in MERGES:
        _add(model, first + second)
        model["merges"].append([first, second])
    splits: list[dict[str, Any]] = [_split(expression) for expression in EXPRESSIONS.get(kind, (LLAMA,))]
    if kind == "single digits":
        splits = [{"type": "Digits", "individual_digits": True}, *splits]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*splits, bytes_only]}
    if kind == "ignore_merges":  # these tokens are words, and no merges lead to them
        model["ignore_merges"] = True
        for token in ("åŃĹåŃĹ", "xyzzy", SPACE + "xyzzy", "æ¼¢åŃĹ"):
            _add(model, token)
    return definition


def _gemma(kind: str) -> dict[str, Any]:
    """A BPE over characters that encodes unknown characters byte by byte."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdehilnorstuwxyz",
        *"<>k0123456789ABCDEF",
        "▁▁",
        "th",
        "the",
        "▁the",
    ]
    merges = [["▁", "▁"], ["t", "h"], ["th", "e"], ["▁", "the"]]
    model = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "fuse_unk": True,
        "end_of_word_suffix": None, "byte_fallback": True, "ignore_merges": False, "merges": merges,
        "vocab": {piece: number for number, piece in enumerate(pieces)},
    }  # fmt: skip
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "model": model,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": split if kind == "gemma" else None, "post_processor": None, "decoder": None,
    }  # fmt: skip


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _add(model: dict[str, Any], token: str) -> None:
    model["vocab"].setdefault(token, max(model["vocab"].values()) + 1)
