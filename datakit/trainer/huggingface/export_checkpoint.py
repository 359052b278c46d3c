"""Converts a Config and its parameters to a published model's `config.json` and tensors, the inverse of
`import_checkpoint.py`. Nothing is written here.

The tensors have the published layout: one matrix [out, in] for each layer, expert and projection. `transformers` and
the inference engines all read this layout. Tensors are produced one at a time, so an export needs memory for the
parameters, and for one weight of one layer. Values and number types are left as they are, so importing what was
exported gives the same parameters bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from datakit.errors import UsageError
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
from datakit.trainer.models import dense, olmoe
from datakit.trainer.models.weights import Tree


def config_to_hub(config: Config) -> dict[str, Any]:
    """Return the `config.json` of a model. It lacks what a Config does not know: the ids of special tokens, the longest
    sequence (`max_position_embeddings`) and the number type of the tensors.

    Raises UsageError if no published family computes what this model computes.
    """
    model_type = family_of(config)
    family = FAMILIES[model_type]
    description = {
        "architectures": [family.architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "head_dim": config.head_width,
        "rope_theta": config.rope_theta,  # read by releases of transformers before 5
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    }
    if family.bias_key is not None:
        description[family.bias_key] = config.attention_bias != "none"
    if model_type in WITH_DENSE_LAYERS and isinstance(config, olmoe.Config):
        description |= {"mlp_only_layers": list(config.dense_layers), "decoder_sparse_step": 1}
        description |= {"intermediate_size": config.dense_width} if config.dense_layers else {}
    return description | {key: getattr(config, name) for name, key in family.fields.items()}


def family_of(config: Config) -> str:
    """Return the `model_type` that computes what this model computes. Raises UsageError if there is none."""
    if not isinstance(config, dense.Config | olmoe.Config):
        raise UsageError(
            f"{type(config).__module__} cannot be exported: the hub has no model that computes the same; models of the "
            f"kinds dense and olmoe can be exported, as {', '.join(FAMILIES)}"
        )
    families = [name for name, family in FAMILIES.items() if family.model is model_of(config)]
    name = min(families, key=lambda name: len(_differing(config, name)))
    differing = _differing(config, name)
    if differing:
        ours = ", ".join(f"{field} = {getattr(config, field)!r}" for field in differing)
        raise UsageError(
            f"no published model computes what this model computes, so it cannot be exported; the closest is {name}, "
            f"but the model has {ours}, and {name} would need {', '.join(differing.values())}"
        )
    return name


def _differing(config: Config, name: str) -> dict[str, str]:
    """Return the settings that a family cannot express, each with what it would have to be."""
    found = {
        field: f"{field} = {' or '.join(map(repr, values))}"
        for field, values in FAMILIES[name].expresses.items()
        if getattr(config, field) not in values
    }
    if name == "olmoe" and config.heads * config.head_width != config.hidden:
        found["head_width"] = "head_width = hidden / heads"
    if name == "qwen2_moe" and isinstance(config, olmoe.Config) and not config.shared_width:
        found["shared_width"] = "shared_width >= 1"
    return found


def tensors_to_hub(params: Tree, config: Config) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and values of each tensor of the published checkpoint, in the order of the layers.

    params: the parameters, as JAX or numpy arrays. Each tensor is contiguous and has the parameter's number type. A
    model with tied embeddings has no tensor for the head. Raises UsageError if no published family computes what this
    model computes.
    """
    family, table = FAMILIES[family_of(config)], model_of(config).weights(config)
    yield TOP_TENSORS["embed"], np.asarray(params["embed"])
    for stack, place, layer in layers_of(config):
        for name in table[stack]:
            # Fetched whole, since JAX would compile each slice and transposition.
            values = np.asarray(params[stack][name][place])
            for suffix, tensor in _layer_tensors(name, values, family):
                yield f"model.layers.{layer}.{suffix}", tensor
    yield TOP_TENSORS["final_norm"], np.asarray(params["final_norm"])
    if "head" in table:
        yield TOP_TENSORS["head"], np.ascontiguousarray(np.asarray(params["head"]).T)


def _layer_tensors(name: str, values: np.ndarray, family: Family) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors that one weight of one layer becomes: one, or more for matrices that lie side by side."""
    if name in LAYER_TENSORS:
        yield LAYER_TENSORS[name].format(mlp=family.mlp), np.ascontiguousarray(values.T)  # a vector remains as it is
        return
    owner, _, end = name.rpartition("_")
    gate, up, down = family.parts if owner == "expert" else PROJECTIONS
    parts = (gate, up) if end == "in" else (down,)
    if owner != "expert":
        yield from _projections(PROJECTED[owner], values, parts)
        return
    for expert, matrix in enumerate(values):
        yield from _projections(f"{family.mlp}.experts.{expert}", matrix, parts)


def _projections(prefix: str, matrix: np.ndarray, names: tuple[str, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the equal parts of a matrix [in, out], which lie side by side, as tensors [out, in]."""
    width = matrix.shape[1] // len(names)
    for number, name in enumerate(names):
        yield f"{prefix}.{name}.weight", np.ascontiguousarray(matrix[:, number * width : (number + 1) * width].T)
