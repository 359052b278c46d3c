"""Converts configs and checkpoints of the model hub (`families.py` lists the families) to the Config and parameters of
`models/olmoe.py` and `models/dense.py`. The input is the parsed `config.json` and a mapping from names to numpy arrays,
e.g. from the `safetensors` package. Experts may also be stacked, as the current `transformers` keeps them in memory.
Memory is needed for the parameters and for one tensor at a time, if the mapping reads tensors when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datakit.errors import UsageError
from datakit.trainer.huggingface.config_keys import check_keys
from datakit.trainer.huggingface.families import (
    FAMILIES,
    LAYER_TENSORS,
    PROJECTED,
    PROJECTIONS,
    TOP_TENSORS,
    WITH_DENSE_LAYERS,
    Config,
    Family,
    layers_of,
    model_of,
)
from datakit.trainer.models.weights import Tree

FLOATS = ("float32", "bfloat16", "float16")  # supported tensor types; quantized tensors would also need their scales
DEFAULTS = {"sliding_window": None, "tie_word_embeddings": False}  # key -> what the published code takes it to be
ALIASES = {"num_experts": "num_local_experts"}  # key -> the name under which some releases of transformers write it


def config_from_hub(description: dict[str, Any], **changes: Any) -> Config:
    """Convert a parsed `config.json` to a Config; `changes` override fields of the Config. Every key is used, known to
    have no effect on training, or refused. Raises UsageError for unsupported models and variants, and for keys that are
    unknown or missing.
    """
    name = description.get("model_type")
    if name not in FAMILIES:
        raise UsageError(f"model_type {name!r} is not supported; use one of {', '.join(FAMILIES)}")
    family, description = FAMILIES[name], _renamed(description, name)
    check_keys(description, family, name)
    values = {field: choices[0] for field, choices in family.expresses.items() if len(choices) == 1}
    values |= {field: _needed(description, key, name) for field, key in family.fields.items()}
    values |= {
        "head_width": _head_width(description, name),
        "attention_bias": _bias(description, family, name),
        "rope_theta": _rope_theta(description, name),
    }
    if name in WITH_DENSE_LAYERS:
        values |= _dense_layers(description, name)
    return family.model.Config(**(values | changes))


def _renamed(description: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a config in which each key in `ALIASES` that the family uses has its usual name."""
    described = dict(description)
    for key, alias in ALIASES.items():
        if key in FAMILIES[name].fields.values() and key not in described and alias in described:
            described[key] = described.pop(alias)
    return described


def _needed(description: dict[str, Any], key: str, family: str) -> Any:
    if description.get(key) is None:
        if key in DEFAULTS:
            return DEFAULTS[key]
        raise UsageError(f"config.json ({family}): {key!r} is missing; add it, with the value of the published model")
    return description[key]


def _head_width(description: dict[str, Any], family: str) -> int:
    if family == "qwen3":  # whose published code has a default of its own
        return _needed(description, "head_dim", family)
    return description.get("head_dim") or description["hidden_size"] // description["num_attention_heads"]


def _bias(description: dict[str, Any], family: Family, name: str) -> str:
    """Return which projections of the attention have a bias. Qwen2-MoE's key was not written by its first releases."""
    if family.bias_key is None:
        return family.expresses["attention_bias"][0]
    return family.expresses["attention_bias"][int(bool(description.get(family.bias_key, name == "qwen2_moe")))]


