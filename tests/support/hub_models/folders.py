"""Writes a tiny Qwen3-MoE in the format of the model hub, with the package `safetensors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

DESCRIPTION: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "decoder_sparse_step": 1,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "mlp_only_layers": [],
    "moe_intermediate_size": 12,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 512,
}


def random_tensors(description: dict[str, Any] = DESCRIPTION, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights of a Qwen3-MoE, with separate experts and the hub's names."""
    d, generator = description, np.random.default_rng(seed)
    hidden, width = d["hidden_size"], d["num_attention_heads"] * d["head_dim"]
    kv_width, expert = d["num_key_value_heads"] * d["head_dim"], d["moe_intermediate_size"]
    shapes = {"model.embed_tokens": (d["vocab_size"], hidden), "lm_head": (d["vocab_size"], hidden)}
    ones = {"model.norm": (hidden,)}
    for layer in range(d["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        ones |= {f"{block}.input_layernorm": (hidden,), f"{block}.post_attention_layernorm": (hidden,)}
        ones |= {f"{block}.self_attn.{part}_norm": (d["head_dim"],) for part in "qk"}
        shapes |= {f"{block}.self_attn.q_proj": (width, hidden), f"{block}.self_attn.o_proj": (hidden, width)}
        shapes |= {f"{block}.self_attn.{part}_proj": (kv_width, hidden) for part in "kv"}
        shapes[f"{block}.mlp.gate"] = (d["num_experts"], hidden)
        for number in range(d["num_experts"]):
            one = f"{block}.mlp.experts.{number}"
            shapes |= {f"{one}.gate_proj": (expert, hidden), f"{one}.up_proj": (expert, hidden)}
            shapes[f"{one}.down_proj"] = (hidden, expert)
    drawn = {name: generator.normal(0, 0.3, shape) for name, shape in shapes.items()}
    drawn |= {name: generator.uniform(0.5, 1.5, shape) for name, shape in ones.items()}
    return {f"{name}.weight": value.astype(np.float32) for name, value in sorted(drawn.items())}


def write_folder(
    folder: Path, shards: int = 1, description: dict[str, Any] = DESCRIPTION, tokenizer: bytes | None = None
) -> dict[str, np.ndarray]:
    """Write a model's folder with this number of files, and an index if there is more than one; return the tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(description))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_bytes(tokenizer)
    tensors = random_tensors(description)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return tensors
    names = sorted(tensors)
    files = {f"model-{one + 1:05d}-of-{shards:05d}.safetensors": names[one::shards] for one in range(shards)}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map = {name: file for file, held in files.items() for name in held}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors
