"""Generates text from any model that has the function `logits`: one token after another, until the end-of-text token.

    for token in generate(model, config, params, state, prompt, Sampling(tokens=100, seed=1), contract):
        ...

If the model has the functions `no_past` and `extend`, as all built-in models have, the prompt is one forward pass, and
each token is one over its own position: keys and values of earlier positions are kept. Otherwise, the prompt and the
tokens to come are one padded row, and each token costs as much as the whole row. Both ways compute the same values, in
another order of summation. In both, one compiled function serves all tokens (the prompt may need another). Everything
runs on one device; a large model is better served by an inference engine, after `datakit export hf`.

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
    greedy, limit = not sampling.temperature, min(contract.vocabulary_size, config.vocabulary)
    choose = partial(_choose, greedy=greedy, top_k=sampling.top_k, limit=limit)
    key, temperature = jax.random.key(sampling.seed), jnp.float32(sampling.temperature or 1.0)
    drawn = partial(_drawn, choose=choose, key=key, temperature=temperature)
    way = _with_past if hasattr(model, "extend") and hasattr(model, "no_past") else _without_past
    stop = contract.eos.id if contract.eos else None
    for token in way(model, with_capacity(config, None), params, state, prompt, sampling.tokens, drawn):
        if token == stop:
            return
        yield token


def _rows(tokens: Sequence[int], length: int) -> np.ndarray:
    """Return a row of this many tokens at least, whose length is a multiple of BUCKET."""
    row = np.zeros((1, -(-length // BUCKET) * BUCKET), np.int32)
    row[0, : len(tokens)] = tokens
    return row


def _batch(tokens: Int[Array, "1 S"], used: Int[Array, ""] | int) -> Tokens:
    """Return a batch of one document and then padding."""
    known = jnp.arange(tokens.shape[1])[None] < used
    return Tokens(tokens, known.astype(jnp.int32), known)


def _drawn(
    scores: Float[Array, " V"], position: Int[Array, ""], choose: Callable[..., Any], key: Array, temperature: Any
) -> Int[Array, ""]:
    return choose(scores, jax.random.fold_in(key, position), temperature)


def _without_past(
    model: Any, config: Any, params: Tree, state: Tree, prompt: Sequence[int], count: int, drawn: Callable[..., Any]
) -> Iterator[int]:
    """Yield tokens, each of which costs a pass over the whole row."""

    @partial(jax.jit, donate_argnums=2)
    def step(params: Tree, state: Tree, tokens: Any, position: Any) -> tuple[Any, Any]:
        scores = model.logits(params, state, _batch(tokens, position), config, (position - 1)[None, None])[0, 0]
        token = drawn(scores, position)
        return tokens.at[0, position].set(token), token

    tokens = jnp.asarray(_rows(prompt, len(prompt) + count))
    for position in range(len(prompt), len(prompt) + count):
        tokens, token = step(params, state, tokens, jnp.int32(position))
        yield int(token)


def _with_past(
    model: Any, config: Any, params: Tree, state: Tree, prompt: Sequence[int], count: int, drawn: Callable[..., Any]
) -> Iterator[int]:
    """Yield tokens, each of which costs a pass over its own position."""

    @partial(jax.jit, donate_argnums=4)
    def step(params: Tree, state: Tree, tokens: Any, used: Any, past: Any, position: Any) -> tuple[Any, Any]:
        batch, last = _batch(tokens, used), (used - 1)[None, None]
        scores, past = model.extend(params, state, batch, config, last, past)
        return drawn(scores[0, 0], position), past

    past = jax.jit(partial(model.no_past, config, _rows((), len(prompt) + count).shape[1]))()
    tokens, used = jnp.asarray(_rows(prompt, len(prompt))), len(prompt)
    for position in range(len(prompt), len(prompt) + count):
        token, past = step(params, state, tokens, jnp.int32(used), past, jnp.int32(position))
        yield int(token)
        tokens, used = token[None, None], 1


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
