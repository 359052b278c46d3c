"""Defines OLMoE, Mixtral, Qwen2-MoE and Qwen3-MoE as one family: settings and limits, weights, forward pass and FLOPs.

    x = embed[tokens]
    x = x + attention(norm(x))
    h = norm(x);  x = x + routed(h) + sigmoid(h @ shared_gate) * shared(h)
    logits = norm(x) @ head

The models differ only in their settings. Queries and keys are normalized over the whole projection (OLMoE), per head
(Qwen3) or not at all (Mixtral, Qwen2). A token's expert weights are renormalized to sum to one (Mixtral, Qwen3) or left
as they are (OLMoE, Qwen2). Qwen2-MoE has one more expert, which all tokens share and a gate scales, and biases on
queries, keys and values. In Qwen2-MoE and Qwen3-MoE, some layers may have a dense MLP in place of the experts. The
router uses a softmax. A single loss, computed over all layers with experts, balances the load. Tests compare logits,
losses and all gradients with those of the published implementations. `decoder.py` has the parts shared by other models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models.attention.attention import Backend as AttentionBackend
from datakit.trainer.models.attention.past import Past, rotary_rows
from datakit.trainer.models.decoder import (
    Bias,
    QueryKeyNorm,
    attend,
    attention_weights,
    empty_pasts,
    layer_flops,
    mlp,
    mlp_weights,
    outer_weights,
    output_matrix,
    scan_layers,
)
from datakit.trainer.models.experts.capacity import Capacity, clipped
from datakit.trainer.models.experts.experts import Backend, Exchange, experts
from datakit.trainer.models.layers import embed, rms_norm
from datakit.trainer.models.loss import logits_at, part_of
from datakit.trainer.models.protocol import OPERATION, PADDING_SEGMENT, Output, Part, Tokens, check_sizes, check_window
from datakit.trainer.models.router import (
    WEIGHTED,
    RouterSums,
    averaged,
    balance_loss,
    on_own_tokens,
    router_logits,
    router_metrics,
    router_sums,
    softmax_route,
)
from datakit.trainer.models.shapes import Array, Bool, Float, Int
from datakit.trainer.models.weights import BATCH, TOKENS, Tree, Weight, constrain, gathered, parameter_count


@dataclass(frozen=True)
class Config(Capacity):
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
    renormalize: bool = False
    shared_width: int = 0  # width of one more expert, which all tokens share; 0: there is none
    dense_layers: tuple[int, ...] = ()  # the layers, counted from 0, that have a dense MLP in place of the experts
    dense_width: int = 0  # width of this MLP
    query_key_norm: QueryKeyNorm = "whole"
    attention_bias: Bias = "none"
    tied_embeddings: bool = False  # the head is the transposed embedding
    window: int | None = None  # number of positions that a position attends to, itself included; None: no limit
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    init_std: float = 0.02
    z_loss: float = 0.0
    router_z_loss: float = 0.0
    balance_loss: float = 0.01
    moe_backend: Backend = field(default="auto", metadata=OPERATION)
    exchange: Exchange = field(default="auto", metadata=OPERATION)  # between tokens and experts, if expert_parallel > 1
    attention_backend: AttentionBackend = field(default="auto", metadata=OPERATION)
    remat: Literal["recompute_all", "save_moe", "none"] = field(default="recompute_all", metadata=OPERATION)
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    # Number of positions whose logits are in memory at once; None: as many as fit in `loss.LOGIT_BYTES`
    loss_piece: int | None = field(default=None, metadata=OPERATION)

    def __post_init__(self) -> None:
        check_sizes(self, ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_width", "expert_width"))
        if not 1 <= self.experts_per_token <= self.experts:
            raise UsageError(
                f"experts_per_token ({self.experts_per_token}) must be between 1 and experts ({self.experts})"
            )
        check_window(self.window)
        self.check_capacity(self.experts)
        if self.shared_width < 0:
            raise UsageError(f"model.shared_width is {self.shared_width}; use 0 for no shared expert")
        self._check_dense_layers()

    def _check_dense_layers(self) -> None:
        """Raise UsageError for dense layers that do not exist or have no width, and for a width without layers."""
        chosen = sorted(set(self.dense_layers))
        if list(self.dense_layers) != chosen or not set(chosen) < set(range(self.layers)):
            raise UsageError(
                f"model.dense_layers is {list(self.dense_layers)}; list some of the layers 0 to {self.layers - 1}, "
                "each once and in ascending order; for a model without experts, use kind = 'dense'"
            )
        if bool(chosen) != (self.dense_width > 0):
            raise UsageError(
                f"model.dense_width is {self.dense_width}, and dense_layers is {chosen}: set both, or neither"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The stack of weights that each layer is in."""
        return tuple("dense_blocks" if layer in self.dense_layers else "blocks" for layer in range(self.layers))


