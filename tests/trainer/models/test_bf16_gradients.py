"""On real text, bf16 gradients are close to fp32 gradients if both runs choose the same experts."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.data import need_data

pytest.importorskip("tokenizers")
from benchmarks.trainer import bf16_gradients


@pytest.mark.soak  # compiles four gradients; benchmarks/trainer/bf16_gradients.py measures a larger model
def test_bf16_gradients_are_close_to_fp32_on_real_text() -> None:
    first, second = (
        batch for batch, _ in zip(bf16_gradients.batches(need_data(), rows=8, length=64), range(2), strict=False)
    )
    config = dataclasses.replace(bf16_gradients.CONFIG, hidden=64, layers=2, head_width=16, window=64)
    params, state = bf16_gradients.trained(dataclasses.replace(config, compute="float32"), [first])
    rows = bf16_gradients.measure(config, params, state, second)
    assert {"embed", "final_norm", "blocks/attention_norm", "blocks/router", "head"} <= {row.weight for row in rows}
    assert {row.weight: row.fixed for row in rows if row.fixed > row.limit} == {}
    assert {row.weight: row.summed for row in rows if row.summed > 0.01} == {}
    assert all(row.norm > 0 for row in rows)
