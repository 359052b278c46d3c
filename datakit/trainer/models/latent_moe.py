"""Defines a mixture-of-experts model whose experts work in a smaller space. To change it, copy this file.

    x = embed[tokens]
    x = x + attention(norm(x))
    h = norm(x);  x = x + routed(h @ latent_down) @ latent_up + shared(h)
    logits = norm(x) @ head

The layer is LatentMoE (Elango et al. 2026, arXiv:2601.18089), which the larger Nemotron 3 models use. All experts of a
layer share one projection from `hidden` to `latent` entries, before the tokens are sent to the experts, and one
projection back, after their outputs are summed. The router and the shared expert read the whole hidden state. An
expert's matrices, and the data that is sent to it and back, are smaller by the factor hidden / latent. The paper spends
this on more experts and more experts per token, in the same proportion, at an unchanged expert width. The defaults are
the sizes of Grug's defaults, changed in this way with a factor of 4.

The paper's router is a softmax. Here it is Grug's: a sigmoid, with biases that are set from quantiles (`router.py`).
Attention is that of `decoder.py`, by default with queries and keys normalized per head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models import grug
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
    outer_weights,
    output_matrix,
    scan_layers,
)
from datakit.trainer.models.experts.capacity import Capacity, clipped
from datakit.trainer.models.experts.experts import Backend, Exchange, experts
from datakit.trainer.models.layers import GATES, embed, rms_norm
from datakit.trainer.models.loss import logits_at, part_of
from datakit.trainer.models.protocol import OPERATION, PADDING_SEGMENT, Output, Part, Tokens, check_sizes, check_window
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
from datakit.trainer.models.weights import BATCH, TOKENS, Tree, Weight, constrain, gathered, parameter_count

SIZES = ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_width", "latent", "expert_width", "shared_width")


@dataclass(frozen=True)
class Config(Capacity):
    """The settings of a latent mixture-of-experts model."""

    vocabulary: int = 128_256
    hidden: int = 1024
    layers: int = 11
    heads: int = 8
    kv_heads: int = 2
    head_width: int = 128
    latent: int = 256  # width of the experts' inputs and outputs
    experts: int = 256
    experts_per_token: int = 16
    expert_width: int = 512
    shared_width: int = 1024
    expert_gate: Literal["swiglu", "bilinear"] = "swiglu"  # activation of the routed experts and the shared one
    query_key_norm: QueryKeyNorm = "head"
    attention_bias: Bias = "none"
    tied_embeddings: bool = False  # the head is the transposed embedding
    window: int | None = None  # number of positions that a position attends to, itself included; None: no limit
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    init_std: float = 0.02
    z_loss: float = 1e-4
    router_z_loss: float = 1e-3
    moe_backend: Backend = field(default="auto", metadata=OPERATION)
    exchange: Exchange = field(default="auto", metadata=OPERATION)  # between tokens and experts, if expert_parallel > 1
    attention_backend: AttentionBackend = field(default="auto", metadata=OPERATION)
    remat: Literal["recompute_all", "save_moe", "none"] = field(default="recompute_all", metadata=OPERATION)
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    # Number of positions whose logits are in memory at once; None: as many as fit in `loss.LOGIT_BYTES`
    loss_piece: int | None = field(default=None, metadata=OPERATION)

    def __post_init__(self) -> None:
        check_sizes(self, SIZES)
        check_window(self.window)
        if self.latent >= self.hidden:
            raise UsageError(
                f"model.latent ({self.latent}) must be less than hidden ({self.hidden}); for experts that read the "
                "whole hidden state, use another model"
            )
        if not 1 <= self.experts_per_token < self.experts:
            raise UsageError(
                f"experts_per_token ({self.experts_per_token}) must be between 1 and experts - 1 ({self.experts - 1}): "
                "balancing compares a token's choices with the next-best expert"
            )
        self.check_capacity(self.experts)
        if self.expert_gate not in GATES:
            raise UsageError(f"expert_gate {self.expert_gate!r} is not one of {', '.join(GATES)}")


def of_width(hidden: int, vocabulary: int, sequence: int) -> Config:
    """Return a config of width `hidden`, for `datakit size`: the sizes of a Grug model, changed as the defaults are.
    Attention is not limited, so `sequence` has no effect. Raises UsageError unless `hidden` is a positive multiple of
    128.
    """
    g = grug.of_width(hidden, vocabulary, sequence)
    sizes: Any = {name: getattr(g, name) for name in ("layers", "heads", "kv_heads", "expert_width", "shared_width")}
    return Config(vocabulary=vocabulary, hidden=hidden, latent=hidden // 4, **sizes)


def weights(config: Config) -> Tree:
    """Return the table of all weights; `Weight` explains its columns."""
    c, std = config, config.init_std
    layers, hidden, latent, shared = c.layers, c.hidden, c.latent, c.shared_width
    each, across, along = (layers, c.experts), P(None, "data", None), P(None, None, "data")
    own_in, own_out = P(None, "expert", "data", None), P(None, "expert", None, "data")
    blocks = attention_weights(c, layers) | {
        "router": Weight((layers, hidden, c.experts), across, std, "router"),
        "latent_down": Weight((layers, hidden, latent), across, std, "adamh", 1),
        "latent_up": Weight((layers, latent, hidden), along, std, "adamh", 1),
        "expert_in": Weight((*each, latent, 2 * c.expert_width), own_in, std, "adamh_expert", 2),
        "expert_out": Weight((*each, c.expert_width, latent), own_out, std, "adamh_expert", 2),
        "shared_in": Weight((layers, hidden, 2 * shared), across, std, "adamh_expert", 1),
        "shared_out": Weight((layers, shared, hidden), along, std, "adamh_expert", 1),
    }
    return outer_weights(c) | {"blocks": blocks}


def initial_state(config: Config) -> Tree:
    """Return the initial router biases [L, E], which are set after each step without a gradient."""
    return {"router_bias": jnp.zeros((config.layers, config.experts), jnp.float32)}


def apply(params: Tree, state: Tree, batch: Tokens, config: Config) -> Output:
    """Run one forward pass over a batch; return the loss at each position and the next step's router biases."""
    part = _part(params, state, batch, config, summed=False)
    return Output(part.losses, part.weights, *conclude(part.sums, part.kept, state, config, True))


