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
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models.attention.attention import Backend as AttentionBackend
from datakit.trainer.models.attention.attention import attention
from datakit.trainer.models.attention.past import Past, empty_past, rotary_rows, with_past
from datakit.trainer.models.experts.capacity import Capacity, clipped
from datakit.trainer.models.experts.experts import SAVED_NAME, Backend, Exchange, experts
from datakit.trainer.models.layers import (
    GATES,
    embed,
    exclude_self,
    from_heads,
    gated_norm,
    rms_norm,
    rotate,
    to_heads,
)
from datakit.trainer.models.loss import logits_at, part_of
from datakit.trainer.models.protocol import OPERATION, PADDING_SEGMENT, Output, Part, Tokens, check_sizes
from datakit.trainer.models.router import (
    WEIGHTED,
    averaged,
    balanced_bias,
    excess,
    on_own_tokens,
    quantile_thresholds,
    router_logits,
    router_metrics,
    router_sums,
    sigmoid_route,
    thresholds_of_parts,
)
from datakit.trainer.models.shapes import Array, Bool, Float, Int
from datakit.trainer.models.weights import BATCH, TENSOR, TOKENS, Tree, Weight, constrain, gathered, parameter_count

ROUTED = (  # without effect in a dense model
    *("experts_per_token", "expert_width", "router_z_loss", "moe_backend", "exchange"),
    *("capacity_factor", "capacity_rows", "capacity_groups"),
)
SIZES = ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_width", "shared_width", "gate_rank", "window")
FULL_WINDOW_EVERY = 4  # layers 3, 7, 11, ... (counted from 0) have the full window


@dataclass(frozen=True)
class Config(Capacity):
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
    exchange: Exchange = field(default="auto", metadata=OPERATION)  # between tokens and experts, if expert_parallel > 1
    attention_backend: AttentionBackend = field(default="auto", metadata=OPERATION)
    remat: Literal["recompute_all", "save_moe", "none"] = field(default="recompute_all", metadata=OPERATION)
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    # Number of positions whose logits are in memory at once; None: as many as fit in `loss.LOGIT_BYTES`
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
        else:
            self.check_capacity(self.experts)

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


