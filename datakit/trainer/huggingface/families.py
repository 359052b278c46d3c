"""Lists the hub's model families that we can read and write: the keys of their `config.json`, the settings of our
models that each family can express, and the names of their tensors. `import_checkpoint.py` and `export_checkpoint.py`
read these tables in opposite directions.

In the hub's checkpoints, matrices are [out, in], and each layer, expert and projection is a tensor of its own. Our
matrices are [in, out]; layers and experts are stacked, and gate and up projections are side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from datakit.trainer.models import dense, olmoe

Config = dense.Config | olmoe.Config
Values = dict[str, tuple[Any, ...]]  # setting of our Config -> the values that a family can express

COMMON = {  # field of our Config -> key in config.json
    "vocabulary": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "norm_epsilon": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
DENSE = COMMON | {"width": "intermediate_size"}
MIXTURE = COMMON | {"experts_per_token": "num_experts_per_tok", "balance_loss": "router_aux_loss_coef"}
CHOICE = {"experts": "num_experts", "renormalize": "norm_topk_prob"}

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
# Our name of a weight in a layer -> the hub's. `{mlp}` is `Family.mlp`.
LAYER_TENSORS = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "attention_out": "self_attn.o_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "attention_out_bias": "self_attn.o_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "router": "{mlp}.gate.weight",
    "shared_gate": "mlp.shared_expert_gate.weight",
}
TOP_TENSORS = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
# `<name>_in` and `<name>_out` of our layers -> the hub's module with a gate, an up and a down projection
PROJECTED = {"shared": "mlp.shared_expert", "mlp": "mlp"}


@dataclass(frozen=True)
class Family:
    """One `model_type` of the hub."""

    architecture: str  # the class of `transformers`
    model: ModuleType  # our model file
    fields: dict[str, str]
    expresses: Values
    bias_key: str | None = None  # the key that turns biases on
    mlp: str = "mlp"  # the module that holds the router and the experts
    parts: tuple[str, str, str] = PROJECTIONS  # an expert's matrices


PLAIN: Values = {"window": (None,), "attention_bias": ("none", "all")}
ROUTED_ONLY: Values = {"shared_width": (0,), "dense_layers": ((),), "dense_width": (0,)}
FAMILIES = {
    "olmoe": Family(
        "OlmoeForCausalLM",
        olmoe,
        MIXTURE | CHOICE | {"expert_width": "intermediate_size"},
        PLAIN | ROUTED_ONLY | {"query_key_norm": ("whole",)},
        "attention_bias",
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        olmoe,
        MIXTURE | {"experts": "num_local_experts", "expert_width": "intermediate_size", "window": "sliding_window"},
        ROUTED_ONLY | {"query_key_norm": ("none",), "attention_bias": ("none",), "renormalize": (True,)},
        mlp="block_sparse_moe",
        parts=("w1", "w3", "w2"),
    ),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        olmoe,
        MIXTURE | CHOICE | {"expert_width": "moe_intermediate_size", "shared_width": "shared_expert_intermediate_size"},
        {"query_key_norm": ("none",), "window": (None,), "attention_bias": ("none", "qkv")},
        "qkv_bias",
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        olmoe,
        MIXTURE | CHOICE | {"expert_width": "moe_intermediate_size"},
        PLAIN | {"query_key_norm": ("head",), "shared_width": (0,)},
        "attention_bias",
    ),
    "llama": Family(
        "LlamaForCausalLM",
        dense,
        DENSE,
        PLAIN | {"query_key_norm": ("none",), "activation": ("swiglu",)},
        "attention_bias",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        dense,
        DENSE,
        PLAIN | {"query_key_norm": ("head",), "activation": ("swiglu",)},
        "attention_bias",
    ),
}
WITH_DENSE_LAYERS = ("qwen2_moe", "qwen3_moe")  # have `mlp_only_layers` and `decoder_sparse_step`


def model_of(config: Config) -> ModuleType:
    """Return the model file that a Config belongs to."""
    return olmoe if isinstance(config, olmoe.Config) else dense


def layers_of(config: Config) -> Iterator[tuple[str, int, int]]:
    """Yield (name of the stack, place in the stack, number of the layer in the model) for each layer of a model."""
    seen: dict[str, int] = {}
    kinds = config.kinds if isinstance(config, olmoe.Config) else ("blocks",) * config.layers
    for layer, stack in enumerate(kinds):
        seen[stack] = seen.get(stack, 0) + 1
        yield stack, seen[stack] - 1, layer
