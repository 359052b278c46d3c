"""Defines the settings of the tokenize stage and their defaults, and refuses unknown values."""

from __future__ import annotations

from dataclasses import dataclass, field

from datakit.engine.quarantine import check_limit
from datakit.errors import RecipeError, suggestion
from datakit.tokenize.chat_format import chat_format
from datakit.tokenize.encoders.custom import is_custom
from datakit.tokenize.encoders.tokenizer import ENCODERS, SPECIAL_STRINGS

TEXT, CHAT, TOKENS = FORMATS = ("text", "chat", "tokens")  # the kinds of documents that a source may hold


@dataclass(frozen=True)
class Config:
    """The settings that decide how documents become tokens.

    tokenizer: the path or URL of a tokenizer.json; or "train", for a byte-level BPE trained on this dataset; or
    "bytes"; or "package.module:function", for a custom tokenizer (see tokenize/encoders/custom.py).
    tokenizer_version: the version of a custom tokenizer. encoder: "auto" (fastokens if it can load the tokenizer, else
    tokenizers), "fastokens" or "tokenizers". add: which tokens to add around each document: "eos", "bos", "both" or
    "none". bos, eos: the names of these tokens; by default, the only one of the usual names that the vocabulary
    contains. special_strings: whether a special token's string inside a text becomes that token ("keep") or is encoded
    as ordinary text ("text"). formats: for each source, the kind of its documents: "text" (default), "chat" (a column
    of messages, rendered according to chat_format) or "tokens" (a column of lists of ids). messages, tokens, loss_mask:
    the names of these columns and of the optional column with loss masks for lists of ids. max_quarantined: the maximum
    number of documents (or, as a float such as 0.001, their maximum share) that may be left out because they crash the
    encoder. quarantine: documents, as "partition:row", that do not count toward this limit.
    """

    tokenizer: str
    encoder: str = "auto"
    add: str = "eos"
    bos: str | None = None
    eos: str | None = None
    special_strings: str = "keep"
    tokenizer_version: str | int | None = None
    formats: dict[str, str] = field(default_factory=dict)
    chat_format: str = "simple"
    messages: str = "messages"
    tokens: str = "tokens"
    loss_mask: str | None = None
    max_quarantined: int | float = 0
    quarantine: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, value, known in (
            ("encoder", self.encoder, ENCODERS),
            ("special_strings", self.special_strings, SPECIAL_STRINGS),
            *((f"formats.{source}", kind, FORMATS) for source, kind in self.formats.items()),
        ):
            if value not in known and not (key == "encoder" and is_custom(self.tokenizer)):
                raise RecipeError(f"tokenize.{key} {value!r} is not known; {suggestion(value, known)}")
        chat_format(self.chat_format)
        if self.tokenizer_version is not None and not is_custom(self.tokenizer):
            raise RecipeError(
                "tokenize.tokenizer_version is only for custom tokenizers; a tokenizer file is identified by its hash"
            )
        check_limit(self.max_quarantined)