def apply_part(params: Tree, state: Tree, batch: Tokens, config: Config, whole: bool) -> Part:
    """Run one forward pass of training over a batch, or over some of its rows. `kept` holds the experts' excesses
    [L, T, E] or, if the rows are the whole batch, the routers' thresholds [L, E].
    """
    return _part(params, state, batch, config, summed=True, whole=whole)


def _part(params: Tree, state: Tree, batch: Tokens, config: Config, summed: bool, whole: bool = True) -> Part:
    hidden, (kept, routers) = encode(params, state, batch, config, whole)
    head = output_matrix(params, hidden.dtype)
    return part_of(hidden, head, batch, config, summed, {"routers": routers}, kept)


def conclude(
    sums: Tree, kept: Any, state: Tree, config: Config, whole: bool
) -> tuple[Float[Array, ""], Tree, dict[str, Any]]:
    """Return a batch's auxiliary loss, next state and metrics from the results of its parts."""
    threshold = kept if whole else thresholds_of_parts(kept, sums["routers"].tokens, config.experts_per_token)
    z_loss = sums["z_loss"] / jnp.maximum(sums["predictions"], 1)
    stats = averaged(sums["routers"], config.experts_per_token)
    routing = config.router_z_loss * jnp.mean(stats.z_loss)
    metrics = {"z_loss": z_loss} | router_metrics(stats, config.experts_per_token) | {WEIGHTED: routing}
    return config.z_loss * z_loss + routing, {"router_bias": balanced_bias(threshold)}, metrics