def of_width(hidden: int, vocabulary: int, sequence: int) -> Config:
    """Return a config of width `hidden` with the proportions of OLMoE-1B-7B, for `datakit size`. The width of its
    attention is not limited, so `sequence` has no effect. Raises UsageError unless `hidden` is a positive multiple of
    128.
    """
    if hidden < 128 or hidden % 128:
        raise UsageError(f"hidden is {hidden}; it must be a positive multiple of 128, the width of a head")
    heads = hidden // 128  # and as many layers: 16 in OLMoE-1B-7B, whose width is 2048
    return Config(
        vocabulary=vocabulary, hidden=hidden, layers=heads, heads=heads, kv_heads=heads, expert_width=hidden // 2
    )


def weights(config: Config) -> Tree:
    """Return the table of all weights; `Weight` explains its columns. `blocks` has the layers with experts, and
    `dense_blocks` the others, if there are any.
    """
    c, std, dense = config, config.init_std, len(config.dense_layers)
    layers, hidden = c.layers - dense, c.hidden
    each, across, along = (layers, c.experts), P(None, "data", None), P(None, None, "data")
    own_in, own_out = P(None, "expert", "data", None), P(None, "expert", None, "data")
    blocks = attention_weights(c, layers) | {
        "router": Weight((layers, hidden, c.experts), across, std, "router"),
        "expert_in": Weight((*each, hidden, 2 * c.expert_width), own_in, std, "adamh_expert", 2),
        "expert_out": Weight((*each, c.expert_width, hidden), own_out, std, "adamh_expert", 2),
    }
    if c.shared_width:
        blocks |= {
            "shared_gate": Weight((layers, hidden, 1), across, std),
            "shared_in": Weight((layers, hidden, 2 * c.shared_width), across, std, "adamh_expert", 1),
            "shared_out": Weight((layers, c.shared_width, hidden), along, std, "adamh_expert", 1),
        }
    table: Tree = outer_weights(c) | {"blocks": blocks}
    return table | (
        {"dense_blocks": attention_weights(c, dense) | mlp_weights(c, dense, c.dense_width)} if dense else {}
    )


def initial_state(config: Config) -> Tree:
    """Return an empty state: a loss balances the load, so there are no router biases."""
    return {}


def apply(params: Tree, state: Tree, batch: Tokens, config: Config) -> Output:
    """Run one forward pass over a batch, and return the loss at each position."""
    part = _part(params, batch, config, summed=False)
    return Output(part.losses, part.weights, *conclude(part.sums, part.kept, state, config, True))


def apply_part(params: Tree, state: Tree, batch: Tokens, config: Config, whole: bool) -> Part:
    """Run one forward pass of training over a batch, or over some of its rows."""
    return _part(params, batch, config, summed=True)


def _part(params: Tree, batch: Tokens, config: Config, summed: bool) -> Part:
    hidden, (routers, _) = encode(params, batch, config)
    return part_of(hidden, output_matrix(params, hidden.dtype), batch, config, summed, {"routers": routers})


def conclude(
    sums: Tree, kept: Any, state: Tree, config: Config, whole: bool
) -> tuple[Float[Array, ""], Tree, dict[str, Any]]:
    """Return a batch's auxiliary loss, next state and metrics from the results of its parts."""
    z_loss = sums["z_loss"] / jnp.maximum(sums["predictions"], 1)
    stats = averaged(sums["routers"], config.experts_per_token)
    pooled = balance_loss(jnp.mean(stats.load, 0), jnp.mean(stats.probability, 0), config.experts_per_token)
    # Without the loss, microbatches need no additional forward pass (see `trainer/accumulation.py`).
    balance = config.balance_loss * pooled if config.balance_loss else 0.0
    routing = balance + config.router_z_loss * jnp.mean(stats.z_loss)
    metrics = {"z_loss": z_loss, "router/pooled_balance_loss": pooled, WEIGHTED: routing}
    return config.z_loss * z_loss + routing, state, metrics | router_metrics(stats, config.experts_per_token)


