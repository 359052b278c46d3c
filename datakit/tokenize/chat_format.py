"""Defines the chat formats and the known roles, and refuses a format whose markers are not special tokens.

A format puts a head before each message's content and a tail after it. Contents are untrusted, so a head must contain
something that no content can produce: a special token of the tokenizer. Otherwise a user's message could contain the
text of an assistant's head, and that text would get the ids of a real head. A tail must contain a special token too,
unless it is only white space, which does not mark the end of a message.

The set of roles is fixed: a role becomes part of the head as trusted text and decides whether a message is a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from datakit.cache.lengths import starts_of
from datakit.errors import RecipeError, TokenizerError, suggestion
from datakit.tokenize.encoders.base import Encoder

FORMATS = {  # name: (head, tail)
    "simple": ("<|{role}|>\n", "\n"),
    "chatml": ("<|im_start|>{role}\n", "<|im_end|>\n"),
}
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TARGETS = ("assistant",)
CONTENT = "{content}"
TEMPLATE = "template"  # the format of conversations that a Jinja template renders (templates/)


@dataclass(frozen=True)
class ChatFormat:
    """The strings around a message's content ({role} stands for the message's role), and the roles that are targets."""

    head: str
    tail: str
    targets: tuple[str, ...] = TARGETS


@dataclass(frozen=True)
class ChatFrames:
    """The encoded heads and tails of a format, for the roles that are safe with a given tokenizer (see `chat_frames`).

    ids: the tokens of all heads, then of all tails, end to end, in the order of `roles`. lengths: the number of tokens
    in each head and tail, in the same order. markers: the ids of the special tokens among `ids`. targets: bool, True
    for each role whose messages are targets.
    """

    roles: tuple[str, ...]
    ids: np.ndarray
    lengths: np.ndarray
    markers: np.ndarray
    targets: np.ndarray


def chat_format(form: str) -> ChatFormat:
    """Parse a format, which is a known name or a string such as "<|im_start|>{role} {content}<|im_end|>".

    Raises RecipeError if `form` is neither.
    """
    if form in FORMATS:
        return ChatFormat(*FORMATS[form])
    if form.count(CONTENT) != 1:
        raise RecipeError(
            f"tokenize.chat_format {form!r} is neither a known name nor a string that contains {CONTENT} once; "
            f"{suggestion(form, (*FORMATS, TEMPLATE))}"
        )
    head, _, tail = form.partition(CONTENT)
    return ChatFormat(head, tail)


def chat_frames(form: ChatFormat, trusted: Encoder, special: Mapping[str, int]) -> ChatFrames:
    """Encode the heads and tails of all roles that are safe with this tokenizer: those whose head contains a special
    token, and whose tail contains one too or is only white space.

    trusted: an encoder that encodes the string of a special token as that token. special: the ids of the special
    tokens, by string. Raises TokenizerError if a target role or the role "user" is not safe.
    """
    heads, tails = ([side.replace("{role}", role) for role in ROLES] for side in (form.head, form.tail))
    ids, lengths = trusted.encode_batch([*heads, *tails])
    parts = np.split(ids, starts_of(lengths)[1:-1])
    found = [_markers(text, part, special) for text, part in zip([*heads, *tails], parts, strict=True)]
    count = len(ROLES)
    safe = [bool(found[row]) and bool(found[count + row] or not tails[row].strip()) for row in range(count)]
    for role in ("user", *form.targets):
        if not safe[ROLES.index(role)]:
            raise TokenizerError(_refusal(form, role, special))
    rows = [row for row in range(count) if safe[row]]
    chosen = [*rows, *(count + row for row in rows)]
    roles = tuple(ROLES[row] for row in rows)
    return ChatFrames(
        roles,
        np.concatenate([parts[row] for row in chosen]),
        lengths[chosen],
        np.unique([number for row in chosen for number in found[row]]).astype(np.uint32),
        np.isin(np.array(roles), form.targets),
    )


def _markers(text: str, ids: np.ndarray, special: Mapping[str, int]) -> list[int]:
    """Return the ids of the special tokens that occur both as strings in a text and in its ids (the token that stands
    for unknown characters occurs only in the ids).
    """
    present = set(ids.tolist())
    return [number for token, number in special.items() if token and token in text and number in present]


def _refusal(form: ChatFormat, role: str, special: Mapping[str, int]) -> str:
    head, tail = (side.replace("{role}", role) for side in (form.head, form.tail))
    has = f"its special tokens are {', '.join(special)}" if special else "it has no special tokens"
    return (
        f"tokenize.chat_format: a message's content could imitate the head {head!r} or the tail {tail!r}, because one "
        f"of them contains no special token; {has}; add the markers to the tokenizer as special tokens, or set "
        "tokenize.chat_format to a string that uses its special tokens"
    )
