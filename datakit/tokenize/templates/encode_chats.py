"""Encodes conversations that a chat template renders, and turns the spans of the targets into a loss mask.

The whole text of a conversation is encoded at once, as `apply_chat_template` of `transformers` does, so the ids equal
its ids. A token is a target if it shares a character with a span. For byte-level tokenizers, the positions of
tokens in the text follow from the sizes of the vocabulary's entries, which takes almost no time. For other tokenizers,
and if a normalizer changes the text, the reference library encodes the text again and returns the positions, which
takes about thirty times as long as encoding.

The special tokens among the ids must be those whose strings the template wrote. Otherwise, the conversation is left
out: a normalizer, for example, may turn other characters of a message into the string of a special token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import tokenizers

from datakit.cache.contract import ChatTemplate
from datakit.cache.lengths import starts_of
from datakit.errors import TokenizerError
from datakit.tokenize.encoders.long_texts import LongTexts
from datakit.tokenize.encoders.tokenizer import Tokenizer
from datakit.tokenize.templates.chats import Chat, chats, serializable
from datakit.tokenize.templates.renderer import Lost, Rendered, Renderer
from datakit.tokenize.templates.special_tokens import SpecialTokens
from datakit.tokenize.templates.token_places import bytes_before, mask_of, sizes_of, unchanged

NO_TEXT_PIECES = (
    "it holds the string of a special token, which this tokenizer cannot encode as ordinary text inside a conversation"
)
MADE_BY_TOKENIZER = (
    "the tokenizer encodes a part of it that is not the string of a special token as a special token, so a message "
    "could imitate one"
)


@dataclass(frozen=True)
class EncodedChats:
    """The conversations of a batch that were rendered, in order. rows: their rows in the batch, int64 [N]. texts: as
    they were encoded. ids: uint32 [T]. lengths: int64 [N]. mask: uint8 [T]. lost: the reason for each row that is left
    out. ordinary: bool [N], False for conversations in which special tokens' strings are ordinary text.
    """

    rows: np.ndarray
    texts: list[str]
    ids: np.ndarray
    lengths: np.ndarray
    mask: np.ndarray
    lost: dict[int, str]
    ordinary: np.ndarray


@dataclass
class TemplateEncoder:
    """Encodes conversations in one task. texts: encodes special tokens' strings as these tokens. contents: encodes them
    as ordinary text. sizes: the size of each token in bytes [V], or None if the tokenizer is not byte-level.
    """

    renderer: Renderer
    texts: LongTexts
    contents: LongTexts
    reference: tokenizers.Tokenizer
    special: SpecialTokens
    sizes: np.ndarray | None = field(repr=False)

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer, texts: LongTexts, contents: LongTexts) -> TemplateEncoder:
        """Return the encoder of a task; its process starts with the first conversation."""
        special = SpecialTokens.of(tokenizer)
        renderer = Renderer(template, special=tokenizer.special_tokens)
        return cls(renderer, texts, contents, tokenizer.reference, special, sizes_of(tokenizer))

    def encode(self, messages: pa.Array, tools: pa.Array | None, place: str) -> EncodedChats:
        """Encode the conversations of a column. Raises ColumnError and TokenizerError."""
        found: list[tuple[int, Rendered]] = []
        lost: dict[int, str] = {}
        for row, chat in enumerate(chats(messages, tools, self.special.strings, place)):
            result = self._rendered(chat)
            if isinstance(result, Lost):
                lost[row] = result.reason
            else:
                found.append((row, result))
        encoded = iter(_split(*self.texts.encode_batch([one.text for _, one in found if not one.quoted])))
        parts: list[tuple[int, str, np.ndarray, np.ndarray, bool]] = []
        for row, one in found:
            ids = self._in_pieces(one) if one.quoted else next(encoded)
            places = self._places(one.text, ids, bool(one.quoted))
            if places is None:
                lost[row] = NO_TEXT_PIECES
            elif not self.special.all_in(ids, one.text, one.quoted):
                lost[row] = MADE_BY_TOKENIZER
            else:
                parts.append((row, one.text, ids, mask_of(one.text, one.spans, places), bool(one.quoted)))
        return _joined(parts, lost)

    def _rendered(self, chat: Chat) -> Rendered | Lost:
        if chat.mistake:
            return Lost(chat.mistake)
        if not serializable(chat):
            return Lost("it has values that are neither text, numbers, booleans, lists nor objects")
        result = self.renderer.render(chat.messages, chat.tools)
        in_pieces = chat.marked or (isinstance(result, Rendered) and bool(result.quoted))
        return Lost(NO_TEXT_PIECES) if in_pieces and self.sizes is None else result

    def _in_pieces(self, rendered: Rendered) -> np.ndarray:
        """Return the ids of a text in which some spans are ordinary text."""
        text, start, ids = rendered.text, 0, [np.empty(0, np.uint32)]
        for first, last in [*rendered.quoted, (len(text), len(text))]:
            for encoder, piece in ((self.texts, text[start:first]), (self.contents, text[first:last])):
                ids += [encoder.encode_batch([piece])[0]] if piece else []
            start = last
        return np.concatenate(ids)

    def _places(self, text: str, ids: np.ndarray, marked: bool) -> np.ndarray | None:
        """Return the first byte of each token and the byte after its last, int64 [T, 2]; None if the text was encoded
        in pieces, so that the positions cannot be computed.
        """
        if self.sizes is not None and unchanged(self.reference.normalizer, text):
            starts = starts_of(self.sizes[ids])
            if starts[-1] == len(text.encode()):
                return np.stack([starts[:-1], starts[1:]], axis=1)
        return None if marked else self._by_reference(text, ids)

    def _by_reference(self, text: str, ids: np.ndarray) -> np.ndarray:
        self.reference.encode_special_tokens = False
        processor, self.reference.post_processor = self.reference.post_processor, None  # some move tokens' places
        try:
            encoding = self.reference.encode(text, add_special_tokens=False)
        finally:
            self.reference.post_processor = processor
        if encoding.ids != ids.tolist():
            raise TokenizerError(
                f"{self.texts.encoder.name} and `tokenizers` give a conversation different ids; set tokenize.encoder "
                "to 'tokenizers', which is slower but exact"
            )
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return bytes_before(text)[offsets]

    def close(self) -> None:
        """End the process that renders."""
        self.renderer.close()


def _split(ids: np.ndarray, lengths: np.ndarray) -> Sequence[np.ndarray]:
    return np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _joined(parts: list[tuple[int, str, np.ndarray, np.ndarray, bool]], lost: dict[int, str]) -> EncodedChats:
    rows = np.array([part[0] for part in parts], np.int64)
    ids = np.concatenate([np.empty(0, np.uint32), *(part[2] for part in parts)]).astype(np.uint32)
    mask = np.concatenate([np.empty(0, np.uint8), *(part[3] for part in parts)])
    lengths = np.array([len(part[2]) for part in parts], np.int64)
    ordinary = np.array([not part[4] for part in parts], bool)
    return EncodedChats(rows, [part[1] for part in parts], ids, lengths, mask, lost, ordinary)
