"""Defines OLMoE, Mixtral and Qwen3-MoE as one family of models: settings and limits, weights, forward pass and FLOPs.

    x = embed[tokens]
    x = x + attention(norm(x))
    x = x + routed(norm(x))
    logits = norm(x) @ head

The three models are built from the same parts as the model in `grug.py`. Apart from sizes and constants, they differ
from one another in two settings. Queries and keys are normalized over the whole projection (OLMoE), per head (Qwen3) or
not at all (Mixtral). A token's expert weights are renormalized to sum to one (Mixtral, Qwen3) or left as they are
(OLMoE). The router uses a softmax. A single loss, computed over all layers, balances the load. Tests compare logits,
losses and all gradients with those of the published implementations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models.experts import Backend, experts
from datakit.trainer.models.grug import remat
from datakit.trainer.models.layers import attention, cross_entropy, embed, next_tokens, rms_norm, rotary_table, rotate
from datakit.trainer.models.protocol import OPERATION, PADDING_SEGMENT, Output, Tokens, check_sizes
from datakit.trainer.models.router import (
    RouterStatistics,
    balance_loss,
    on_own_tokens,
    router_logits,
    router_metrics,
    softmax_route,
    statistics,
)
from datakit.trainer.models.shapes import Array, Bool, Float, Int
from datakit.trainer.models.weights import BATCH, Tree, Weight, constrain, gathered, parameter_count


@dataclass(frozen=True)
class Config:
    """The settings of a model of this family. The defaults are those of OLMoE-1B-7B."""

    vocabulary: int = 50_304
    hidden: int = 2048
    layers: int = 16
    heads: int = 16
    kv_heads: int = 16
    head_width: int = 128
    experts: int = 64
    experts_per_token: int = 8
    expert_width: int = 1024
    query_key_norm: Literal["none", "whole", "head"] = "whole"
    renormalize: bool = False
    window: int | None = None  # number of positions that a position attends to, itself included; None: no limit
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    init_std: float = 0.02
    z_loss: float = 0.0
    router_z_loss: float = 0.0
    balance_loss: float = 0.01
    moe_backend: Backend = field(default="auto", metadata=OPERATION)
    remat: Literal["recompute_all", "save_moe", "none"] = field(default="recompute_all", metadata=OPERATION)
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    # Number of positions whose logits are in memory at once; None: as many as fit in `layers.LOGIT_BYTES`
    loss_piece: int | None = field(default=None, metadata=OPERATION)

    def __post_init__(self) -> None:
        check_sizes(self, ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_width", "expert_width"))
        if not 1 <= self.experts_per_token <= self.experts:
            raise UsageError(
                f"experts_per_token ({self.experts_per_token}) must be between 1 and experts ({self.experts})"
            )
        if self.window is not None and self.window < 1:
            raise UsageError(
                f"model.window is {self.window}; use at least 1, or remove this setting to attend to all previous "
                "positions"
            )


def weights(config: Config) -> Tree:
    """Return the table of all weights; `Weight` explains its columns."""
    c, std = config, config.init_std
    layers, hidden, width, kv_width = c.layers, c.hidden, c.heads * c.head_width, c.kv_heads * c.head_width
    each, across, along = (layers, c.experts), P(None, "data", None), P(None, None, "data")
    blocks = {
        "attention_norm": Weight((layers, hidden), P(), None),
        "query": Weight((layers, hidden, width), across, std, "adamh", 1),
        "key": Weight((layers, hidden, kv_width), across, std, "adamh", 1),
        "value": Weight((layers, hidden, kv_width), across, std, "adamh", 1),
        "attention_out": Weight((layers, width, hidden), along, std, "adamh", 1),
        "mlp_norm": Weight((layers, hidden), P(), None),
        "router": Weight((layers, hidden, c.experts), across, std, "router"),
        "expert_in": Weight((*each, hidden, 2 * c.expert_width), P(None, *across), std, "adamh_expert", 2),
        "expert_out": Weight((*each, c.expert_width, hidden), P(None, *along), std, "adamh_expert", 2),
    }
    if c.query_key_norm != "none":
        whole = c.query_key_norm == "whole"
        blocks["query_norm"] = Weight((layers, width if whole else c.head_width), P(), None)
        blocks["key_norm"] = Weight((layers, kv_width if whole else c.head_width), P(), None)
    return {
        "embed": Weight((c.vocabulary, hidden), P(None, "data"), std, "adam"),
        "blocks": blocks,
        "final_norm": Weight((hidden,), P(), None),
        "head": Weight((hidden, c.vocabulary), P("data", None), std, "adamh"),
    }


def initial_state(config: Config) -> Tree:
    """Return an empty state: a loss balances the load, so there are no router biases."""
    return {}


def apply(params: Tree, state: Tree, batch: Tokens, config: Config) -> Output:
    """Run one forward pass over a batch, and return the loss at each position."""
    hidden, (stats, _) = encode(params, batch, config)
    labels, counted = next_tokens(batch.tokens, batch.segments, batch.loss_mask)
    losses, normalizer = cross_entropy(hidden, gathered(params["head"], hidden.dtype), labels, config.loss_piece)
    z_loss = jnp.sum(counted * normalizer**2) / jnp.maximum(jnp.sum(counted), 1)
    pooled = balance_loss(jnp.mean(stats.load, 0), jnp.mean(stats.probability, 0), config.experts_per_token)
    auxiliary = config.z_loss * z_loss + config.balance_loss * pooled + config.router_z_loss * jnp.mean(stats.z_loss)
    metrics = {"z_loss": z_loss, "router/pooled_balance_loss": pooled}
    return Output(losses, counted, auxiliary, state, metrics | router_metrics(stats, config.experts_per_token))


def encode(params: Tree, batch: Tokens, config: Config) -> tuple[Float[Array, "B S D"], tuple[RouterStatistics, Any]]:
    """Return the final hidden states, and each layer's router statistics and logits."""
    dtype = jnp.dtype(config.compute)
    x = constrain(embed(params["embed"], batch.tokens, dtype), P(BATCH))
    rotary = rotary_table(batch.tokens.shape[1], config.head_width, config.rope_theta)
    valid = batch.segments != PADDING_SEGMENT

    def layer(x: Any, block: Tree) -> tuple[Any, Any]:
        normed = rms_norm(x, block["attention_norm"], config.norm_epsilon)
        x = x + attend(normed, block, batch.segments, rotary, config)
        normed = rms_norm(x, block["mlp_norm"], config.norm_epsilon)
        added, router = feed_forward(normed, block, valid, config)
        return constrain(x + added, P(BATCH)), router

    x, routers = jax.lax.scan(remat(layer, config.remat), x, params["blocks"])
    return rms_norm(x, params["final_norm"], config.norm_epsilon), routers


