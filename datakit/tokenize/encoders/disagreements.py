"""Finds the tokenizer.json files for which fastokens and `tokenizers` (the reference) are known to give different ids.

Added tokens: if the model's vocabulary lacks an added token, `tokenizers` ignores the token's id in the file and
assigns the next free id. If the two ids differ, the file is refused, because a model may have been trained with either.

Vocabularies: the reference builds tokens from single characters by merges, which cannot produce an entry if one of its
characters is not an entry itself. fastokens uses such an entry as a token nevertheless. A byte-level vocabulary may
lack a byte; then fastokens fails on a text that contains the byte, and the reference drops the byte. With a vocabulary
of either kind, the reference encodes all texts. If all characters of an entry are entries, the two libraries give the
same ids even if no merge produces the entry, because both apply the merges. The search for characters that are not
entries takes 0.2 s in a vocabulary of 256,000 entries.

One character, U+180E: with most regular expressions, fastokens treats this character as white space, as Unicode did up
to version 6.2. It does not if the expression is that of the ByteLevel step. With any other step that cuts a text, the
reference encodes every text that contains the character.

Added tokens next to each other: fastokens may match an added token in the white space that belongs to the match of a
token with `lstrip` or `rstrip`. Where a token with `single_word` is part of a longer word, the tokens that fastokens
matches differ from those that the reference matches. fastokens looks for tokens with and without `normalized` at the
same time, whereas the reference looks for tokens without `normalized` first. If special tokens are read as text,
fastokens does not look for other tokens inside a special token that it has found; the reference finds a token with
`normalized` there. Therefore, every text that contains an affected token is encoded by the reference, and so are all
texts if a normalizer may produce an affected token.
"""

from __future__ import annotations

from typing import Any

import tokenizers

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.added_tokens import added_tokens
from datakit.tokenize.encoders.safe_cuts import steps_of
from datakit.tokenize.encoders.word_models import UTF8_BYTES, byte_characters

VOWEL_SEPARATOR = "\N{MONGOLIAN VOWEL SEPARATOR}"


def check_added_ids(reference: tokenizers.Tokenizer, definition: dict[str, Any], place: str) -> None:
    """Raise TokenizerError if the id that the reference gives to a nonempty added token differs from the id in the
    file.
    """
    for token in added_tokens(definition):
        content, number = token["content"], token["id"]
        given = reference.token_to_id(content)
        if content and given != number:
            raise TokenizerError(
                f"{place}: the added token {content!r} has id {number}, but `tokenizers` gives it {given}; a model may "
                f"expect either id. To keep {number}, list the added tokens in the order of their ids, with "
                f"placeholders for missing ids; to keep {given}, write this id into the file"
            )


def fast_refusal(definition: dict[str, Any]) -> str:
    """Return the reason why fastokens must not be used with a tokenizer.json that it can load; "" if there is none."""
    for token in disputed_added_tokens(definition) if definition.get("normalizer") else ():
        if token.get("normalized"):
            return f"its added token {token['content']!r} is matched after normalization and after other added tokens"
    return _vocabulary_refusal(definition)


def disputed_strings(definition: dict[str, Any]) -> tuple[str, ...]:
    """Return the strings on which the libraries may disagree: VOWEL_SEPARATOR, and the strings of added tokens. The
    reference must encode every text that contains one of these strings.
    """
    steps = [step for step in steps_of(definition.get("pre_tokenizer"), "pretokenizers") if _cuts(step)]
    characters = (VOWEL_SEPARATOR,) if any(step.get("type") != "ByteLevel" for step in steps) else ()
    return (*characters, *(token["content"] for token in disputed_added_tokens(definition)))


def _cuts(step: dict[str, Any]) -> bool:
    """Return False if this step of a pre-tokenizer only maps bytes to characters."""
    return step.get("type") != "ByteLevel" or step.get("use_regex", True)


def disputed_added_tokens(definition: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens for which the two libraries may find different matches in a text."""
    tokens = [token for token in added_tokens(definition) if token["content"]]
    first = {token["content"] for token in tokens if not token.get("normalized")}
    beginnings = {content[:size] for content in first for size in range(1, len(content) + 1)}
    special = {token["content"] for token in tokens if token.get("special") and not token.get("normalized")}
    endings = {content[start:] for content in special for start in range(len(content))}
    parts = {ending[:size] for ending in endings for size in range(1, len(ending) + 1)}
    white = any(token["content"] != token["content"].strip() for token in tokens)
    return [
        token
        for token in tokens
        if (white and (token.get("lstrip") or token.get("rstrip")))
        or (token.get("single_word") and len(tokens) > 1)
        or (token.get("normalized") and _meets(token["content"], first, beginnings))
        or (token.get("normalized") and _begins_inside(token["content"], parts, endings))
    ]


def _begins_inside(content: str, parts: set[str], endings: set[str]) -> bool:
    """Return True if `content` is in `parts`, all substrings of the special tokens, or begins with a string in
    `endings`, all ends of the special tokens.
    """
    return content in parts or any(content[:size] in endings for size in range(1, len(content)))


def _meets(content: str, first: set[str], beginnings: set[str]) -> bool:
    """Return True if `content` contains a string in `first`, or if a proper suffix of `content` is in `beginnings`, the
    set of all prefixes of the strings in `first`.
    """
    size = len(content)
    inside = (content[start:stop] for start in range(size) for stop in range(start + 1, size + 1))
    return any(content[start:] in beginnings for start in range(1, size)) or any(part in first for part in inside)


def _vocabulary_refusal(definition: dict[str, Any]) -> str:
    model = definition["model"]
    if model.get("type", "BPE") != "BPE":
        return ""
    vocabulary = model["vocab"]
    if any(step.get("type") == "ByteLevel" for step in steps_of(definition.get("pre_tokenizer"), "pretokenizers")):
        characters = byte_characters()
        lacking = [byte for byte in UTF8_BYTES if characters[byte] not in vocabulary]
        return f"its vocabulary lacks the byte 0x{lacking[0]:02x}" if lacking else ""
    if model.get("ignore_merges"):
        # With this setting, both libraries take a word that is an entry as one token, even if no merge produces it.
        return ""
    unknown = set("".join(vocabulary)).difference(vocabulary)
    if not unknown:
        return ""
    entry = min(token for token in vocabulary if not unknown.isdisjoint(token))
    return f"no merge leads to the entry {entry!r} of its vocabulary, which lacks one of the entry's characters"
