"""Defines Grug, this trainer's own mixture-of-experts model: its settings and limits, weights, forward pass and FLOPs.

To change it, copy this file. A layer consists of attention, followed by experts. Both read a gated RMS norm of the
residual stream:

    x = gated(norm(embed[tokens]))
    x = x + attention(gated(norm(x)))
    h = gated(norm(x));  x = x + routed(h) + shared(h)
    logits = gated(norm(x)) @ head

Attention uses grouped queries, a parameter-free RMS norm on queries and keys, and rotary positions. Queries are scaled
by `query_scale` (1.3), since the norm removes their scale. Every fourth layer attends to the full window and the other
layers to half of it. The component of each head's output along the position's own value is removed (XSA), and a gate
per head, which starts at one, scales the result.

A sigmoid router chooses K of the E experts per token. The router's biases are set from quantiles to balance the load
(see `router.py`). One more expert is shared by all tokens. Experts are SwiGLU networks by default. `experts = 0` makes
a dense model with only the shared expert. The model has no biases except the router's, no tied weights, no dropout and
no balancing loss.

Parameters are stored in fp32; by default, computation uses bf16. The layers' weights are stacked, and the layers run in
one `scan`, so a model with 50 layers compiles as fast as one with 5. `shapes.py` explains the letters that denote axes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models.experts import SAVED_NAME, Backend, experts
from datakit.trainer.models.layers import (
    GATES,
    attention,
    cross_entropy,
    embed,
    exclude_self,
    gated_norm,
    next_tokens,
    rms_norm,
    rotary_table,
    rotate,
)
from datakit.trainer.models.protocol import OPERATION, PADDING_SEGMENT, Output, Tokens, check_sizes
from datakit.trainer.models.router import (
    balanced_bias,
    on_own_tokens,
    quantile_thresholds,
    router_logits,
    router_metrics,
    sigmoid_route,
    statistics,
)
from datakit.trainer.models.shapes import Array, Bool, Float, Int
from datakit.trainer.models.weights import BATCH, Tree, Weight, constrain, gathered, parameter_count

ROUTED = ("experts_per_token", "expert_width", "router_z_loss", "moe_backend")  # without effect in a dense model
SIZES = ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_width", "shared_width", "gate_rank", "window")
FULL_WINDOW_EVERY = 4  # layers 3, 7, 11, ... (counted from 0) have the full window


@dataclass(frozen=True)
class Config:
    """The settings of a Grug model. The defaults fit a budget of 1e19 FLOPs; for other budgets, see `scaling.size`."""

    vocabulary: int = 128_256
    hidden: int = 1024
    layers: int = 11
    heads: int = 8
    kv_heads: int = 2
    head_width: int = 128
    experts: int = 64  # 0: a dense model
    experts_per_token: int = 4
    expert_width: int = 512
    shared_width: int = 1024
    gate_rank: int = 128  # rank of the gated norms
    window: int = 4096
    rope_theta: float = 10_000.0
    query_scale: float = 1.3
    norm_epsilon: float = 1e-5
    init_scale: float = 0.5  # the initial standard deviation is init_scale / sqrt(hidden)
    z_loss: float = 1e-4
    router_z_loss: float = 1e-3
    expert_gate: Literal["swiglu", "bilinear"] = "swiglu"  # activation of the routed experts and the shared one
    moe_backend: Backend = field(default="auto", metadata=OPERATION)
    remat: Literal["recompute_all", "save_moe", "none"] = field(default="recompute_all", metadata=OPERATION)
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    # Number of positions whose logits are in memory at once; None: as many as fit in `layers.LOGIT_BYTES`
    loss_piece: int | None = field(default=None, metadata=OPERATION)

    def __post_init__(self) -> None:
        check_sizes(self, SIZES)
        if self.experts and not 1 <= self.experts_per_token < self.experts:
            raise UsageError(
                f"experts_per_token ({self.experts_per_token}) must be between 1 and experts - 1 ({self.experts - 1}): "
                "balancing compares a token's choices with the next-best expert"
            )
        if self.experts and self.expert_width < 1:
            raise UsageError("expert_width must be at least 1; set experts = 0 for a dense model")
        if self.expert_gate not in GATES:
            raise UsageError(f"expert_gate {self.expert_gate!r} is not one of {', '.join(GATES)}")
        if not self.experts:
            self._check_dense()

    def _check_dense(self) -> None:
        """Raise UsageError for a setting that has no effect in a dense model."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        idle = [name for name in ROUTED if getattr(self, name) != defaults[name]]
        if idle:
            raise UsageError(
                f"experts = 0 makes a dense model, in which {', '.join(idle)} would have no effect; remove these "
                f"settings, or use the defaults ({', '.join(f'{name} = {defaults[name]!r}' for name in idle)})"
            )
        if self.remat == "save_moe":
            raise UsageError("experts = 0: remat = 'save_moe' would save nothing; use 'recompute_all' or 'none'")


