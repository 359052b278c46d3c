"""Exporting an imported checkpoint gives the same tensors, bit for bit, in the published layout."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import UsageError
from datakit.trainer.huggingface.export_checkpoint import config_to_hub, tensors_to_hub
from datakit.trainer.huggingface.families import FAMILIES, Config, Family, model_of
from datakit.trainer.huggingface.import_checkpoint import config_from_hub, parameters_from_hub
from datakit.trainer.models import dense, grug, olmoe
from datakit.trainer.models.weights import Tree, leaves


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Tiny models of every family."""
    family = FAMILIES[draw(st.sampled_from([*FAMILIES]))]
    size = st.integers(1, 3)
    kv_heads, half = draw(size), draw(size)
    heads = kv_heads * draw(size)
    whole = family.expresses["query_key_norm"] == ("whole",)
    values: dict[str, Any] = {field: draw(st.sampled_from(choices)) for field, choices in family.expresses.items()}
    values |= {
        "vocabulary": draw(st.integers(1, 9)),
        "hidden": heads * 2 * half if whole else draw(st.integers(1, 9)),
        "layers": draw(st.integers(1, 5)),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_width": 2 * half,
        "tied_embeddings": draw(st.booleans()),
        "rope_theta": draw(st.sampled_from([1e4, 5e5])),
        "norm_epsilon": draw(st.sampled_from([1e-5, 1e-6])),
    }
    if family.model is dense:
        return dense.Config(**values, width=draw(size))
    return olmoe.Config(**(_mixture(draw, family, values["layers"]) | values))


def _mixture(draw: st.DrawFn, family: Family, layers: int) -> dict[str, Any]:
    """The settings of a mixture; those that the family fixes are overridden."""
    experts = draw(st.integers(1, 4))
    dense_layers = draw(st.sets(st.integers(0, layers - 1), max_size=layers - 1))
    dense_layers = () if "dense_layers" in family.expresses else tuple(sorted(dense_layers))
    return {
        "experts": experts,
        "experts_per_token": draw(st.integers(1, experts)),
        "expert_width": draw(st.integers(1, 3)),
        "shared_width": draw(st.integers(1, 3)),
        "dense_layers": dense_layers,
        "dense_width": draw(st.integers(1, 3)) if dense_layers else 0,
        "renormalize": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 3)),
        "balance_loss": draw(st.sampled_from([0.0, 0.01])),
    }


def random_parameters(config: Config) -> Tree:
    """Parameters with a value of its own at every place, so that no mistaken order goes unseen."""
    generator = np.random.default_rng(0)
    return {
        path: {name: generator.normal(size=row.shape).astype(np.float32) for name, row in part.items()}
        if isinstance(part, dict)
        else generator.normal(size=part.shape).astype(np.float32)
        for path, part in model_of(config).weights(config).items()
    }


@settings(max_examples=60, deadline=None)
@given(config=configs())
def test_import_after_export_changes_no_bit(config: Config) -> None:
    params = random_parameters(config)
    description, exported = config_to_hub(config), dict(tensors_to_hub(params, config))
    assert config_from_hub(description) == config
    imported = parameters_from_hub(exported, config)
    assert leaves(imported).keys() == leaves(params).keys()
    for path, values in leaves(params).items():
        np.testing.assert_array_equal(leaves(imported)[path], values, err_msg=path)
    again = dict(tensors_to_hub(jax.tree.map(np.asarray, imported), config))  # as JAX arrays: test_goldens.py
    assert [*again] == [*exported]
    for name, values in exported.items():
        assert values.flags.c_contiguous
        np.testing.assert_array_equal(again[name], values, err_msg=name)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (
            olmoe.Config(query_key_norm="none", window=4),
            "closest is mixtral, .* has renormalize = False, .* renormalize = True",
        ),
        (olmoe.Config(window=4), "closest is olmoe, .* has window = 4, and olmoe would need window = None"),
        (olmoe.Config(head_width=6), "closest is olmoe, .* has head_width = 6, .* head_width = hidden / heads"),
        (olmoe.Config(query_key_norm="head", attention_bias="qkv"), "closest is qwen3_moe, .* attention_bias = 'none'"),
        (olmoe.Config(query_key_norm="none", attention_bias="qkv"), "closest is qwen2_moe, .* shared_width >= 1"),
        (dense.Config(activation="relu"), "closest is llama, .* has activation = 'relu', .* activation = 'swiglu'"),
        (grug.Config(), "datakit.trainer.models.grug cannot be exported: .* kinds dense and olmoe"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__module__.rpartition(".")[2],
)
def test_what_no_published_model_computes_is_not_exported(config: Any, found: str) -> None:
    with pytest.raises(UsageError, match=found):
        config_to_hub(config)


def test_one_tensor_is_made_at_a_time() -> None:
    sizes: dict[str, Any] = {
        "vocabulary": 8,
        "hidden": 4,
        "layers": 3,
        "heads": 2,
        "kv_heads": 1,
        "head_width": 2,
        "experts": 2,
    }
    config = olmoe.Config(**sizes, experts_per_token=1, expert_width=3, query_key_norm="head")
    params = random_parameters(config)
    found = tensors_to_hub(params, config)
    assert next(found)[0] == "model.embed_tokens.weight"
    del params["final_norm"]  # the last tensors are not touched before they are asked for
    names = [name for name, _ in zip(found, range(10), strict=False)]
    assert "model.layers.0.self_attn.q_proj.weight" in [name for name, _ in names]
