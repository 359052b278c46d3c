"""Decides which keys of a published `config.json` are used, known to have no effect, or refused by name."""

from __future__ import annotations

from typing import Any

from datakit.errors import UsageError
from datakit.trainer.huggingface.families import WITH_DENSE_LAYERS, Family

READ_APART = {"model_type", "head_dim", "rope_theta", "rope_parameters", "layer_types"}
READ_APART |= {"sliding_window", "use_sliding_window"}
DENSE_LAYER_KEYS = {"mlp_only_layers", "decoder_sparse_step", "intermediate_size"}
# Keys of config.json, each with the values that our models implement. Any other value is refused, unless the family's
# fields in `families.py` include the key.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "attention_dropout": (0, None),
    "clip_qkv": (None,),
    "decoder_sparse_step": (1,),
    "hidden_act": ("silu",),
    "mlp_bias": (False, None),
    "mlp_only_layers": ([], None),
    "partial_rotary_factor": (1, None),
    "qkv_bias": (False, None),
    "rope_scaling": (None,),
    "router_jitter_noise": (0, None),
    "shared_expert_intermediate_size": (0, None),
}
IGNORABLE = {  # key -> the reason why it does not change what a model computes in training
    "_name_or_path": "where the file came from",
    "architectures": "the class that reads the file; model_type decides",
    "bos_token_id": "the tokenizer's contract has the special tokens",
    "dtype": "parameters are fp32, whatever a file stores",
    "eos_token_id": "the tokenizer's contract has the special tokens",
    "is_decoder": "all these models are decoders",
    "initializer_range": "the weights are read, not drawn",
    "max_position_embeddings": "rotary positions have no limit",
    "max_window_layers": "without effect unless use_sliding_window is set, which is refused",
    "output_router_logits": "decides only what the published code returns",
    "pad_token_id": "segments mark padding",
    "pretraining_tp": "decides only in which order Llama's matrix products were summed",
    "torch_dtype": "parameters are fp32, whatever a file stores",
    "transformers_version": "the version that wrote the file",
    "use_cache": "for generation only",
}


def _used(family: Family, name: str) -> set[str]:
    """Return the keys that decide fields of the Config."""
    used = {*family.fields.values(), *([family.bias_key] if family.bias_key else [])}
    return used | (DENSE_LAYER_KEYS if name in WITH_DENSE_LAYERS else set())


def check_keys(description: dict[str, Any], family: Family, name: str) -> None:
    """Raise UsageError for unsupported values or, if there are none, for unknown keys. The message names them all."""
    used = _used(family, name)
    refused = {key: description[key] for key in sorted(set(description) & set(REQUIRED) - used)}
    refused = {key: value for key, value in refused.items() if value not in REQUIRED[key]}
    if set(description.get("layer_types") or ["full_attention"]) != {"full_attention"}:
        refused["layer_types"] = description["layer_types"]
    if description.get("use_sliding_window"):  # a window in only some of the layers
        refused["use_sliding_window"] = description["use_sliding_window"]
    # Without `use_sliding_window`, Qwen models ignore `sliding_window`.
    if "sliding_window" not in used and "use_sliding_window" not in description and description.get("sliding_window"):
        refused["sliding_window"] = description["sliding_window"]
    if refused:
        listed = ", ".join(f"{key} = {value!r}" for key, value in refused.items())
        raise UsageError(
            f"config.json ({name}): our models do not support {listed}; use a model without "
            f"{'them' if len(refused) > 1 else 'it'}, or write your own model file"
        )
    unknown = sorted(set(description) - used - READ_APART - set(IGNORABLE) - set(REQUIRED))
    if unknown:
        raise UsageError(
            f"config.json ({name}): unknown keys: {', '.join(unknown)}. Remove each key that does not change what "
            "the model computes; a model with any other unknown key is not supported"
        )
