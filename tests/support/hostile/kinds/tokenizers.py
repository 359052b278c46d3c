"""tokenizer.json files of strangers, in recipes, in caches and at imports: code by name, panics, huge ids, expressions
that take for ever, texts that grow, and unsafe tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.caches import trained
from tests.support.hostile.case import OPENED, Case, Limits, Place, refused
from tests.support.hostile.kinds.manifests import SHELF, copy_finished, step

UNSAFE = "\x1b]0;owned\x07\u202e"


def recipe(content: bytes | Callable[[], bytes]) -> Callable[[Place], None]:
    """Return a function that writes a recipe with this tokenizer.json."""

    def build(place: Place) -> None:
        place.write("texts/a.jsonl", place.lines(20))
        place.write("tokenizer.json", content() if callable(content) else content)
        place.recipe(more='[tokenize]\ntokenizer = "tokenizer.json"\n')

    return build


def cached(content: bytes | Callable[[], bytes]) -> Callable[[Place], None]:
    """Return a function that copies the finished cache and replaces its tokenizer.json."""

    def build(place: Place) -> None:
        copy_finished(place)
        (step(place, "tokenize") / "tokenizer.json").write_bytes(content() if callable(content) else content)

    return build


def changed(**parts: Any) -> Callable[[], bytes]:
    """Return a function that makes a trained tokenizer.json with other parts."""
    return lambda: json.dumps(json.loads(trained()) | parts).encode()


def with_model(**parts: Any) -> Callable[[], bytes]:
    """Return a function that makes a trained tokenizer.json whose model has other parts."""

    def make() -> bytes:
        definition = json.loads(trained())
        definition["model"] |= parts
        return json.dumps(definition).encode()

    return make


def with_tokens(*tokens: tuple[str, int]) -> Callable[[], bytes]:
    """Return a function that makes a trained tokenizer.json with more added tokens."""

    def make() -> bytes:
        definition = json.loads(trained())
        common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        definition["added_tokens"] += [{"id": number, "content": token, **common} for token, number in tokens]
        return json.dumps(definition).encode()

    return make


def describes(function: str) -> bytes:
    """Return a file that names a Python function."""
    facts = {"name": "x", "version": "1", "vocabulary_size": 2, "special": {}}
    return json.dumps({"datakit_tokenizer": function, **facts}).encode()


def split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


NO_CODE = "datakit imports no code that a file names"
RUN = ("run", "r.toml", "--root", "{root}", "--workers", "1")
UNREADABLE = "tokenizer.json"
MOST = Limits(memory=2 << 30, written=256 << 20)
FILES: dict[str, tuple[bytes | Callable[[], bytes], tuple[int, ...], str]] = {
    "names-a-module": (describes(f"{OPENED}:make"), (2,), NO_CODE),
    "names-a-module-behind-spaces": (b" " * 300 + describes(f"{OPENED}:make"), (2,), NO_CODE),
    "names-the-system": (describes("os:abort"), (2,), NO_CODE),
    "names-a-built-in-with-other-facts": (describes("bytes"), (2,), "differs from this description"),
    "empty": (b"", (2,), UNREADABLE),
    "not-json": (b"{", (2,), UNREADABLE),
    "not-utf-8": (b"\xff\xfe{}", (2,), UNREADABLE),
    "nested-deep": (b'{"a":' * 100_000, (2,), UNREADABLE),
    "of-nothing": (b"null", (2,), UNREADABLE),
    "of-an-unknown-model": (changed(model={"type": "Pickle", "path": "x"}), (2,), UNREADABLE),
    "id-2^31": (with_tokens(("<huge>", 1 << 31)), (0, 2), ""),
    "id-2^32-1": (with_tokens(("<huge>", (1 << 32) - 1)), (0, 2), ""),
    "id-2^64": (with_tokens(("<huge>", 1 << 64)), (2,), UNREADABLE),
    "negative-id": (with_tokens(("<negative>", -1)), (2,), UNREADABLE),
    "same-id-twice": (with_tokens(("<a>", 0), ("<b>", 0)), (0, 2), ""),
    "empty-token": (with_tokens(("", 400)), (0, 2), ""),
    "100000-added-tokens": (with_tokens(*((f"<{n}>", 400 + n) for n in range(100_000))), (0, 2), ""),
    "unsafe-tokens": (with_tokens((UNSAFE, 400)), (0, 2), ""),
    "random-merges": (with_model(dropout=0.5), (0, 2), ""),
    "merges-of-unknown-tokens": (with_model(merges=["q x", "\u0120 zz"]), (2,), UNREADABLE),
    "vocabulary-of-one-token": (with_model(vocab={"a": 0}, merges=[]), (0, 1, 2, 3), ""),
    "vocabulary-with-gaps": (with_model(vocab={"a": 0, "b": 1 << 20}, merges=[]), (0, 1, 2, 3), ""),
    "expression-that-backtracks": (changed(pre_tokenizer=split("(a|a|aa|[a-z])*(?=!)$")), (0, 1, 2, 3), ""),
    "expression-that-is-invalid": (changed(pre_tokenizer=split("([")), (2,), ""),
    "expression-that-matches-nothing": (changed(pre_tokenizer=split("")), (0, 1, 2, 3), ""),
    "text-grows": (changed(normalizer={"type": "Replace", "pattern": {"String": "n"}, "content": "x" * 100_000}),
                   (0, 1, 2, 3), ""),
    "text-doubles-12-times": (changed(normalizer={"type": "Sequence", "normalizers": [{"type": "Replace", "pattern":
                              {"String": "n"}, "content": "nn"}] * 12}), (0, 1, 2, 3), ""),
    "100000-normalizers": (changed(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 100_000}), (0, 2),
                           ""),
    "damaged-character-map": (changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}),
                              (0, 1, 2), ""),
    "pads-to-2^40": (changed(padding={"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None,
                     "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}), (0, 2), ""),
    "truncates-to-nothing": (changed(truncation={"max_length": 0, "strategy": "LongestFirst", "stride": 0,
                             "direction": "Right"}), (0, 2), ""),
    "decoder-of-100000": (changed(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}] * 100_000}), (0, 2), ""),
}  # fmt: skip
OPEN = ("names-a-module", "id-2^31", "empty", "unsafe-tokens")
CASES = (
    *(
        Case(f"tokenizer-{name}", recipe(content), refused(*filter(None, (said,)), code=codes), words=RUN, limits=MOST)
        for name, (content, codes, said) in FILES.items()
    ),
    *(
        Case(
            f"tokenizer-{name}-in-a-cache-{command}",
            cached(FILES[name][0]),
            refused(code=(0, 1, 2, 4)),
            words=("cache", command, SHELF),
            shows_text=True,
        )
        for name in OPEN
        for command in ("show", "stats")
    ),
    *(
        Case(
            f"tokenizer-{name}-in-a-cache-validate",
            cached(FILES[name][0]),
            refused("tokenizer.json", code=(1, 2, 4)),
            words=("validate", SHELF),
        )
        for name in OPEN
    ),
    *(
        Case(
            f"tokenizer-{name}-at-an-import",
            recipe(FILES[name][0]),
            refused(code=2),
            words=("cache", "import", "texts", "{root}/cache", "--tokenizer", "tokenizer.json"),
        )
        for name in ("names-a-module", "not-json")
    ),
)
