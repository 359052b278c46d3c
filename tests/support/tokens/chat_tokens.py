"""The frames of chat formats with small tokenizers that have markers or lack them."""

from __future__ import annotations

import tokenizers

from datakit.tokenize.chat_format import ChatFrames, chat_format, chat_frames
from datakit.tokenize.make_contract import special_ids
from tests.support.caches import load_tokenizer, trained

CHATML = ("<|im_start|>", "<|im_end|>")


def frames_of(form: str, *special: str, plain: tuple[str, ...] = ()) -> ChatFrames:
    """The frames of a format with the trained tokenizer and these further tokens."""
    made = tokenizers.Tokenizer.from_str(trained().decode())
    made.add_special_tokens(list(special))
    made.add_tokens(list(plain))
    tokenizer = load_tokenizer(made.to_str().encode())
    return chat_frames(chat_format(form), tokenizer.encoder("auto", "keep"), special_ids(tokenizer))
