"""Configs and checkpoints of the hub are converted exactly, or refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.errors import UsageError
from datakit.trainer.huggingface import config_keys
from datakit.trainer.huggingface import import_checkpoint as hub
from datakit.trainer.models import dense, olmoe

COMMON = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "vocab_size": 64,
}
OLMOE = COMMON | {"model_type": "olmoe", "num_experts": 4, "norm_topk_prob": False, "clip_qkv": None}
MIXTRAL = COMMON | {"model_type": "mixtral", "num_local_experts": 4, "sliding_window": 32}
QWEN = COMMON | {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "norm_topk_prob": True,
    "moe_intermediate_size": 8,
    "head_dim": 6,
    "decoder_sparse_step": 1,
    "max_window_layers": 28,
    "mlp_only_layers": [],
    "sliding_window": 4096,
    "use_sliding_window": False,
}
QWEN2 = COMMON | {
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "norm_topk_prob": False,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 10,
}
LLAMA = {key: value for key, value in COMMON.items() if key not in ("num_experts_per_tok", "router_aux_loss_coef")}
LLAMA |= {"model_type": "llama", "mlp_bias": False, "pretraining_tp": 1}
FAMILIES = {"olmoe": OLMOE, "mixtral": MIXTRAL, "qwen3_moe": QWEN, "qwen2_moe": QWEN2, "llama": LLAMA}
FAMILIES["qwen3"] = LLAMA | {"model_type": "qwen3", "head_dim": 6}


def moe(description: dict[str, Any]) -> olmoe.Config:
    """The Config of a mixture."""
    config = hub.config_from_hub(description)
    assert isinstance(config, olmoe.Config)
    return config


def test_each_family_is_converted() -> None:
    assert moe(OLMOE).query_key_norm == "whole"
    mixtral, qwen, qwen2 = moe(MIXTRAL), moe(QWEN), moe(QWEN2)
    assert (mixtral.renormalize, mixtral.window, mixtral.expert_width, mixtral.head_width) == (True, 32, 12, 4)
    assert (qwen.renormalize, qwen.window, qwen.expert_width, qwen.head_width) == (True, None, 8, 6)
    assert (qwen2.shared_width, qwen2.attention_bias, qwen2.renormalize) == (10, "qkv", False)
    assert moe(QWEN2 | {"qkv_bias": False}).attention_bias == "none"
    llama, qwen3 = hub.config_from_hub(LLAMA), hub.config_from_hub(FAMILIES["qwen3"])
    assert isinstance(llama, dense.Config)
    assert (llama.width, llama.query_key_norm, llama.attention_bias) == (12, "none", "none")
    assert (qwen3.query_key_norm, qwen3.head_width) == ("head", 6)
    assert hub.config_from_hub(LLAMA | {"attention_bias": True}).attention_bias == "all"
    assert hub.config_from_hub(LLAMA | {"tie_word_embeddings": True}).tied_embeddings
    scaled = {"rope_type": "default", "rope_theta": 5e5}
    assert hub.config_from_hub(OLMOE | {"rope_parameters": scaled, "rope_theta": None}).rope_theta == 5e5


@pytest.mark.parametrize(
    ("keys", "dense_layers"),
    [
        ({"mlp_only_layers": [0, 3]}, (0, 3)),
        ({"decoder_sparse_step": 2}, (0, 2, 4)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (0, 1, 2, 4)),
        ({"intermediate_size": None}, ()),
    ],
)
def test_dense_layers_are_those_of_the_published_code(keys: dict[str, Any], dense_layers: tuple[int, ...]) -> None:
    config = moe(QWEN | {"num_hidden_layers": 5} | keys)
    assert config.dense_layers == dense_layers
    assert config.dense_width == (12 if dense_layers else 0)


def test_the_name_that_transformers_gives_a_key_is_read_too() -> None:
    renamed = {("num_local_experts" if key == "num_experts" else key): value for key, value in QWEN.items()}
    assert hub.config_from_hub(renamed) == hub.config_from_hub(QWEN)
    with pytest.raises(UsageError, match="unknown keys: num_local_experts"):
        hub.config_from_hub(QWEN | {"num_local_experts": 8})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clip_qkv", 8.0),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1e4}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        ("hidden_act", "gelu"),
        ("partial_rotary_factor", 0.5),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("qkv_bias", True),
        ("shared_expert_intermediate_size", 64),
        ("router_jitter_noise", 0.1),
        ("quantization_config", {"bits": 4}),
        ("a_key_of_tomorrow", 1),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=key):
        hub.config_from_hub(QWEN | {key: value})


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llama", "mlp_bias", True),
        ("llama", "sliding_window", 8),
        ("llama", "num_experts", 4),
        ("mixtral", "attention_bias", True),
        ("mixtral", "mlp_only_layers", [0]),
        ("olmoe", "sliding_window", 8),
        ("olmoe", "decoder_sparse_step", 2),
        ("qwen2_moe", "attention_bias", True),
    ],
)
def test_what_a_family_lacks_is_refused_by_name(family: str, key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=key):
        hub.config_from_hub(FAMILIES[family] | {key: value})


@pytest.mark.parametrize("description", [*FAMILIES.values()], ids=[*FAMILIES])
def test_a_missing_key_is_named(description: dict[str, Any]) -> None:
    optional = {"model_type", *config_keys.IGNORABLE, *config_keys.REQUIRED, *hub.DEFAULTS, "use_sliding_window"}
    optional -= {"shared_expert_intermediate_size"} if description["model_type"] == "qwen2_moe" else set()
    optional |= set() if description["model_type"] == "qwen3" else {"head_dim"}
    optional |= {"intermediate_size"} if description["model_type"].endswith("_moe") else set()
    for key in set(description) - optional:
        with pytest.raises(UsageError, match=f"'{key}' is missing"):
            hub.config_from_hub({name: value for name, value in description.items() if name != key})


def tensors(config: olmoe.Config) -> dict[str, Any]:
    """A checkpoint in bf16 with stacked experts."""
    hidden, width, kv_width = config.hidden, config.heads * config.head_width, config.kv_heads * config.head_width
    shapes = {"model.embed_tokens": (64, hidden), "model.norm": (hidden,), "lm_head": (64, hidden)}
    for layer in range(config.layers):
        parts = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (width, hidden),
            "self_attn.k_proj": (kv_width, hidden),
            "self_attn.v_proj": (kv_width, hidden),
            "self_attn.o_proj": (hidden, width),
            "self_attn.q_norm": (config.head_width,),
            "self_attn.k_norm": (config.head_width,),
            "mlp.gate": (config.experts, hidden),
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    found: dict[str, Any] = {f"{name}.weight": np.full(shape, 0.1, jnp.bfloat16) for name, shape in shapes.items()}
    for layer in range(config.layers):
        experts = f"model.layers.{layer}.mlp.experts"
        found[f"{experts}.gate_up_proj"] = np.full((config.experts, 2 * config.expert_width, hidden), 0.1, jnp.bfloat16)
        found[f"{experts}.down_proj"] = np.full((config.experts, hidden, config.expert_width), 0.1, jnp.bfloat16)
    return found


def test_a_bfloat16_checkpoint_gives_fp32_parameters() -> None:
    config = moe(QWEN)
    params = hub.parameters_from_hub(tensors(config), config)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert jax.tree.map(lambda weight: weight.shape, olmoe.weights(config)) == jax.tree.map(lambda x: x.shape, params)


def test_every_tensor_is_used() -> None:
    config = moe(QWEN)
    whole, norm = tensors(config), "model.norm.weight"
    with pytest.raises(UsageError, match=r"does not use, e\.g\. 'model.layers.0.self_attn.q_proj.bias'"):
        hub.parameters_from_hub(whole | {"model.layers.0.self_attn.q_proj.bias": np.zeros(24, np.float32)}, config)
    with pytest.raises(UsageError, match=f"no tensor '{norm}'"):
        hub.parameters_from_hub({name: value for name, value in whole.items() if name != norm}, config)
    with pytest.raises(UsageError, match=f"'{norm}' has type int8"):
        hub.parameters_from_hub(whole | {norm: np.zeros(16, np.int8)}, config)
    with pytest.raises(UsageError, match=f"'{norm}': the config gives it the shape .16,., but .* has .17,."):
        hub.parameters_from_hub(whole | {norm: np.zeros(17, np.float32)}, config)


def test_a_copy_of_a_tied_embedding_is_accepted_and_anything_else_refused() -> None:
    whole, config = tensors(moe(QWEN)), dataclasses.replace(moe(QWEN), tied_embeddings=True)
    assert "head" not in hub.parameters_from_hub(whole, config)
    other = np.full_like(whole["lm_head.weight"], 0.2)
    with pytest.raises(UsageError, match=r"does not use, e\.g\. 'lm_head.weight'"):
        hub.parameters_from_hub(whole | {"lm_head.weight": other}, config)
