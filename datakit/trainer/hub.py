"""Converts OLMoE, Mixtral and Qwen3-MoE configs and checkpoints from the model hub to the Config and parameters of
`models/olmoe.py`, and decides which keys of a config are used, ignored or refused. The input is the parsed
`config.json` and a dict of numpy arrays, e.g. from the `safetensors` package. In the hub's checkpoints, matrices are
[out, in], and experts are either separate or stacked. In `models/olmoe.py`, all matrices are [in, out], and all experts
are stacked.
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
FLOATS = ("float32", "bfloat16", "float16")  # supported tensor types; quantized tensors would also need their scales
FIELDS = {  # field of our Config -> key in config.json, for all families
    "vocabulary": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "experts_per_token": "num_experts_per_tok",
    "norm_epsilon": "rms_norm_eps",
    "balance_loss": "router_aux_loss_coef",
}
FAMILY_FIELDS = {
    "olmoe": {"experts": "num_experts", "expert_width": "intermediate_size"},
    "mixtral": {"experts": "num_local_experts", "expert_width": "intermediate_size"},
    "qwen3_moe": {"experts": "num_experts", "expert_width": "moe_intermediate_size"},
}
READ_APART = {"model_type", "head_dim", "norm_topk_prob", "rope_theta", "rope_parameters"}
READ_APART |= {"sliding_window", "use_sliding_window", "layer_types"}
# Keys of config.json, each with the values that `models/olmoe.py` implements. Any other value is refused.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "attention_dropout": (0, None),
    "clip_qkv": (None,),
    "decoder_sparse_step": (1,),
    "hidden_act": ("silu",),
    "mlp_only_layers": ([], None),
    "partial_rotary_factor": (1, None),
    "qkv_bias": (False, None),
    "rope_scaling": (None,),
    "router_jitter_noise": (0, None),
    "shared_expert_intermediate_size": (0, None),
    "tie_word_embeddings": (False,),
}
IGNORABLE = {  # key -> the reason why it does not change what a model computes in training
    "_name_or_path": "where the file came from",
    "architectures": "the class that reads the file; model_type decides",
    "bos_token_id": "the tokenizer's contract has the special tokens",
    "dtype": "parameters are fp32, whatever a file stores",
    "eos_token_id": "the tokenizer's contract has the special tokens",
    "is_decoder": "all three models are decoders",
    "initializer_range": "the weights are read, not drawn",
    "intermediate_size": "width of dense layers, of which a qwen3_moe model that passes the checks has none",
    "max_position_embeddings": "rotary positions have no limit",
    "max_window_layers": "without effect unless use_sliding_window is set, which is refused",
    "output_router_logits": "decides only what the published code returns",
    "pad_token_id": "segments mark padding",
    "torch_dtype": "parameters are fp32, whatever a file stores",
    "transformers_version": "the version that wrote the file",
    "use_cache": "for generation only",
}


def config_from_hub(description: dict[str, Any], **changes: Any) -> olmoe.Config:
    """Convert a parsed `config.json` to a Config; `changes` override fields of the Config. Every key is used, known to
    have no effect on training, or refused. Raises UsageError for unsupported models and variants, and for keys that are
    unknown or missing.
    """
    family = description.get("model_type")
    if family not in FAMILIES:
        raise UsageError(f"model_type {family!r} is not supported; use one of {', '.join(FAMILIES)}")
    keys = FIELDS | FAMILY_FIELDS[family]
    _check_keys(description, set(keys.values()), family)
    values: dict[str, Any] = {field: _needed(description, key, family) for field, key in keys.items()}
    values |= {
        "head_width": description.get("head_dim") or values["hidden"] // values["heads"],
        "query_key_norm": FAMILIES[family],
        "renormalize": True if family == "mixtral" else _needed(description, "norm_topk_prob", family),
        "window": _window(description, family),
        "rope_theta": _rope_theta(description, family),
    }
    return olmoe.Config(**(values | changes))


def _check_keys(description: dict[str, Any], used: set[str], family: str) -> None:
    """Raise UsageError for unsupported values or, if there are none, for unknown keys. The message names them all."""
    refused = {key: description[key] for key in sorted(set(description) & set(REQUIRED))}
    refused = {key: value for key, value in refused.items() if value not in REQUIRED[key]}
    if set(description.get("layer_types") or ["full_attention"]) != {"full_attention"}:
        refused["layer_types"] = description["layer_types"]
    if refused:
        listed = ", ".join(f"{key} = {value!r}" for key, value in refused.items())
        raise UsageError(
            f"config.json ({family}): models/olmoe.py does not support {listed}; use a model without "
            f"{'them' if len(refused) > 1 else 'it'}, or write your own model file"
        )
    unknown = sorted(set(description) - used - READ_APART - set(IGNORABLE) - set(REQUIRED))
    if unknown:
        raise UsageError(
            f"config.json ({family}): unknown keys: {', '.join(unknown)}. Remove each key that does not change what "
            "the model computes; a model with any other unknown key is not supported"
        )


def _needed(description: dict[str, Any], key: str, family: str) -> Any:
    if description.get(key) is None:
        raise UsageError(f"config.json ({family}): {key!r} is missing; add it, with the value of the published model")
    return description[key]


def _window(description: dict[str, Any], family: str) -> int | None:
    """Return the attention window, if any. Raises UsageError for Qwen3's windows, which only some layers have."""
    if family != "qwen3_moe":
        return description.get("sliding_window")
    if description.get("use_sliding_window"):
        raise UsageError(
            f"config.json ({family}): use_sliding_window is set; a window in only some of the layers is not supported"
        )
    return None