def weights(config: Config) -> Tree:
    """Return the table of all weights, whose columns are the fields of `Weight`."""
    c, std = config, config.init_scale * config.hidden**-0.5
    layers, hidden, width = c.layers, c.hidden, c.heads * c.head_width
    kv_width, rank, shared = c.kv_heads * c.head_width, c.gate_rank, c.shared_width
    each, across, along = (layers, c.experts), P(None, "data", None), P(None, None, "data")
    blocks = {
        "attention_norm": Weight((layers, hidden), P(), None),
        "attention_norm_down": Weight((layers, hidden, rank), across, std, "adamh", 1),
        "attention_norm_up": Weight((layers, rank, hidden), along, std, "adamh", 1),
        "query": Weight((layers, hidden, width), across, std, "adamh", 1),
        "key": Weight((layers, hidden, kv_width), across, std, "adamh", 1),
        "value": Weight((layers, hidden, kv_width), across, std, "adamh", 1),
        "head_gate": Weight((layers, hidden, c.heads), across, 0.0, "adam"),
        "attention_out": Weight((layers, width, hidden), along, std, "adamh", 1),
        "mlp_norm": Weight((layers, hidden), P(), None),
        "mlp_norm_down": Weight((layers, hidden, rank), across, std, "adamh", 1),
        "mlp_norm_up": Weight((layers, rank, hidden), along, std, "adamh", 1),
        "shared_in": Weight((layers, hidden, 2 * shared), across, std, "adamh_expert", 1),
        "shared_out": Weight((layers, shared, hidden), along, std, "adamh_expert", 1),
    }
    if c.experts:
        blocks |= {
            "router": Weight((layers, hidden, c.experts), across, std, "router"),
            "expert_in": Weight((*each, hidden, 2 * c.expert_width), P(None, *across), std, "adamh_expert", 2),
            "expert_out": Weight((*each, c.expert_width, hidden), P(None, *along), std, "adamh_expert", 2),
        }
    return {
        "embed": Weight((c.vocabulary, hidden), P(None, "data"), std, "adam"),
        "embed_norm": Weight((hidden,), P(), None),
        "embed_norm_down": Weight((hidden, rank), P("data", None), std, "adamh"),
        "embed_norm_up": Weight((rank, hidden), P(None, "data"), std, "adamh"),
        "blocks": blocks,
        "final_norm": Weight((hidden,), P(), None),
        "final_norm_down": Weight((hidden, rank), P("data", None), std, "adamh"),
        "final_norm_up": Weight((rank, hidden), P(None, "data"), std, "adamh"),
        "head": Weight((hidden, c.vocabulary), P("data", None), std, "adamh"),
    }


def initial_state(config: Config) -> Tree:
    """Return the initial router biases [L, E], or an empty state for a dense model.

    `balanced_bias` sets the biases after each step, without a gradient. Checkpoints include them.
    """
    return {"router_bias": jnp.zeros((config.layers, config.experts), jnp.float32)} if config.experts else {}


def apply(params: Tree, state: Tree, batch: Tokens, config: Config) -> Output:
    """Run one forward pass over a batch; return the loss at each position and the next step's router biases."""
    hidden, routers = encode(params, state, batch, config)
    labels, counted = next_tokens(batch.tokens, batch.segments, batch.loss_mask)
    losses, normalizer = cross_entropy(hidden, gathered(params["head"], hidden.dtype), labels, config.loss_piece)
    z_loss = jnp.sum(counted * normalizer**2) / jnp.maximum(jnp.sum(counted), 1)
    auxiliary, metrics = config.z_loss * z_loss, {"z_loss": z_loss}
    if config.experts:
        threshold, stats = routers
        auxiliary = auxiliary + config.router_z_loss * jnp.mean(stats.z_loss)
        metrics |= router_metrics(stats, config.experts_per_token)
        state = {"router_bias": balanced_bias(threshold)}
    return Output(losses, counted, auxiliary, state, metrics)


def encode(params: Tree, state: Tree, batch: Tokens, config: Config) -> tuple[Float[Array, "B S D"], Any]:
    """Return the final hidden states, and each layer's router thresholds and statistics (None in a dense model)."""
    dtype = jnp.dtype(config.compute)
    x = embed(params["embed"], batch.tokens, dtype)
    x = constrain(_normed(x, params, "embed_norm", config), P(BATCH))
    rotary = rotary_table(batch.tokens.shape[1], config.head_width, config.rope_theta)
    valid = batch.segments != PADDING_SEGMENT

    def layer(x: Any, scanned: tuple[Tree, Tree, Any]) -> tuple[Any, Any]:
        block, block_state, window = scanned
        x = x + attend(_normed(x, block, "attention_norm", config), block, batch.segments, window, rotary, config)
        added, router = feed_forward(_normed(x, block, "mlp_norm", config), block, block_state, valid, config)
        return constrain(x + added, P(BATCH)), router

    x, routers = jax.lax.scan(remat(layer, config.remat), x, (params["blocks"], state, windows(config)))
    return _normed(x, params, "final_norm", config), routers


