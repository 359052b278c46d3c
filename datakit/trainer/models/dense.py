"""Defines a dense model: settings and limits, weights, forward pass and FLOPs. To change it, copy this file.

    x = embed[tokens]
    x = x + attention(norm(x))
    x = x + activation(norm(x) @ mlp_in) @ mlp_out
    logits = norm(x) @ head

The activation is silu(gate) * up (SwiGLU: Shazeer 2020), gate * up (bilinear), or relu of a single projection. With
SwiGLU, this is the architecture of Llama, and with queries and keys normalized per head, that of Qwen3; both can be
imported and exported. `decoder.py` has the parts that other models share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models import grug
from datakit.trainer.models.attention.attention import Backend as AttentionBackend
from datakit.trainer.models.attention.past import Past, rotary_rows
from datakit.trainer.models.decoder import (
    ACTIVATIONS,
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
from datakit.trainer.models.layers import embed, rms_norm
from datakit.trainer.models.loss import logits_at, part_of
from datakit.trainer.models.protocol import OPERATION, Output, Part, Tokens, check_sizes, check_window
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import BATCH, Tree, constrain


@dataclass(frozen=True)
class Config:
    """The settings of a dense model. The defaults are those of SmolLM-135M, except that its embeddings are tied."""

    vocabulary: int = 49_152
    hidden: int = 576
    layers: int = 30
    heads: int = 9
    kv_heads: int = 3
    head_width: int = 64
    width: int = 1536  # of the MLP
    activation: Literal["swiglu", "bilinear", "relu"] = "swiglu"
    query_key_norm: QueryKeyNorm = "none"
    attention_bias: Bias = "none"
    tied_embeddings: bool = False  # the head is the transposed embedding
    window: int | None = None  # number of positions that a position attends to, itself included; None: no limit
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    init_std: float = 0.02
    z_loss: float = 0.0
    attention_backend: AttentionBackend = field(default="auto", metadata=OPERATION)
    remat: Literal["recompute_all", "none"] = field(default="recompute_all", metadata=OPERATION)
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    # Number of positions whose logits are in memory at once; None: as many as fit in `loss.LOGIT_BYTES`
    loss_piece: int | None = field(default=None, metadata=OPERATION)

    def __post_init__(self) -> None:
        check_sizes(self, ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_width", "width"))
        check_window(self.window)
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}")


def of_width(hidden: int, vocabulary: int, sequence: int) -> Config:
    """Return a config of width `hidden` with the depth and the heads of a Grug model, and an MLP of 8/3 of the width as
    in Llama, for `datakit size`. Attention is not limited, so `sequence` has no effect. Raises UsageError unless
    `hidden` is a positive multiple of 128.
    """
    g = grug.of_width(hidden, vocabulary, sequence)
    sizes: Any = {"layers": g.layers, "heads": g.heads, "kv_heads": g.kv_heads, "head_width": g.head_width}
    return Config(vocabulary, hidden, width=math.ceil(hidden * 8 / 3 / 128) * 128, **sizes)


def weights(config: Config) -> Tree:
    """Return the table of all weights; `Weight` explains its columns."""
    blocks = attention_weights(config, config.layers)
    return outer_weights(config) | {
        "blocks": blocks | mlp_weights(config, config.layers, config.width, config.activation)
    }


def initial_state(config: Config) -> Tree:
    """Return an empty state: a dense model has none."""
    return {}


def apply(params: Tree, state: Tree, batch: Tokens, config: Config) -> Output:
    """Run one forward pass over a batch, and return the loss at each position."""
    part = _part(params, batch, config, summed=False)
    return Output(part.losses, part.weights, *conclude(part.sums, part.kept, state, config, True))


def apply_part(params: Tree, state: Tree, batch: Tokens, config: Config, whole: bool) -> Part:
    """Run one forward pass of training over a batch, or over some of its rows."""
    return _part(params, batch, config, summed=True)


def _part(params: Tree, batch: Tokens, config: Config, summed: bool) -> Part:
    hidden = encode(params, batch, config)
    return part_of(hidden, output_matrix(params, hidden.dtype), batch, config, summed)


def conclude(
    sums: Tree, kept: Any, state: Tree, config: Config, whole: bool
) -> tuple[Float[Array, ""], Tree, dict[str, Any]]:
    """Return a batch's auxiliary loss, next state and metrics from the results of its parts."""
    z_loss = sums["z_loss"] / jnp.maximum(sums["predictions"], 1)
    return config.z_loss * z_loss, state, {"z_loss": z_loss}


def logits(
    params: Tree, state: Tree, batch: Tokens, config: Config, positions: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    """Return the logits of the tokens that follow the given positions of each row."""
    hidden = encode(params, batch, config)
    return logits_at(hidden, output_matrix(params, hidden.dtype), positions)


def no_past(config: Config, positions: int) -> dict[str, Past]:
    """Return the past before the first of this many positions."""
    return empty_pasts(config, ("blocks",) * config.layers, positions)


def extend(
    params: Tree, state: Tree, batch: Tokens, config: Config, positions: Int[Array, "B P"], past: dict[str, Past]
) -> tuple[Float[Array, "B P V"], dict[str, Past]]:
    """Return what `logits` returns for positions that come after a past, and the past that includes them."""
    hidden, past = _encode(params, batch, config, past)
    return logits_at(hidden, output_matrix(params, hidden.dtype), positions), past


def encode(params: Tree, batch: Tokens, config: Config) -> Float[Array, "B S D"]:
    """Return the final hidden states."""
    return _encode(params, batch, config, {})[0]


def _encode(params: Tree, batch: Tokens, config: Config, past: dict[str, Past]) -> tuple[Any, dict[str, Any]]:
    """Return the final hidden states, and the next past."""
    x = constrain(embed(params["embed"], batch.tokens, jnp.dtype(config.compute)), P(BATCH))
    rotary = rotary_rows(batch.tokens.shape[1], config.head_width, config.rope_theta, past.get("blocks"))

    def layer(kind: str, x: Any, scanned: tuple[Tree, Past | None]) -> tuple[Any, Any]:
        block, before = scanned
        normed = rms_norm(x, block["attention_norm"], config.norm_epsilon)
        attended, after = attend(normed, block, batch.segments, rotary, config, before)
        x = x + attended
        normed = rms_norm(x, block["mlp_norm"], config.norm_epsilon)
        return constrain(x + mlp(normed, block, config.activation), P(BATCH)), after

    stacks = {"blocks": (params["blocks"], past.get("blocks"))}
    x, past = scan_layers(layer, x, stacks, ("blocks",) * config.layers, config.remat)
    return rms_norm(x, params["final_norm"], config.norm_epsilon), past


def flops_per_token(config: Config, sequence: int, with_head: bool = True) -> float:
    """Return the forward-pass FLOPs per token, counted as in `grug.flops_per_token`."""
    matrices = ACTIVATIONS[config.activation][0] + 1
    layer = layer_flops(config, sequence) + 2 * matrices * config.hidden * config.width
    return float(config.layers * layer + (2 * config.hidden * config.vocabulary if with_head else 0))
