"""Defines the settings of the tokenize stage and their defaults, and refuses unknown values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from datakit.engine.quarantine import MAX_QUARANTINED, check_limit
from datakit.errors import RecipeError, suggestion
from datakit.tokenize.chat_format import TEMPLATE, chat_format
from datakit.tokenize.encoders.custom import is_custom
from datakit.tokenize.encoders.tokenizer import ENCODERS, SPECIAL_STRINGS
from datakit.tokenize.make_contract import ADDED
from datakit.tokenize.templates.template_file import check_date
from datakit.toml_config import key

# Settings that were added after format version 6. Those that are not set are left out of fingerprints.
LATER = ("chat_template", "chat_date", "tools")
USUAL = "By default, the vocabulary's only token with a usual name."
TEXT, CHAT, TOKENS = FORMATS = ("text", "chat", "tokens")  # the kinds of documents that a source may hold


@dataclass(frozen=True)
class Config:
    """The settings that determine how documents become tokens."""

    tokenizer: Annotated[
        str,
        key('The path or URL of a tokenizer.json; the name of a model on the Hugging Face Hub, as in '
            '"openai-community/gpt2"; "train": a byte-level BPE trained on this dataset; "bytes": one token per byte; '
            'or "package.module:function": a custom tokenizer.', "gpt2.json"),
    ]  # fmt: skip
    encoder: Annotated[
        str,
        key(
            "`auto`: datakit's own encoder if it supports the tokenizer, else fastokens, else tokenizers.",
            "tokenizers",
            ENCODERS,
        ),
    ] = "auto"
    add: Annotated[str, key("The tokens to add around each document.", "both", ADDED)] = "eos"
    bos: Annotated[str | None, key("The beginning-of-text token. " + USUAL, "<s>")] = None
    eos: Annotated[str | None, key("The end-of-text token. " + USUAL, "</s>")] = None
    special_strings: Annotated[
        str,
        key("`keep`: a special token's string inside a text becomes that token; `text`: it is ordinary text.", "text",
            SPECIAL_STRINGS),
    ] = "keep"  # fmt: skip
    tokenizer_version: Annotated[str | int | None, key("The version of a custom tokenizer.", "2")] = None
    formats: Annotated[
        dict[str, str],
        key("The kind of each source's documents: `text`; `chat`: a column of messages; `tokens`: a column of lists of "
            "ids. Sources that are not named hold text.", {"chats": "chat"}),
    ] = field(default_factory=dict)  # fmt: skip
    chat_format: Annotated[
        str,
        key("How messages are rendered: `simple`, `chatml`, a string, or `template` for a Jinja template "
            "(docs/tokenization.md#chat-templates).", "chatml"),
    ] = "simple"  # fmt: skip
    chat_template: Annotated[
        str | None,
        key("With `chat_format = \"template\"`: the path or URL of the template. By default, the one beside the "
            "tokenizer.", "chat_template.jinja"),
    ] = None  # fmt: skip
    chat_date: Annotated[
        str | None, key("The date that the template's function `strftime_now` shows.", "2026-01-31")
    ] = None
    messages: Annotated[str, key("The column of messages.", "conversation")] = "messages"
    tools: Annotated[
        str | None,
        key("The column of tools for the template. By default, `tools`, if a source has this column.", "functions"),
    ] = None
    tokens: Annotated[str, key("The column of lists of ids.", "input_ids")] = "tokens"
    loss_mask: Annotated[str | None, key("The column of loss masks for lists of ids.", "loss_mask")] = None
    max_quarantined: Annotated[int | float, MAX_QUARANTINED] = 0
    quarantine: Annotated[
        tuple[str, ...],
        key(
            'Documents, as "data/source/partition:row", that may be left out in addition to `max_quarantined`.',
            ["data/novels/part-00003.parquet:17"],
        ),
    ] = ()

    def __post_init__(self) -> None:
        for name, value, known in (
            ("encoder", self.encoder, ENCODERS),
            ("special_strings", self.special_strings, SPECIAL_STRINGS),
            *((f"formats.{source}", kind, FORMATS) for source, kind in self.formats.items()),
        ):
            if value not in known and not (name == "encoder" and is_custom(self.tokenizer)):
                raise RecipeError(f"tokenize.{name} {value!r} is not known; {suggestion(value, known)}")
        if self.chat_format != TEMPLATE:
            chat_format(self.chat_format)
        for name in ("chat_template", "chat_date", "tools"):
            if getattr(self, name) is not None and not self.renders_templates:
                raise RecipeError(
                    f"tokenize.{name} has no effect unless chat_format is 'template' and a source's format is 'chat'; "
                    "remove it"
                )
        if self.chat_date is not None:
            check_date(self.chat_date)
        if self.tokenizer_version is not None and not is_custom(self.tokenizer):
            raise RecipeError(
                "tokenize.tokenizer_version is only for custom tokenizers; a tokenizer file is identified by its hash"
            )
        check_limit(self.max_quarantined)

    @property
    def renders_templates(self) -> bool:
        """True if conversations are rendered with a chat template."""
        return self.chat_format == TEMPLATE and CHAT in self.formats.values()

    @property
    def has_loss_masks(self) -> bool:
        """True if a source marks which tokens are targets."""
        return any(kind == CHAT or (kind == TOKENS and self.loss_mask) for kind in self.formats.values())


def without_later(plain: dict[str, Any]) -> dict[str, Any]:
    """Return settings, given as plain data, without those in LATER that are not set, so that recipes that do not use
    them keep their caches.
    """
    return {name: value for name, value in plain.items() if name not in LATER or value is not None}
