"""Generates text from any model that has the function `logits`: one token after another, until the end-of-text token.

    for token in generate(model, config, params, state, prompt, Sampling(tokens=100, seed=1), contract):
        ...

The prompt and the tokens to come are one padded row, and each token is a forward pass over that row. So the compiled
function is the same for all tokens, and a model file needs no code for a cache of keys and values. The price is that a
token costs as much as the whole row: for a few hundred tokens from a small model this is quick, and a large model is
better served by an inference engine, after `datakit export hf`. Everything runs on one device.

A token is a function of the weights, the tokens before it, the settings and the seed; each position has its own random
key. So the same call gives the same text. Ids that the tokenizer lacks (a model's vocabulary is rounded up) are never
generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datakit.cache.contract import Contract
from datakit.errors import UsageError
from datakit.trainer.models.experts.capacity import with_capacity
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import Tree

BUCKET = 64  # a row's length is rounded up to a multiple of this, so that prompts of similar length share a program


@dataclass(frozen=True)
class Sampling:
    """Settings for drawing tokens. At temperature 0, each token is the likeliest one."""

    tokens: int = 200  # the maximum number of tokens to generate
    temperature: float = 1.0
    top_k: int | None = None  # draw only from this number of likeliest tokens
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(f"--tokens is {self.tokens}; use at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"--temperature is {self.temperature}; use 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k is {self.top_k}; use at least 1, or leave it out")
        if not self.temperature and self.top_k is not None:
            raise UsageError("--top-k has no effect at temperature 0, where each token is the likeliest one; remove it")


def framed_prompt(ids: Sequence[int], contract: Contract) -> list[int]:
    """Return a prompt's tokens, after the begin-of-text token that the model's documents began with, if any. Raises
    UsageError for an empty prompt of a model whose documents began with their text.
    """
    framed = [*([contract.bos.id] if contract.bos else []), *ids]
    if not framed:
        raise UsageError("the prompt is empty, and this model has no begin-of-text token to start from; give a prompt")
    return framed


def generate(
    model: Any, config: Any, params: Tree, state: Tree, prompt: Sequence[int], sampling: Sampling, contract: Contract
) -> Iterator[int]:
    """Yield the generated tokens; the end-of-text token ends them and is not yielded. Raises UsageError if the model
    has no function `logits`.
    """
    if not hasattr(model, "logits"):
        raise UsageError(
            f"{model.__file__} does not define `logits`, which generation needs; copy it from models/grug.py"
        )
    length = -(-(len(prompt) + sampling.tokens) // BUCKET) * BUCKET
    row = np.zeros((1, length), np.int32)
    row[0, : len(prompt)] = prompt
    greedy, limit = not sampling.temperature, min(contract.vocabulary_size, config.vocabulary)
    choose = partial(_choose, greedy=greedy, top_k=sampling.top_k, limit=limit)
    step = jax.jit(partial(_step, model.logits, with_capacity(config, None), choose), donate_argnums=2)
    key, tokens = jax.random.key(sampling.seed), jnp.asarray(row)
    temperature, stop = jnp.float32(sampling.temperature or 1.0), contract.eos.id if contract.eos else None
    for position in range(len(prompt), len(prompt) + sampling.tokens):
        tokens, found = step(params, state, tokens, jnp.int32(position), key, temperature)
        token = int(found)
        if token == stop:
            return
        yield token


def _step(
    logits: Callable[..., Any],
    config: Any,
    choose: Callable[..., Any],
    params: Tree,
    state: Tree,
    tokens: Int[Array, "1 S"],
    position: Int[Array, ""],
    key: Array,
    temperature: Float[Array, ""],
) -> tuple[Int[Array, "1 S"], Int[Array, ""]]:
    """Put the token at `position` into the row; return the row and this token."""
    used = jnp.arange(tokens.shape[1])[None] < position
    batch = Tokens(tokens, used.astype(jnp.int32), used)  # one document, and then padding
    scores = logits(params, state, batch, config, (position - 1)[None, None])[0, 0]
    token = choose(scores, jax.random.fold_in(key, position), temperature)
    return tokens.at[0, position].set(token), token


def _choose(
    scores: Float[Array, " V"],
    key: Array,
    temperature: Float[Array, ""],
    *,
    greedy: bool,
    top_k: int | None,
    limit: int,
) -> Int[Array, ""]:
    """Return the chosen token, one of the first `limit` ids."""
    scores = scores[:limit]
    if greedy:
        return jnp.argmax(scores).astype(jnp.int32)
    if top_k is None or top_k >= limit:
        return jax.random.categorical(key, scores / temperature).astype(jnp.int32)
    best, ids = jax.lax.top_k(scores, top_k)
    return ids[jax.random.categorical(key, best / temperature)].astype(jnp.int32)


class TextStream:
    """Turns tokens into text as they come. A token may end within a character, whose text then waits for the rest."""

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int]) -> None:
        self._decode, self._tokens = decode, list(prompt)
        self._shown = len(decode(self._tokens))

    def add(self, token: int) -> str:
        """Return the text that a token completes; it may be empty."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        return "" if text.endswith("\N{REPLACEMENT CHARACTER}") else self._new(text)

    def rest(self) -> str:
        """Return the text of the last tokens, if they do not complete a character."""
        return self._new(self._decode(self._tokens))

    def _new(self, text: str) -> str:
        new, self._shown = text[self._shown :], len(text)
        return new