def windows(config: Config) -> Int[Array, " L"]:
    """Return the width of each layer's attention window: the number of positions, including the current one."""
    full = np.arange(config.layers) % FULL_WINDOW_EVERY == FULL_WINDOW_EVERY - 1
    return jnp.asarray(np.where(full, config.window, max(1, config.window // 2)), jnp.int32)


def remat(layer: Callable[..., Any], policy: str) -> Callable[..., Any]:
    """Return `layer` with a rematerialization policy, which decides what is stored for the backward pass."""
    if policy == "none":
        return layer
    saved = jax.checkpoint_policies.save_only_these_names(SAVED_NAME) if policy == "save_moe" else None
    return jax.checkpoint(layer, policy=saved, prevent_cse=False)  # preventing CSE is unnecessary inside a scan


def _normed(x: Float[Array, "B S D"], weights: Tree, name: str, config: Config) -> Float[Array, "B S D"]:
    normed = rms_norm(x, weights[name], config.norm_epsilon)
    return gated_norm(normed, gathered(weights[f"{name}_down"], x.dtype), gathered(weights[f"{name}_up"], x.dtype))


def attend(
    x_BSD: Float[Array, "B S D"],
    block: Tree,
    segments: Int[Array, "B S"],
    window: Int[Array, ""],
    rotary: tuple[Float[Array, "S h"], Float[Array, "S h"]],
    config: Config,
) -> Float[Array, "B S D"]:
    """Compute one layer's attention."""
    c, dtype, rows = config, x_BSD.dtype, x_BSD.shape[:2]
    query_BSNH = (x_BSD @ gathered(block["query"], dtype)).reshape(*rows, c.heads, c.head_width)
    key_BSMH = (x_BSD @ gathered(block["key"], dtype)).reshape(*rows, c.kv_heads, c.head_width)
    value_BSMH = (x_BSD @ gathered(block["value"], dtype)).reshape(*rows, c.kv_heads, c.head_width)
    query_BSNH = rotate(rms_norm(query_BSNH, None, 1e-6), rotary) * c.query_scale
    key_BSMH = rotate(rms_norm(key_BSMH, None, 1e-6), rotary)
    y_BSNH = attention(query_BSNH, key_BSMH, value_BSMH, segments, window, c.window)
    y_BSNH = exclude_self(y_BSNH, value_BSMH)
    gate_BSN = 2 * jax.nn.sigmoid(x_BSD @ gathered(block["head_gate"], dtype))
    # In fp32, so that the gate's gradient, which is a sum over the head's width, is in fp32 too.
    y_BSNH = (y_BSNH.astype(jnp.float32) * gate_BSN.astype(jnp.float32)[..., None]).astype(dtype)
    return y_BSNH.reshape(*rows, -1) @ gathered(block["attention_out"], dtype)


def feed_forward(
    x_BSD: Float[Array, "B S D"], block: Tree, state: Tree, valid: Bool[Array, "B S"], config: Config
) -> tuple[Float[Array, "B S D"], Any]:
    """Return the summed output of one layer's shared and routed experts, and the router's thresholds and statistics."""
    c, dtype = config, x_BSD.dtype
    shared = GATES[c.expert_gate](x_BSD @ gathered(block["shared_in"], dtype)) @ gathered(block["shared_out"], dtype)
    if not c.experts:
        return shared, None
    x_TD, valid_T = x_BSD.reshape(-1, c.hidden), valid.reshape(-1)

    def route(tokens: Any, weights: Any, axes: Any) -> Any:
        (x_TD, valid_T), (router_DE, bias_E) = tokens, weights
        logits_TE = router_logits(x_TD, router_DE)
        routing = sigmoid_route(logits_TE, bias_E, c.experts_per_token)
        threshold_E = quantile_thresholds(logits_TE, bias_E, c.experts_per_token, valid_T, axes)
        return routing, (threshold_E, statistics(logits_TE, routing.expert, valid_T, axes))

    router_DE = gathered(block["router"], jnp.float32)
    routing, router = on_own_tokens(route, (x_TD, valid_T), (router_DE, state["router_bias"]))
    expert_in, expert_out = gathered(block["expert_in"], dtype), gathered(block["expert_out"], dtype)
    routed_TD = experts(x_TD, routing.expert, routing.share, expert_in, expert_out, c.expert_gate, c.moe_backend)
    return shared + routed_TD.reshape(x_BSD.shape), router


def flops_per_token(config: Config, sequence: int, with_head: bool = True) -> float:
    """Return the forward-pass FLOPs per token. Of the routed experts, only the chosen ones are counted.

    Attention is counted as if every position attended to the whole sequence, without regard to causality or windows,
    so that the result is comparable with published numbers.
    """
    c = config
    width, kv_width = c.heads * c.head_width, c.kv_heads * c.head_width
    routed = 6 * c.hidden * c.expert_width * c.experts_per_token + 2 * c.hidden * c.experts if c.experts else 0
    projections = 2 * c.hidden * (width + 2 * kv_width) + 2 * width * c.hidden
    scores = sequence * (4 * width + 3 * c.heads)
    layer = routed + 6 * c.hidden * c.shared_width + projections + scores
    return float(c.layers * layer + (2 * c.hidden * c.vocabulary if with_head else 0))


def active_parameters(config: Config) -> int:
    """Return the number of parameters that one token uses: all except those of the experts not chosen for it."""
    return parameter_count(weights(config), config.experts_per_token)
