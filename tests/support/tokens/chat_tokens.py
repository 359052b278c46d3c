"""The frames of chat formats with small tokenizers that have markers or lack them, and the targets in a cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tokenizers

from datakit.cache.reader import Cache
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


def targets(cache: Cache, reference: tokenizers.Tokenizer) -> dict[str, list[str]]:
    """The text of each document, and the texts of its targets."""
    found, start = {}, 0
    for document in cache.documents():
        ids, stop = document.tokens.tolist(), start + len(document.tokens)
        mask = cache.read_loss_mask(start, stop)
        runs = np.split(np.arange(len(ids)), np.flatnonzero(np.diff(mask)) + 1)
        decode: Callable[[list[int]], str] = lambda part: reference.decode(part, skip_special_tokens=False)  # noqa: E731
        found[decode(ids)] = [decode([ids[place] for place in run]) for run in runs if mask[run[0]]]
        start = stop
    return found