def of_width(hidden: int, vocabulary: int, sequence: int) -> Config:
    """Return the config of width `hidden`, for `datakit size`. Raises UsageError unless `hidden` is a positive multiple
    of 128.
    """
    if hidden < 128 or hidden % 128:
        raise UsageError(f"hidden is {hidden}; it must be a positive multiple of 128, the width of a head")
    heads = hidden // 128
    kv_heads = max((m for m in range(1, heads // 4 + 1) if heads % m == 0), default=1)
    return Config(
        vocabulary=vocabulary,
        hidden=hidden,
        layers=round(hidden / (64 + 4 * math.log2(hidden) - 9)),
        heads=heads,
        kv_heads=kv_heads,
        expert_width=math.ceil(hidden / 2 / 128) * 128,
        shared_width=hidden,
        window=sequence,
    )


def weights(config: Config) -> Tree:
    """Return the table of all weights, whose columns are the fields of `Weight`."""
    c, std = config, config.init_scale * config.hidden**-0.5
    layers, hidden, width = c.layers, c.hidden, c.heads * c.head_width
    kv_width, rank, shared = c.kv_heads * c.head_width, c.gate_rank, c.shared_width
    each, across, along = (layers, c.experts), P(None, "data", None), P(None, None, "data")
    own_in, own_out = P(None, "expert", "data", None), P(None, "expert", None, "data")
    heads_in, heads_out = P(None, "data", "tensor"), P(None, "tensor", "data")
    blocks = {
        "attention_norm": Weight((layers, hidden), P(), None),
        "attention_norm_down": Weight((layers, hidden, rank), across, std, "adamh", 1),
        "attention_norm_up": Weight((layers, rank, hidden), along, std, "adamh", 1),
        "query": Weight((layers, hidden, width), heads_in, std, "adamh", 1),
        "key": Weight((layers, hidden, kv_width), heads_in, std, "adamh", 1),
        "value": Weight((layers, hidden, kv_width), heads_in, std, "adamh", 1),
        "head_gate": Weight((layers, hidden, c.heads), across, 0.0, "adam"),
        "attention_out": Weight((layers, width, hidden), heads_out, std, "adamh", 1),
        "mlp_norm": Weight((layers, hidden), P(), None),
        "mlp_norm_down": Weight((layers, hidden, rank), across, std, "adamh", 1),
        "mlp_norm_up": Weight((layers, rank, hidden), along, std, "adamh", 1),
        "shared_in": Weight((layers, hidden, 2 * shared), across, std, "adamh_expert", 1),
        "shared_out": Weight((layers, shared, hidden), along, std, "adamh_expert", 1),
    }
    if c.experts:
        blocks |= {
            "router": Weight((layers, hidden, c.experts), across, std, "router"),
            "expert_in": Weight((*each, hidden, 2 * c.expert_width), own_in, std, "adamh_expert", 2),
            "expert_out": Weight((*each, c.expert_width, hidden), own_out, std, "adamh_expert", 2),
        }
    return {
        "embed": Weight((c.vocabulary, hidden), P("tensor", "data"), std, "adam"),
        "embed_norm": Weight((hidden,), P(), None),
        "embed_norm_down": Weight((hidden, rank), P("data", None), std, "adamh"),
        "embed_norm_up": Weight((rank, hidden), P(None, "data"), std, "adamh"),
        "blocks": blocks,
        "final_norm": Weight((hidden,), P(), None),
        "final_norm_down": Weight((hidden, rank), P("data", None), std, "adamh"),
        "final_norm_up": Weight((rank, hidden), P(None, "data"), std, "adamh"),
        "head": Weight((hidden, c.vocabulary), P("data", "tensor"), std, "adamh"),
    }


def initial_state(config: Config) -> Tree:
    """Return the initial router biases [L, E], or an empty state for a dense model.

    `balanced_bias` sets the biases after each step, without a gradient. Checkpoints include them.
    """
    return {"router_bias": jnp.zeros((config.layers, config.experts), jnp.float32)} if config.experts else {}


def apply(params: Tree, state: Tree, batch: Tokens, config: Config) -> Output:
    """Run one forward pass over a batch; return the loss at each position and the next step's router biases."""
    part = _part(params, state, batch, config, summed=False)
    return Output(part.losses, part.weights, *conclude(part.sums, part.kept, state, config, True))


def apply_part(params: Tree, state: Tree, batch: Tokens, config: Config, whole: bool) -> Part:
    """Run one forward pass of training over a batch, or over some of its rows. `kept` holds the experts' excesses
    [L, T, E] or, if the rows are the whole batch, the routers' thresholds [L, E]. It is None in a dense model.
    """
    return _part(params, state, batch, config, summed=True, whole=whole)


def _part(params: Tree, state: Tree, batch: Tokens, config: Config, summed: bool, whole: bool = True) -> Part:
    hidden, (kept, routers) = encode(params, state, batch, config, whole)
    head = gathered(params["head"], hidden.dtype, P(None, TENSOR))
    return part_of(hidden, head, batch, config, summed, {"routers": routers}, kept)


def conclude(
    sums: Tree, kept: Any, state: Tree, config: Config, whole: bool
) -> tuple[Float[Array, ""], Tree, dict[str, Any]]:
    """Return a batch's auxiliary loss, next state and metrics from the results of its parts."""
    z_loss = sums["z_loss"] / jnp.maximum(sums["predictions"], 1)
    auxiliary, metrics = config.z_loss * z_loss, {"z_loss": z_loss}
    if config.experts:
        stats = averaged(sums["routers"], config.experts_per_token)
        routing = config.router_z_loss * jnp.mean(stats.z_loss)
        auxiliary += routing
        metrics |= router_metrics(stats, config.experts_per_token) | {WEIGHTED: routing}
        if not whole:
            kept = thresholds_of_parts(kept, sums["routers"].tokens, config.experts_per_token)
        state = {"router_bias": balanced_bias(kept)}
    return auxiliary, state, metrics


def logits(
    params: Tree, state: Tree, batch: Tokens, config: Config, positions: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    """Return the logits of the tokens that follow the given positions of each row."""
    hidden, _ = encode(params, state, batch, config)
    return logits_at(hidden, gathered(params["head"], hidden.dtype), positions)


def no_past(config: Config, positions: int) -> Past:
    """Return the past before the first of this many positions."""
    return empty_past(config.layers, positions, config.kv_heads, config.head_width, config.compute)


def extend(
    params: Tree, state: Tree, batch: Tokens, config: Config, positions: Int[Array, "B P"], past: Past
) -> tuple[Float[Array, "B P V"], Past]:
    """Return what `logits` returns for positions that come after a past, and the past that includes them."""
    hidden, (_, after) = _encode(params, state, batch, config, past)
    return logits_at(hidden, gathered(params["head"], hidden.dtype), positions), after


def encode(
    params: Tree, state: Tree, batch: Tokens, config: Config, whole: bool = True
) -> tuple[Float[Array, "B S D"], tuple[Any, Any]]:
    """Return the final hidden states and, for each layer, the router's thresholds (or, unless `batch` is a whole batch,
    the experts' excesses) and sums. The last two are None in a dense model.
    """
    hidden, (routers, _) = _encode(params, state, batch, config, None, whole)
    return hidden, routers


def _encode(
    params: Tree, state: Tree, batch: Tokens, config: Config, past: Past | None, whole: bool = True
) -> tuple[Any, tuple[Any, Any]]:
    """Return what `encode` returns, and the next past."""
    dtype = jnp.dtype(config.compute)
    x = embed(params["embed"], batch.tokens, dtype)
    x = constrain(_normed(x, params, "embed_norm", config), P(BATCH))
    rotary = rotary_rows(batch.tokens.shape[1], config.head_width, config.rope_theta, past)
    valid = batch.segments != PADDING_SEGMENT

    def layer(x: Any, scanned: tuple[Tree, Tree, Any, Past | None]) -> tuple[Any, Any]:
        block, block_state, window, before = scanned
        normed = _normed(x, block, "attention_norm", config)
        attended, after = attend(normed, block, batch.segments, window, rotary, config, before)
        x = x + attended
        added, router = feed_forward(_normed(x, block, "mlp_norm", config), block, block_state, valid, config, whole)
        return constrain(x + added, P(BATCH)), (router, after)

    x, results = jax.lax.scan(remat(layer, config.remat), x, (params["blocks"], state, windows(config), past))
    return _normed(x, params, "final_norm", config), results


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
    past: Past | None = None,
) -> tuple[Float[Array, "B S D"], Past | None]:
    """Compute one layer's attention, also to the layer's past if there is one. Return the next past with it."""
    c, dtype, rows = config, x_BSD.dtype, x_BSD.shape[:2]
    query_BSNH = (to_heads(x_BSD, block["query"])).reshape(*rows, c.heads, c.head_width)
    key_BSMH = (to_heads(x_BSD, block["key"])).reshape(*rows, c.kv_heads, c.head_width)
    value_BSMH = (to_heads(x_BSD, block["value"])).reshape(*rows, c.kv_heads, c.head_width)
    query_BSNH = rotate(rms_norm(query_BSNH, None, 1e-6), rotary) * c.query_scale
    key_BSMH = rotate(rms_norm(key_BSMH, None, 1e-6), rotary)
    if past is None:
        y_BSNH = attention(query_BSNH, key_BSMH, value_BSMH, segments, window, c.attention_backend)
    else:
        y_BSNH, past = with_past(query_BSNH, key_BSMH, value_BSMH, segments, window, past)
    y_BSNH = exclude_self(y_BSNH, value_BSMH)
    gate_BSN = 2 * jax.nn.sigmoid(x_BSD @ gathered(block["head_gate"], dtype))
    # In fp32, so that the gate's gradient, which is a sum over the head's width, is in fp32 too.
    y_BSNH = (y_BSNH.astype(jnp.float32) * gate_BSN.astype(jnp.float32)[..., None]).astype(dtype)
    return from_heads(y_BSNH.reshape(*rows, -1), block["attention_out"]), past


def feed_forward(
    x_BSD: Float[Array, "B S D"],
    block: Tree,
    state: Tree,
    valid: Bool[Array, "B S"],
    config: Config,
    whole: bool = True,
) -> tuple[Float[Array, "B S D"], tuple[Any, Any]]:
    """Return the summed output of one layer's shared and routed experts, and the results of its router (`encode`)."""
    c, dtype = config, x_BSD.dtype
    x_TD, valid_T = constrain(x_BSD.reshape(-1, c.hidden), P(TOKENS)), valid.reshape(-1)
    shared_TD = GATES[c.expert_gate](x_TD @ gathered(block["shared_in"], dtype)) @ gathered(block["shared_out"], dtype)
    if not c.experts:
        return shared_TD.reshape(x_BSD.shape), (None, None)
    limit = c.limit(x_BSD.shape[1], c.experts_per_token)

    def route(tokens: Any, weights: Any, axes: Any) -> Any:
        (x_TD, valid_T), (router_DE, bias_E) = tokens, weights
        logits_TE = router_logits(x_TD, router_DE)
        routing = sigmoid_route(logits_TE, bias_E, c.experts_per_token)
        balance = (logits_TE, bias_E, c.experts_per_token, valid_T)
        sums = router_sums(logits_TE, routing.expert, valid_T, axes)
        routing, sums = clipped(routing, sums, valid_T, limit, axes)
        if whole:
            return (routing, None), (quantile_thresholds(*balance, axes), sums)
        return (routing, excess(*balance)), (None, sums)

    router_DE = gathered(block["router"], jnp.float32)
    (routing, excess_TE), (threshold_E, sums) = on_own_tokens(route, (x_TD, valid_T), (router_DE, state["router_bias"]))
    expert_in, expert_out = (gathered(block[name], dtype, P("expert")) for name in ("expert_in", "expert_out"))
    how = (c.expert_gate, c.moe_backend, c.exchange, limit)
    routed_TD = experts(x_TD, routing.expert, routing.share, expert_in, expert_out, *how)
    return (shared_TD + routed_TD).reshape(x_BSD.shape), (threshold_E if whole else excess_TE, sums)


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