def logits(
    params: Tree, state: Tree, batch: Tokens, config: Config, positions: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    """Return the logits of the tokens that follow the given positions of each row."""
    hidden, _ = encode(params, state, batch, config)
    return logits_at(hidden, output_matrix(params, hidden.dtype), positions)


def no_past(config: Config, positions: int) -> dict[str, Past]:
    """Return the past before the first of this many positions."""
    return empty_pasts(config, ("blocks",) * config.layers, positions)


def extend(
    params: Tree, state: Tree, batch: Tokens, config: Config, positions: Int[Array, "B P"], past: dict[str, Past]
) -> tuple[Float[Array, "B P V"], dict[str, Past]]:
    """Return what `logits` returns for positions that come after a past, and the past that includes them."""
    hidden, _, past = _encode(params, state, batch, config, past)
    return logits_at(hidden, output_matrix(params, hidden.dtype), positions), past


def encode(
    params: Tree, state: Tree, batch: Tokens, config: Config, whole: bool = True
) -> tuple[Float[Array, "B S D"], Any]:
    """Return the final hidden states and, for each layer, the router's thresholds (or, unless `batch` is a whole batch,
    the experts' excesses) and sums.
    """
    return _encode(params, state, batch, config, {}, whole)[:2]


def _encode(
    params: Tree, state: Tree, batch: Tokens, config: Config, past: dict[str, Past], whole: bool = True
) -> tuple[Any, Any, dict[str, Any]]:
    """Return what `encode` returns, and the next past."""
    x = constrain(embed(params["embed"], batch.tokens, jnp.dtype(config.compute)), P(BATCH))
    rotary = rotary_rows(batch.tokens.shape[1], config.head_width, config.rope_theta, past.get("blocks"))
    valid = batch.segments != PADDING_SEGMENT

    def layer(kind: str, x: Any, scanned: tuple[Tree, Tree, Past | None]) -> tuple[Any, Any]:
        block, block_state, before = scanned
        normed = rms_norm(x, block["attention_norm"], config.norm_epsilon)
        attended, after = attend(normed, block, batch.segments, rotary, config, before)
        x = x + attended
        normed = rms_norm(x, block["mlp_norm"], config.norm_epsilon)
        added, router = feed_forward(normed, block, block_state, valid, config, whole)
        return constrain(x + added, P(BATCH)), (router, after)

    stacks: Any = {"blocks": (params["blocks"], state, past.get("blocks"))}
    x, results = scan_layers(layer, x, stacks, ("blocks",) * config.layers, config.remat)
    router, after = results["blocks"]
    return rms_norm(x, params["final_norm"], config.norm_epsilon), router, {"blocks": after}


def feed_forward(
    x_BSD: Float[Array, "B S D"],
    block: Tree,
    state: Tree,
    valid: Bool[Array, "B S"],
    config: Config,
    whole: bool = True,
) -> tuple[Float[Array, "B S D"], Any]:
    """Return the summed output of one layer's shared and routed experts, and the results of its router (`encode`)."""
    c, dtype = config, x_BSD.dtype
    x_TD, valid_T = constrain(x_BSD.reshape(-1, c.hidden), P(TOKENS)), valid.reshape(-1)
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
    latent_TL = x_TD @ gathered(block["latent_down"], dtype)
    expert_in, expert_out = (gathered(block[name], dtype, P("expert")) for name in ("expert_in", "expert_out"))
    how = (c.expert_gate, c.moe_backend, c.exchange, limit)
    latent_TL = experts(latent_TL, routing.expert, routing.share, expert_in, expert_out, *how)
    routed_TD = latent_TL @ gathered(block["latent_up"], dtype)
    return mlp(x_BSD, block, c.expert_gate, name="shared") + routed_TD.reshape(x_BSD.shape), (
        threshold_E if whole else excess_TE,
        sums,
    )


def flops_per_token(config: Config, sequence: int, with_head: bool = True) -> float:
    """Return the forward-pass FLOPs per token, counted as in `grug.flops_per_token`."""
    c = config
    routed = 6 * c.latent * c.expert_width * c.experts_per_token + 4 * c.hidden * c.latent + 2 * c.hidden * c.experts
    layer = layer_flops(c, sequence) + routed + 6 * c.hidden * c.shared_width
    return float(c.layers * layer + (2 * c.hidden * c.vocabulary if with_head else 0))


def active_parameters(config: Config) -> int:
    """Return the number of parameters that one token uses: all except those of the experts not chosen for it."""
    return parameter_count(weights(config), config.experts_per_token)
