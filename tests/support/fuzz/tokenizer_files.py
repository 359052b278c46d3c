"""Compares the encoders with `tokenizers` on random tokenizer files of every kind, for texts over lowered split limits.

The reference loads the same file and encodes the whole text at once. A file that datakit refuses is no finding.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

import tokenizers
from hypothesis import strategies as st

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.safe_cuts import CL100K_KIND, GPT2
from datakit.tokenize.encoders.tokenizer import Tokenizer, parse
from tests.support.tokens.bpe_tokenizers import NORMALIZERS, TEXTS
from tests.support.tokens.tokenizer_kinds import EXPRESSIONS, small_tokenizer

BYTES = tuple(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
SPLITS = {"gpt2": (GPT2,), **{f"cl100k {n}": (text,) for n, text in enumerate(sorted(CL100K_KIND))}, **EXPRESSIONS}
KINDS = ("byte-level", *SPLITS, "single digits", "gemma", "byte_fallback", "metaspace")
SPELLED = tuple("▁aBthe'.,|é漢字<>unkx0123456789ACDEF")  # with all characters of the entries for bytes


@dataclass(frozen=True)
class Case:
    """A tokenizer file and a text. sizes: the limits of parts, word windows, look-ahead and normalized pieces."""

    kind: str
    merges: tuple[tuple[str, str], ...]
    unreachable: tuple[str, ...]
    ignore_merges: bool
    normalizer: str | None
    added: tuple[tuple[str, str], ...]
    text: str
    special_strings: str
    sizes: tuple[int, int, int, int]

    @property
    def definition(self) -> dict[str, Any]:
        """The tokenizer file."""
        whole = self.kind in ("gemma", "byte_fallback", "metaspace")
        pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPELLED] if whole else list(BYTES)
        pieces += [first + second for first, second in self.merges] + list(self.unreachable)
        vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
        model = {
            "type": "BPE", "dropout": None, "unk_token": "<unk>" if whole else None, "end_of_word_suffix": None,
            "continuing_subword_prefix": None, "fuse_unk": whole, "byte_fallback": whole, "vocab": vocabulary,
            "merges": [list(merge) for merge in self.merges], "ignore_merges": self.ignore_merges,
        }  # fmt: skip
        normalizer, pre_tokenizer = _pipeline(self.kind, self.normalizer)
        new = [content for content, _ in self.added if content not in vocabulary]
        numbers = {**vocabulary, **{content: len(vocabulary) + i for i, content in enumerate(new)}}
        return {
            "version": "1.0", "truncation": None, "padding": None, "model": model, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": None,
            "added_tokens": [_added(token, numbers[token[0]]) for token in self.added],
        }  # fmt: skip


def check(case: Case) -> None:
    """Encode the text with both libraries, whole and in parts; all give the ids of the reference."""
    data = json.dumps(case.definition).encode()
    try:
        made = parse(data, "here")
    except TokenizerError:
        return
    assert isinstance(made, Tokenizer)
    library = tokenizers.Tokenizer.from_str(data.decode())
    library.encode_special_tokens = case.special_strings == "text"
    try:
        expected = library.encode(case.text, add_special_tokens=False).ids
    except BaseException as error:  # the reference panics where added tokens claim the same white space
        if type(error).__name__ != "PanicException":
            raise
        return
    for wanted in ("tokenizers", *(["fastokens"] if made.fast else []), *(["datakit"] if made.own[0] else [])):
        encoder = made.encoder(wanted, case.special_strings)
        assert encoder.encode_batch([case.text])[0].tolist() == expected, f"{wanted}, whole"
        parts = made.long_texts(encoder, case.special_strings, case.sizes[0]).cutting
        if parts.splitter is not None:
            words, longest = parts.words, max(map(len, case.definition["model"]["vocab"]))
            words.window, words.look, words.normalize_size = max(case.sizes[1], 8 * longest), *case.sizes[2:]
        assert parts.encode_text(case.text).tolist() == expected, f"{wanted}, in parts"


def _pipeline(kind: str, form: str | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The normalizer and the pre-tokenizer of a kind."""
    if kind in ("gemma", "byte_fallback"):
        definition = small_tokenizer(kind).definition
        return definition["normalizer"], definition["pre_tokenizer"]
    if kind == "metaspace":
        return None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": bool(form)}
    normalizer = {"type": form} if form else None
    if kind == "byte-level":
        return normalizer, _byte_level(True)
    splits = [_split(text) for text in SPLITS.get(kind, SPLITS["llama"])]
    if kind == "single digits":
        splits = [{"type": "Digits", "individual_digits": True}, *splits]
    return normalizer, {"type": "Sequence", "pretokenizers": [*splits, _byte_level(False)]}


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _byte_level(expression: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": expression}


def _added(token: tuple[str, str], number: int) -> dict[str, Any]:
    """flags: letters of those that are set: Special, Normalized, Left, Right, Word."""
    content, flags = token
    names = {"special": "S", "normalized": "N", "lstrip": "L", "rstrip": "R", "single_word": "W"}
    return {"id": number, "content": content, **{name: letter in flags for name, letter in names.items()}}


@functools.cache
def _spelled(text: str, whole: bool) -> tuple[str, ...]:
    """A text as the units of its vocabulary."""
    if whole:
        return tuple(text.replace(" ", "▁"))
    shown = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return tuple("".join(piece for piece, _ in shown))


PHRASES = (
    "the",
    " the",
    "漢字",
    "字字",
    "  ",
    "\n\n",
    " \n",
    "123",
    "1234",
    "'s",
    "AB",
    "e\u0301",
    "!a",
    ".\n",
    "zé",
    "aaaa",
)
CONTENTS = (
    "<|x|>",
    "<|x",
    "the",
    " a",
    "   ",
    "é ",
    "1",
    "12",
    "\n",
    "漢",
    "字漢",
    "'s",
    "a b",
    "AB",
    "\u0301",
    "ﬁ",
    "=",
)
FLAGS = st.sampled_from(["", "S", "N", "SN", "L", "R", "W", "SL", "SR", "SW", "NW", "NL", "NR", "LR", "SLR"])


@st.composite
def _merges(draw: st.DrawFn, whole: bool) -> tuple[tuple[str, str], ...]:
    """Merges that lead to phrases or to random pairs, each of tokens that exist by then."""
    known = [*SPELLED] if whole else sorted({unit for text in PHRASES for unit in _spelled(text, False)})
    merges: dict[tuple[str, str], None] = {}
    for text in draw(st.lists(st.sampled_from(PHRASES), max_size=6)):
        units = [unit for unit in _spelled(text, whole) if not whole or unit in SPELLED]
        while len(units) > 1 and draw(st.integers(0, 4)):
            at = draw(st.integers(0, len(units) - 2))
            merges[units[at], units[at + 1]] = None
            units[at : at + 2] = [units[at] + units[at + 1]]
    for _ in range(draw(st.integers(0, 5))):
        pool = st.sampled_from([*known, *(first + second for first, second in merges)])
        merges[draw(pool), draw(pool)] = None
    return tuple(merges)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(KINDS))
    whole = kind in ("gemma", "byte_fallback", "metaspace")
    words = draw(st.sets(st.sampled_from(PHRASES), max_size=3))
    added = draw(st.lists(st.tuples(st.sampled_from(CONTENTS), FLAGS), max_size=3, unique_by=lambda token: token[0]))
    phrases = st.sampled_from([*PHRASES, *(content for content, _ in added), "xyz"])
    text = draw(st.lists(TEXTS | st.lists(phrases, max_size=30).map("".join), max_size=6).map("".join))
    return Case(
        kind=kind,
        merges=draw(_merges(whole)),
        unreachable=tuple("".join(_spelled(word, whole)) for word in sorted(words)),
        ignore_merges=draw(st.booleans()),
        normalizer=draw(st.sampled_from(NORMALIZERS)),
        added=tuple(added),
        text=text,
        special_strings=draw(st.sampled_from(["keep", "text"])),
        sizes=(
            draw(st.integers(1, 64)),
            draw(st.integers(8, 120)),
            draw(st.sampled_from([40, 60])),
            draw(st.integers(1, 9)),
        ),
    )


CASES = _cases()
