"""Sizes and predictions are the published ones."""

from __future__ import annotations

import pytest

from datakit.errors import UsageError
from datakit.trainer.models import grug
from datakit.trainer.models.weights import parameter_count
from datakit.trainer.sizes import scaling

PUBLISHED = [
    # budget, hidden, layers, heads, kv, F, tokens, batch, steps, adam, adamh, beta2, total, active
    (1e18, 512, 6, 4, 1, 8.7196e7, 3.8228e9, 64, 14583, 0.00265, 0.01148, 0.99800, 0.293e9, 0.151e9),
    (1e18, 768, 8, 6, 1, 2.0899e8, 1.5949e9, 32, 12168, 0.00206, 0.00895, 0.99900, 0.679e9, 0.254e9),
    (1e18, 1024, 11, 8, 2, 4.5236e8, 7.3687e8, 32, 5622, 0.00231, 0.01000, 0.99900, 1.441e9, 0.402e9),
    (1e19, 1024, 11, 8, 2, 4.5236e8, 7.3687e9, 128, 14055, 0.00241, 0.01046, 0.99601, 1.441e9, 0.402e9),
    (3e19, 1536, 16, 12, 3, 1.2764e9, 7.8347e9, 128, 14943, 0.00204, 0.00886, 0.99601, 4.241e9, 0.843e9),
    (3e20, 2048, 21, 16, 4, 2.7401e9, 3.6495e10, 1024, 8701, 0.00338, 0.01463, 0.96849, 9.492e9, 1.565e9),
    (1e21, 2560, 26, 20, 5, 5.0245e9, 6.6342e10, 1024, 15817, 0.00263, 0.01139, 0.96849, 17.99e9, 2.66e9),
    (1e23, 5120, 49, 40, 10, 3.371e10, 9.888e11, 16384, 14735, 0.00381, 0.01651, 0.95, 131.8e9, 16.24e9),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=[f"{row[0]:.0e}-{row[1]}" for row in PUBLISHED])
def test_sizes_are_the_published_ones(row: tuple[float, ...]) -> None:
    plan = scaling.size(row[0], int(row[1]))
    model, rates = plan.model, plan.optimizer
    assert (model.layers, model.heads, model.kv_heads, plan.batch) == (row[2], row[3], row[4], row[7])
    ours = (
        grug.flops_per_token(model, 4096, with_head=False),
        plan.tokens,
        plan.steps,
        rates.adam_learning_rate,
        rates.learning_rate,
        rates.beta2,
        parameter_count(grug.weights(model)),
        grug.active_parameters(model),
    )
    assert ours == pytest.approx((row[5], row[6], *row[8:]), rel=5e-3)


def test_predictions_are_the_published_ones() -> None:
    assert scaling.predict(1e21).macro_loss == pytest.approx(2.606, abs=1e-3)
    assert scaling.predict(1e23).macro_loss == pytest.approx(2.252, abs=1e-3)
    assert scaling.predict(1e21).bits_per_byte == pytest.approx(0.792, abs=2e-3)
    assert scaling.size(1e22, 3072).critical_batch == pytest.approx(6425, rel=5e-3)
    assert scaling.predict(1e15).extrapolated


def test_plans_warn_above_the_critical_batch_size() -> None:
    assert any("critical batch size" in warning for warning in scaling.size(1e23, 5120).warnings)
    assert scaling.size(1e19, 1024).warnings == []
    assert any(line.startswith("warning") for line in scaling.size(1e23, 5120).lines())


def test_another_base_of_beta2_is_an_option() -> None:
    assert scaling.size(1e19, 1024, beta2_base=0.998).optimizer.beta2 == pytest.approx(0.998**4)
    assert scaling.size(1e18, 512, beta2_base=0.998).optimizer.beta2 == pytest.approx(0.998**2)


def test_impossible_budgets_and_widths_are_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 128"):
        scaling.size(1e19, 1000)
    with pytest.raises(UsageError, match="is too small"):
        scaling.size(0, 1024)