def attend(
    x_BSD: Float[Array, "B S D"],
    block: Tree,
    segments: Int[Array, "B S"],
    rotary: tuple[Float[Array, "S h"], Float[Array, "S h"]],
    config: Config,
) -> Float[Array, "B S D"]:
    """Compute one layer's attention."""
    c, dtype, rows = config, x_BSD.dtype, x_BSD.shape[:2]
    query_BSNH = _heads(x_BSD @ gathered(block["query"], dtype), block.get("query_norm"), c)
    key_BSMH = _heads(x_BSD @ gathered(block["key"], dtype), block.get("key_norm"), c)
    value_BSMH = (x_BSD @ gathered(block["value"], dtype)).reshape(*rows, c.kv_heads, c.head_width)
    window = x_BSD.shape[1] if c.window is None else c.window
    y_BSNH = attention(rotate(query_BSNH, rotary), rotate(key_BSMH, rotary), value_BSMH, segments, window, window)
    return y_BSNH.reshape(*rows, -1) @ gathered(block["attention_out"], dtype)


def _heads(x: Float[Array, "B S P"], scale: Float[Array, " W"] | None, config: Config) -> Float[Array, "B S N H"]:
    """Split a projection into heads, and normalize it before the split, after the split or not at all."""
    split = (*x.shape[:2], -1, config.head_width)
    if scale is None:
        return x.reshape(split)
    if config.query_key_norm == "whole":
        return rms_norm(x, scale, config.norm_epsilon).reshape(split)
    return rms_norm(x.reshape(split), scale, config.norm_epsilon)


def feed_forward(
    x_BSD: Float[Array, "B S D"], block: Tree, valid: Bool[Array, "B S"], config: Config
) -> tuple[Float[Array, "B S D"], tuple[RouterStatistics, Float[Array, "T E"]]]:
    """Return the output of one layer's experts, and the router's statistics and logits."""
    c, dtype = config, x_BSD.dtype
    x_TD = x_BSD.reshape(-1, c.hidden)

    def route(tokens: Any, router_DE: Any, axes: Any) -> Any:
        x_TD, valid_T = tokens
        logits_TE = router_logits(x_TD, router_DE)
        routing = softmax_route(logits_TE, c.experts_per_token, c.renormalize)
        return (routing, logits_TE), statistics(logits_TE, routing.expert, valid_T, axes)

    router_DE = gathered(block["router"], jnp.float32)
    (routing, logits_TE), stats = on_own_tokens(route, (x_TD, valid.reshape(-1)), router_DE)
    expert_in, expert_out = gathered(block["expert_in"], dtype), gathered(block["expert_out"], dtype)
    y_TD = experts(x_TD, routing.expert, routing.share, expert_in, expert_out, "swiglu", c.moe_backend)
    return y_TD.reshape(x_BSD.shape), (stats, logits_TE)


def flops_per_token(config: Config, sequence: int, with_head: bool = True) -> float:
    """Return the forward-pass FLOPs per token, counted as in `grug.flops_per_token`."""
    c = config
    width, kv_width = c.heads * c.head_width, c.kv_heads * c.head_width
    routed = 6 * c.hidden * c.expert_width * c.experts_per_token + 2 * c.hidden * c.experts
    projections = 2 * c.hidden * (width + 2 * kv_width) + 2 * width * c.hidden
    layer = routed + projections + sequence * (4 * width + 3 * c.heads)
    return float(c.layers * layer + (2 * c.hidden * c.vocabulary if with_head else 0))


def active_parameters(config: Config) -> int:
    """Return the number of parameters that one token uses: all except those of the experts not chosen for it."""
    return parameter_count(weights(config), config.experts_per_token)
