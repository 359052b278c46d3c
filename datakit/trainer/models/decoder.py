"""Defines what the models other than Grug share: the weights and the computation of attention and of a dense MLP, the
output matrix, and one scan over the layers, which may be of several kinds.

    query, key = norm(x @ query + bias), norm(x @ key + bias);  value = x @ value + bias
    attention = softmax(rotated query . rotated key, causal, within documents and the window) value @ out + bias
    mlp = activation(x @ mlp_in) @ mlp_out

`olmoe.py`, `dense.py` and `latent_moe.py` are made of these parts; each reads the settings that it names below from its
own Config. A bias is added in fp32, so that its gradient, a sum over all tokens, is in fp32 too.

A model whose layers differ in their weights keeps one stack of weights for each kind of layer. `scan_layers` compiles
each run of equal layers once, and each repeated pattern of layers once, so the time to compile does not grow with
depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.attention.attention import attention
from datakit.trainer.models.attention.past import Past, empty_past, with_past
from datakit.trainer.models.grug import remat
from datakit.trainer.models.layers import GATES, from_heads, rms_norm, rotate, to_heads
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import BATCH, TENSOR, Tree, Weight, constrain, gathered

QueryKeyNorm = Literal["none", "whole", "head"]  # of the whole projection (OLMoE), or of each head (Qwen3)
Bias = Literal["none", "qkv", "all"]  # of queries, keys and values (Qwen2), or of the output matrix too
# Activation of a dense MLP -> (projections side by side in `mlp_in`, function)
ACTIVATIONS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "swiglu": (2, GATES["swiglu"]),
    "bilinear": (2, GATES["bilinear"]),
    "relu": (1, jax.nn.relu),
}


def attention_weights(config: Any, layers: int) -> dict[str, Weight]:
    """Return the rows of the attention and of both norms of `layers` layers."""
    c, std = config, config.init_std
    width, kv_width = c.heads * c.head_width, c.kv_heads * c.head_width
    across, along = P(None, "data", "tensor"), P(None, "tensor", "data")
    rows = {
        "attention_norm": Weight((layers, c.hidden), P(), None),
        "query": Weight((layers, c.hidden, width), across, std, "adamh", 1),
        "key": Weight((layers, c.hidden, kv_width), across, std, "adamh", 1),
        "value": Weight((layers, c.hidden, kv_width), across, std, "adamh", 1),
        "attention_out": Weight((layers, width, c.hidden), along, std, "adamh", 1),
        "mlp_norm": Weight((layers, c.hidden), P(), None),
    }
    if c.query_key_norm != "none":
        whole = c.query_key_norm == "whole"
        rows["query_norm"] = Weight((layers, width if whole else c.head_width), P(), None)
        rows["key_norm"] = Weight((layers, kv_width if whole else c.head_width), P(), None)
    if c.attention_bias != "none":
        for name, size in (("query", width), ("key", kv_width), ("value", kv_width)):
            rows[f"{name}_bias"] = Weight((layers, size), P(), 0.0)
    if c.attention_bias == "all":
        rows["attention_out_bias"] = Weight((layers, c.hidden), P(), 0.0)
    return rows


def mlp_weights(config: Any, layers: int, width: int, activation: str = "swiglu") -> dict[str, Weight]:
    """Return the rows of the dense MLP of `layers` layers."""
    projections, hidden, std = ACTIVATIONS[activation][0], config.hidden, config.init_std
    return {
        "mlp_in": Weight((layers, hidden, projections * width), P(None, "data", None), std, "adamh", 1),
        "mlp_out": Weight((layers, width, hidden), P(None, None, "data"), std, "adamh", 1),
    }


def outer_weights(config: Any) -> dict[str, Weight]:
    """Return the rows of the embedding, the final norm and, unless the embedding is used in its place, the head."""
    c, std = config, config.init_std
    rows = {
        "embed": Weight((c.vocabulary, c.hidden), P("tensor", "data"), std, "adam"),
        "final_norm": Weight((c.hidden,), P(), None),
    }
    if not c.tied_embeddings:
        rows["head"] = Weight((c.hidden, c.vocabulary), P("data", "tensor"), std, "adamh")
    return rows


def output_matrix(params: Tree, dtype: Any) -> Float[Array, "D V"]:
    """Return the matrix that gives the logits: the head, or the transposed embedding if there is none. Each device has
    the columns of its ids.
    """
    return gathered(params["head"] if "head" in params else params["embed"].T, dtype, P(None, TENSOR))


def attend(
    x_BSD: Float[Array, "B S D"],
    block: Tree,
    segments: Int[Array, "B S"],
    rotary: tuple[Float[Array, "S h"], Float[Array, "S h"]],
    config: Any,
    past: Past | None = None,
) -> tuple[Float[Array, "B S D"], Past | None]:
    """Compute one layer's attention, also to the layer's past if there is one. Return the next past with it."""
    c, rows = config, x_BSD.shape[:2]
    query_BSNH = _heads(_project(x_BSD, block, "query"), block.get("query_norm"), c)
    key_BSMH = _heads(_project(x_BSD, block, "key"), block.get("key_norm"), c)
    value_BSMH = _project(x_BSD, block, "value").reshape(*rows, c.kv_heads, c.head_width)
    positions = x_BSD.shape[1] if past is None else past.keys.shape[1]
    window = positions if c.window is None else c.window
    query_BSNH, key_BSMH = rotate(query_BSNH, rotary), rotate(key_BSMH, rotary)
    if past is None:
        y_BSNH = attention(query_BSNH, key_BSMH, value_BSMH, segments, window, c.attention_backend)
    else:
        y_BSNH, past = with_past(query_BSNH, key_BSMH, value_BSMH, segments, window, past)
    return _project(y_BSNH.reshape(*rows, -1), block, "attention_out"), past


def _project(x: Float[Array, "B S D"], block: Tree, name: str) -> Float[Array, "B S P"]:
    y = (from_heads if name == "attention_out" else to_heads)(x, block[name])
    bias = block.get(f"{name}_bias")
    return y if bias is None else (y.astype(jnp.float32) + bias).astype(x.dtype)


def _heads(x: Float[Array, "B S P"], scale: Float[Array, " W"] | None, config: Any) -> Float[Array, "B S N H"]:
    """Split a projection into heads, and normalize it before the split, after the split or not at all."""
    split = (*x.shape[:2], -1, config.head_width)
    if scale is None:
        return x.reshape(split)
    if config.query_key_norm == "whole":
        return rms_norm(x, scale, config.norm_epsilon).reshape(split)
    return rms_norm(x.reshape(split), scale, config.norm_epsilon)


def mlp(x: Float[Array, "B S D"], block: Tree, activation: str = "swiglu", name: str = "mlp") -> Float[Array, "B S D"]:
    """Compute activation(x @ in) @ out, with the weights `<name>_in` and `<name>_out`."""
    x = constrain(x, P(BATCH, TENSOR))  # devices of the axis "tensor" take some of the positions each
    middle = ACTIVATIONS[activation][1](x @ gathered(block[f"{name}_in"], x.dtype))
    return middle @ gathered(block[f"{name}_out"], x.dtype)


def empty_pasts(config: Any, kinds: Sequence[str], positions: int) -> dict[str, Past]:
    """Return the empty past of the layers of each kind, for one row of this many positions."""
    c = config
    return {kind: empty_past(kinds.count(kind), positions, c.kv_heads, c.head_width, c.compute) for kind in {*kinds}}


def scan_layers(
    layer: Callable[[str, Any, Any], tuple[Any, Any]],
    x: Any,
    stacks: dict[str, Any],
    kinds: Sequence[str],
    policy: str,
) -> tuple[Any, dict[str, Any]]:
    """Apply all layers in turn. Return the last `x`, and for each kind of layer its stacked results.

    layer: `layer(kind, x, weights)` returns the next `x` and a result. stacks: for each kind, the weights of its
    layers, stacked along their first axis. kinds: the kind of each layer, from the first to the last. policy: the
    rematerialization policy (see `grug.remat`).
    """
    runs = [(kind, len([*same])) for kind, same in groupby(kinds)]
    period = next(p for p in range(1, len(runs) + 1) if runs == runs[:p] * (len(runs) // p))
    unit, repeats = runs[:period], len(runs) // period

    def once(x: Any, parts: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        done: dict[str, list[Any]] = {kind: [] for kind in parts}
        at = dict.fromkeys(parts, 0)
        for kind, count in unit:
            part = jax.tree.map(lambda leaf, start=at[kind], count=count: leaf[start : start + count], parts[kind])
            x, results = jax.lax.scan(remat(partial(layer, kind), policy), x, part)
            at[kind] += count
            done[kind].append(results)
        return x, {kind: jax.tree.map(lambda *own: jnp.concatenate(own), *each) for kind, each in done.items()}

    if repeats == 1:
        return once(x, stacks)
    split = jax.tree.map(lambda leaf: leaf.reshape(repeats, -1, *leaf.shape[1:]), stacks)
    x, results = jax.lax.scan(once, x, split)
    return x, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)


def layer_flops(config: Any, sequence: int) -> int:
    """Return the forward-pass FLOPs per token of one layer's attention, counted as in `grug.flops_per_token`."""
    c = config
    width, kv_width = c.heads * c.head_width, c.kv_heads * c.head_width
    return 2 * c.hidden * (width + 2 * kv_width) + 2 * width * c.hidden + sequence * (4 * width + 3 * c.heads)