def _dense_layers(description: dict[str, Any], family: str) -> dict[str, Any]:
    """Return which layers are dense, and their width. A layer has experts if `mlp_only_layers` does not list it, and
    its number, counted from 1, is a multiple of `decoder_sparse_step`.
    """
    step, listed = description.get("decoder_sparse_step") or 1, description.get("mlp_only_layers") or []
    numbers = range(_needed(description, "num_hidden_layers", family))
    dense = tuple(number for number in numbers if number in listed or (number + 1) % step)
    return {"dense_layers": dense, "dense_width": _needed(description, "intermediate_size", family) if dense else 0}


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

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
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

    def into(self, target: np.ndarray, name: str) -> None:
        """Copy one tensor to `target`, transposed if it is a matrix. Raises UsageError if its shape differs."""
        values = self.read(name)
        values = values.swapaxes(-1, -2) if values.ndim > 1 else values
        if values.shape != target.shape:
            expected = target.swapaxes(-1, -2).shape if target.ndim > 1 else target.shape
            raise UsageError(
                f"tensor {name!r}: the config gives it the shape {expected}, but the checkpoint has "
                f"{self.tensors[name].shape}; check that the config belongs to the checkpoint"
            )
        target[...] = values

    def check_all_read(self) -> None:
        """Raise UsageError if a tensor was not read, since the published model then differs from `models/olmoe.py`."""
        if self.unread:
            names = sorted(self.unread)
            raise UsageError(
                f"the checkpoint has {len(names)} tensors that this model does not use, e.g. {names[0]!r}; check that "
                "the config belongs to the checkpoint"
            )


def parameters_from_hub(tensors: Mapping[str, np.ndarray], config: Config) -> Tree:
    """Convert the tensors of a hub checkpoint to fp32 parameters, as `arrays_from_hub` does, on the default device."""
    return jax.tree.map(jnp.asarray, arrays_from_hub(tensors, config))


def arrays_from_hub(tensors: Mapping[str, np.ndarray], config: Config) -> Tree:
    """Convert the tensors of a hub checkpoint, keyed by name, to fp32 numpy arrays. Experts may be separate or stacked.

    Raises UsageError if a tensor is missing, unused, quantized, or of another shape than the config gives it.
    """
    source = _Tensors(tensors)
    # Releases of transformers differ in what they call Mixtral's experts, so the names decide, not the family.
    family = FAMILIES["mixtral" if any(".block_sparse_moe." in name for name in tensors) else "olmoe"]
    params: Tree = jax.tree.map(lambda row: np.empty(row.shape, np.float32), model_of(config).weights(config))
    source.into(params["embed"].T, TOP_TENSORS["embed"])
    source.into(params["final_norm"], TOP_TENSORS["final_norm"])
    if "head" in params:
        source.into(params["head"], TOP_TENSORS["head"])
    elif TOP_TENSORS["head"] in tensors and np.array_equal(tensors[TOP_TENSORS["head"]], params["embed"]):
        source.unread.discard(TOP_TENSORS["head"])  # a copy of the embedding, to which it is tied
    for stack, place, layer in layers_of(config):
        for name, values in params[stack].items():
            _read_layer(source, f"model.layers.{layer}", name, values[place], family)
    source.check_all_read()
    return params


def _read_layer(source: _Tensors, prefix: str, name: str, target: np.ndarray, family: Family) -> None:
    """Fill one weight of one layer from the tensors that hold it."""
    if name in LAYER_TENSORS:
        source.into(target, f"{prefix}.{LAYER_TENSORS[name].format(mlp=family.mlp)}")
        return
    owner, _, end = name.rpartition("_")
    gate, up, down = family.parts if owner == "expert" else PROJECTIONS
    parts = (gate, up) if end == "in" else (down,)
    if owner != "expert":
        _read_projections(source, f"{prefix}.{PROJECTED[owner]}", target, parts)
        return
    prefix = f"{prefix}.{family.mlp}.experts"
    stacked = f"{prefix}.{'gate_up_proj' if end == 'in' else 'down_proj'}"
    if stacked in source.tensors:
        source.into(target, stacked)
        return
    for expert, matrix in enumerate(target):
        _read_projections(source, f"{prefix}.{expert}", matrix, parts)


def _read_projections(source: _Tensors, prefix: str, target: np.ndarray, parts: tuple[str, ...]) -> None:
    """Fill a matrix [in, out] with projections that lie side by side."""
    for part, own in zip(parts, np.split(target, len(parts), axis=1), strict=True):
        source.into(own, f"{prefix}.{part}.weight")
