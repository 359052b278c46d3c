"""Small configurations of all models, and batches for them, that the model tests share."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from datakit.trainer.models import dense as dense_model
from datakit.trainer.models import grug, latent_moe, olmoe
from datakit.trainer.models.protocol import Tokens

SMALL = grug.Config(
    vocabulary=97,
    hidden=32,
    layers=4,
    heads=4,
    kv_heads=2,
    head_width=8,
    experts=8,
    experts_per_token=2,
    expert_width=24,
    shared_width=32,
    gate_rank=8,
    window=64,
    compute="float32",
    remat="none",
    moe_backend="dense",  # compiles fastest
    init_scale=2.0,  # larger than in training, so that every part of the model matters
)

FAMILY = olmoe.Config(
    vocabulary=97,
    hidden=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_width=8,
    experts=8,
    experts_per_token=2,
    expert_width=24,
    query_key_norm="head",
    compute="float32",
    remat="none",
    moe_backend="dense",
    init_std=0.3,
)

MIXED = dataclasses.replace(
    FAMILY, layers=4, shared_width=24, dense_layers=(0, 2), dense_width=20, attention_bias="qkv", tied_embeddings=True
)

DENSE = dense_model.Config(
    vocabulary=97,
    hidden=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_width=8,
    width=40,
    attention_bias="all",
    compute="float32",
    remat="none",
    init_std=0.3,
)

LATENT = latent_moe.Config(
    vocabulary=97,
    hidden=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_width=8,
    latent=8,
    experts=8,
    experts_per_token=2,
    expert_width=24,
    shared_width=24,
    compute="float32",
    remat="none",
    moe_backend="dense",
    init_std=0.3,
)

MODELS: dict[str, tuple[Any, Any]] = {  # name of a test -> (model file, configuration)
    "grug": (grug, SMALL),
    "olmoe": (olmoe, FAMILY),
    "mixed": (olmoe, MIXED),
    "dense": (dense_model, DENSE),
    "latent": (latent_moe, LATENT),
}


def encoded(module: Any, params: Any, batch: Tokens, config: Any) -> Any:
    """The final hidden states of any of these models."""
    if module is dense_model:
        return module.encode(params, batch, config)
    if module is olmoe:
        return module.encode(params, batch, config)[0]
    return module.encode(params, module.initial_state(config), batch, config)[0]


def dense(config: grug.Config, **changes: Any) -> grug.Config:
    """The configuration without routed experts, and without the settings that describe them."""
    defaults = {name: getattr(grug.Config(), name) for name in grug.ROUTED}
    return dataclasses.replace(config, experts=0, **(defaults | changes))


def random_batch(config: Any, rows: int = 4, length: int = 40, segments: int = 1) -> Tokens:
    """Random tokens; each row is cut into `segments` documents of uneven length."""
    generator = np.random.default_rng(7)
    tokens = generator.integers(0, config.vocabulary, (rows, length), dtype=np.int32)
    borders = np.sort(generator.integers(1, length, (rows, segments - 1)), axis=1)
    at = (np.arange(length)[None, :, None] >= borders[:, None, :]).sum(-1).astype(np.int32) + 1
    return Tokens(jnp.asarray(tokens), jnp.asarray(at), jnp.ones(tokens.shape, bool))