def _rope_theta(description: dict[str, Any], family: str) -> float:
    """Return the base of the rotary frequencies. Raises UsageError for scaled or partial rotary embeddings."""
    rope = description.get("rope_parameters")
    if rope is None:
        return _needed(description, "rope_theta", family)
    refused = {key: value for key, value in rope.items() if key not in ("rope_theta", "rope_type")}
    if refused.pop("partial_rotary_factor", 1.0) != 1.0 or refused or rope.get("rope_type", "default") != "default":
        raise UsageError(
            f"config.json ({family}): rope_parameters = {rope!r} is not supported; use a model with unscaled, full "
            'rotary embeddings (rope_type "default"), or write your own model file'
        )
    return _needed(rope, "rope_theta", family)


class _Tensors:
    """Returns a checkpoint's tensors by name, as fp32, and records which of them were never read."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors, self.unread = tensors, {name for name in tensors if not name.endswith("rotary_emb.inv_freq")}

    def read(self, name: str) -> np.ndarray:
        """Return one tensor. Raises UsageError if the tensor is missing, or if its type is not in `FLOATS`."""
        if name not in self.tensors:
            raise UsageError(f"the checkpoint has no tensor {name!r}; check that all of its files were read")
        tensor = self.tensors[name]
        if tensor.dtype.name not in FLOATS:
            raise UsageError(
                f"tensor {name!r} has type {tensor.dtype.name}; use a checkpoint whose tensors have one of the types "
                f"{', '.join(FLOATS)}"
            )
        self.unread.discard(name)
        return tensor.astype(np.float32)

    def check_all_read(self) -> None:
        """Raise UsageError if a tensor was not read, since the published model then differs from `models/olmoe.py`."""
        if self.unread:
            names = sorted(self.unread)
            raise UsageError(
                f"the checkpoint has {len(names)} tensors that this model does not use, e.g. {names[0]!r}; check that "
                "the config belongs to the checkpoint"
            )


def parameters_from_hub(tensors: dict[str, np.ndarray], config: olmoe.Config) -> Tree:
    """Convert the tensors of a hub checkpoint, keyed by name, to fp32 parameters. Experts may be separate or stacked.

    Raises UsageError if a tensor is missing, unused, or quantized.
    """
    source = _Tensors(tensors)
    mlp = "block_sparse_moe" if any("block_sparse_moe" in name for name in tensors) else "mlp"

    def stacked(name: str, transpose: bool = True) -> Array:
        layers = [source.read(f"model.layers.{layer}.{name}.weight") for layer in range(config.layers)]
        return jnp.asarray(np.stack([value.T if transpose else value for value in layers]))

    pairs = (_experts(source, f"model.layers.{layer}.{mlp}.experts", config) for layer in range(config.layers))
    expert_in, expert_out = zip(*pairs, strict=True)
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
    params = {
        "embed": jnp.asarray(source.read("model.embed_tokens.weight")),
        "blocks": blocks,
        "final_norm": jnp.asarray(source.read("model.norm.weight")),
        "head": jnp.asarray(source.read("lm_head.weight").T),
    }
    source.check_all_read()
    return params


def _experts(source: _Tensors, prefix: str, config: olmoe.Config) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of one layer's experts, [E, D, 2 I] and [E, I, D], from stacked or separate tensors."""
    if f"{prefix}.gate_up_proj" in source.tensors:
        both, down = (source.read(f"{prefix}.{part}").swapaxes(1, 2) for part in ("gate_up_proj", "down_proj"))
        return both, down
    names = ("w1", "w2", "w3") if "block_sparse_moe" in prefix else ("gate_proj", "down_proj", "up_proj")
    each = [[source.read(f"{prefix}.{e}.{part}.weight").T for part in names] for e in range(config.experts)]
    both = np.stack([np.concatenate([gate, up], axis=1) for gate, _, up in each])
    return both, np.stack([down for _, down, _ in each])
