"""The tokenize stage's parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from datakit.engine.quarantine import check_limit
from datakit.errors import RecipeError, suggestion
from datakit.tokenize.chat import chat_format
from datakit.tokenize.encoders.custom import is_custom
from datakit.tokenize.encoders.tokenizer import ENCODERS, SPECIAL_STRINGS

TEXT, CHAT, TOKENS = FORMATS = ("text", "chat", "tokens")  # kinds of documents in a source


@dataclass(frozen=True)
class Config:
    """Settings that decide how documents become tokens.

    tokenizer: path or URL of a tokenizer.json; "train" for a byte-level BPE trained on this dataset; "bytes"; or
    "package.module:function" for a custom tokenizer, with its tokenizer_version (tokenize/encoders/custom.py).
    encoder: "auto" (fastokens if it can load the tokenizer, else tokenizers), "fastokens" or "tokenizers".
    add: tokens to add around each document: "eos", "bos", "both" or "none". bos, eos: the names of these tokens; by
    default the one common name found in the vocabulary. special_strings: a special token's string inside a text becomes
    that token ("keep") or ordinary text ("text"). formats: the kind of documents by source: "text" (default), "chat"
    (column `messages`, rendered by chat_format) or "tokens" (column `tokens`, lists of ids, with an optional column
    loss_mask). max_quarantined: maximum number, or share if below 1 (0.001), of documents that may be left out because
    they crash the encoder. quarantine: documents to leave out in any case, as "partition:row".
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
