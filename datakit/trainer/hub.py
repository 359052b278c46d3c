"""Converts OLMoE, Mixtral and Qwen3-MoE configs and checkpoints from the model hub to the Config and parameters of
`models/olmoe.py`, and rejects unsupported models. The input is the parsed `config.json` and a dict of numpy arrays,
e.g. from the `safetensors` package. The hub stores matrices as [out, in], and experts either separately or stacked.
Here, all matrices are [in, out], and all experts are stacked.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from datakit.errors import UsageError
from datakit.trainer.models import olmoe
from datakit.trainer.models.shapes import Array
from datakit.trainer.models.weights import Tree

FAMILIES = {"olmoe": "whole", "mixtral": "none", "qwen3_moe": "head"}  # model_type -> the Config's `query_key_norm`


def config_from_hub(description: dict[str, Any], **changes: Any) -> olmoe.Config:
    """Convert a parsed `config.json`; `changes` override fields. Raises UsageError for unsupported models."""
    family = description.get("model_type")
    if family not in FAMILIES:
        raise UsageError(f"model_type {family!r} is not supported; use one of {', '.join(FAMILIES)}")
    if any(description.get(name) for name in ("tie_word_embeddings", "attention_bias", "mlp_only_layers")):
        raise UsageError("tied embeddings, attention biases and dense layers are not supported by models/olmoe.py")
    heads, hidden = description["num_attention_heads"], description["hidden_size"]
    rope = description.get("rope_parameters") or description
    values: dict[str, Any] = {
        "vocabulary": description["vocab_size"],
        "hidden": hidden,
        "layers": description["num_hidden_layers"],
        "heads": heads,
        "kv_heads": description["num_key_value_heads"],
        "head_width": description.get("head_dim") or hidden // heads,
        "experts": description.get("num_experts") or description["num_local_experts"],
        "experts_per_token": description["num_experts_per_tok"],
        "expert_width": description.get("moe_intermediate_size") or description["intermediate_size"],
        "query_key_norm": FAMILIES[family],
        "renormalize": description.get("norm_topk_prob", family == "mixtral"),
        "window": description.get("sliding_window"),
        "rope_theta": rope["rope_theta"],
        "norm_epsilon": description["rms_norm_eps"],
        "balance_loss": description["router_aux_loss_coef"],
    }
    return olmoe.Config(**(values | changes))


def parameters_from_hub(tensors: dict[str, np.ndarray], config: olmoe.Config) -> Tree:
    """Convert a hub checkpoint's tensors, keyed by name, to parameters; the experts may be separate or stacked."""
    mixtral = any("block_sparse_moe" in name for name in tensors)

    def stacked(name: str, transpose: bool = True) -> Array:
        layers = [tensors[f"model.layers.{layer}.{name}.weight"] for layer in range(config.layers)]
        return jnp.asarray(np.stack([value.T if transpose else value for value in layers]))

    mlp = "block_sparse_moe" if mixtral else "mlp"
    gate, down, up = ("w1", "w2", "w3") if mixtral else ("gate_proj", "down_proj", "up_proj")

    def every_expert(layer: int) -> tuple[np.ndarray, np.ndarray]:
        prefix = f"model.layers.{layer}.{mlp}.experts"
        if f"{prefix}.gate_up_proj" in tensors:
            return tensors[f"{prefix}.gate_up_proj"].swapaxes(1, 2), tensors[f"{prefix}.down_proj"].swapaxes(1, 2)
        one = [
            {part: tensors[f"{prefix}.{e}.{part}.weight"].T for part in (gate, down, up)} for e in range(config.experts)
        ]
        both = np.stack([np.concatenate([parts[gate], parts[up]], axis=1) for parts in one])
        return both, np.stack([parts[down] for parts in one])

    expert_in, expert_out = zip(*(every_expert(layer) for layer in range(config.layers)), strict=True)
    blocks = {
        "attention_norm": stacked("input_layernorm", transpose=False),
        "query": stacked("self_attn.q_proj"),
        "key": stacked("self_attn.k_proj"),
        "value": stacked("self_attn.v_proj"),
        "attention_out": stacked("self_attn.o_proj"),
        "mlp_norm": stacked("post_attention_layernorm", transpose=False),
        "router": stacked(f"{mlp}.gate"),
        "expert_in": jnp.asarray(np.stack(expert_in)),
        "expert_out": jnp.asarray(np.stack(expert_out)),
    }
    if config.query_key_norm != "none":
        blocks["query_norm"] = stacked("self_attn.q_norm", transpose=False)
        blocks["key_norm"] = stacked("self_attn.k_norm", transpose=False)
    return {
        "embed": jnp.asarray(tensors["model.embed_tokens.weight"]),
        "blocks": blocks,
        "final_norm": jnp.asarray(tensors["model.norm.weight"]),
        "head": jnp.asarray(tensors["lm_head.weight"].T),
    }