def logits(
    params: Tree, state: Tree, batch: Tokens, config: Config, positions: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    """Return the logits of the tokens that follow the given positions of each row."""
    hidden, _ = encode(params, batch, config)
    return logits_at(hidden, output_matrix(params, hidden.dtype), positions)


def no_past(config: Config, positions: int) -> dict[str, Past]:
    """Return the past before the first of this many positions."""
    return empty_pasts(config, config.kinds, positions)


def extend(
    params: Tree, state: Tree, batch: Tokens, config: Config, positions: Int[Array, "B P"], past: dict[str, Past]
) -> tuple[Float[Array, "B P V"], dict[str, Past]]:
    """Return what `logits` returns for positions that come after a past, and the past that includes them."""
    hidden, _, past = _encode(params, batch, config, past)
    return logits_at(hidden, output_matrix(params, hidden.dtype), positions), past


def encode(params: Tree, batch: Tokens, config: Config) -> tuple[Float[Array, "B S D"], tuple[RouterSums, Any]]:
    """Return the final hidden states, and the router's sums and logits of each layer with experts."""
    return _encode(params, batch, config, {})[:2]


def _encode(params: Tree, batch: Tokens, config: Config, past: dict[str, Past]) -> tuple[Any, Any, dict[str, Any]]:
    """Return what `encode` returns, and the next past."""
    dtype = jnp.dtype(config.compute)
    x = constrain(embed(params["embed"], batch.tokens, dtype), P(BATCH))
    rotary = rotary_rows(batch.tokens.shape[1], config.head_width, config.rope_theta, past.get("blocks"))
    valid = batch.segments != PADDING_SEGMENT

    def layer(kind: str, x: Any, scanned: tuple[Tree, Past | None]) -> tuple[Any, Any]:
        block, before = scanned
        normed = rms_norm(x, block["attention_norm"], config.norm_epsilon)
        attended, after = attend(normed, block, batch.segments, rotary, config, before)
        x = x + attended
        normed = rms_norm(x, block["mlp_norm"], config.norm_epsilon)
        dense = kind == "dense_blocks"
        added, router = (mlp(normed, block), ()) if dense else feed_forward(normed, block, valid, config)
        return constrain(x + added, P(BATCH)), (router, after)

    stacks = {kind: (params[kind], past.get(kind)) for kind in dict.fromkeys(config.kinds)}
    x, results = scan_layers(layer, x, stacks, config.kinds, config.remat)
    past = {kind: after for kind, (_, after) in results.items()}
    return rms_norm(x, params["final_norm"], config.norm_epsilon), results["blocks"][0], past


def feed_forward(
    x_BSD: Float[Array, "B S D"], block: Tree, valid: Bool[Array, "B S"], config: Config
) -> tuple[Float[Array, "B S D"], tuple[RouterSums, Float[Array, "T E"]]]:
    """Return the output of one layer's experts, and the router's sums and logits."""
    c, dtype = config, x_BSD.dtype
    x_TD = constrain(x_BSD.reshape(-1, c.hidden), P(TOKENS))
    limit = c.limit(x_BSD.shape[1], c.experts_per_token)

    def route(tokens: Any, router_DE: Any, axes: Any) -> Any:
        x_TD, valid_T = tokens
        logits_TE = router_logits(x_TD, router_DE)
        routing = softmax_route(logits_TE, c.experts_per_token, c.renormalize)
        sums = router_sums(logits_TE, routing.expert, valid_T, axes)
        routing, sums = clipped(routing, sums, valid_T, limit, axes)
        return (routing, logits_TE), sums

    router_DE = gathered(block["router"], jnp.float32)
    (routing, logits_TE), sums = on_own_tokens(route, (x_TD, valid.reshape(-1)), router_DE)
    expert_in, expert_out = (gathered(block[name], dtype, P("expert")) for name in ("expert_in", "expert_out"))
    how = ("swiglu", c.moe_backend, c.exchange, limit)
    y_TD = experts(x_TD, routing.expert, routing.share, expert_in, expert_out, *how)
    y_BSD = y_TD.reshape(x_BSD.shape)
    return (y_BSD + _shared(x_BSD, block) if c.shared_width else y_BSD), (sums, logits_TE)


def _shared(x_BSD: Float[Array, "B S D"], block: Tree) -> Float[Array, "B S D"]:
    """Return the output of the shared expert times its gate, in fp32 so that the gate's gradient is a sum in fp32."""
    gate_BS1 = jax.nn.sigmoid((x_BSD @ gathered(block["shared_gate"], x_BSD.dtype)).astype(jnp.float32))
    return (gate_BS1 * mlp(x_BSD, block, name="shared").astype(jnp.float32)).astype(x_BSD.dtype)


def flops_per_token(config: Config, sequence: int, with_head: bool = True) -> float:
    """Return the forward-pass FLOPs per token, counted as in `grug.flops_per_token`."""
    c, dense = config, len(config.dense_layers)
    routed = 6 * c.hidden * c.expert_width * c.experts_per_token + 2 * c.hidden * c.experts
    shared = 6 * c.hidden * c.shared_width + (2 * c.hidden if c.shared_width else 0)
    total = c.layers * layer_flops(c, sequence) + (c.layers - dense) * (routed + shared)
    total += dense * 6 * c.hidden * c.dense_width
    return float(total + (2 * c.hidden * c.vocabulary if with_head else 0))


def active_parameters(config: Config) -> int:
    """Return the number of parameters that one token uses: all except those of the experts not chosen for it."""
    return parameter_count(weights(config), config.experts_per_token)
