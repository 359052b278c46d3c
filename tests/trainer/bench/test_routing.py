"""Routings have the load and the runs that their names promise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from datakit.trainer.bench.case import Case, Distribution
from datakit.trainer.bench.routing import described, sample

CASE = Case(tokens=4096, experts=16, choices=4)


@pytest.mark.parametrize("distribution", ["random", "runs", "skewed"])
def test_each_token_has_different_experts_and_shares_that_sum_to_one(distribution: Distribution) -> None:
    case = dataclasses.replace(CASE, distribution=distribution)
    routed, again = sample(case), sample(case)
    assert all(len(set(row)) == 4 for row in routed.expert.tolist())
    np.testing.assert_allclose(routed.share.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(routed.expert, again.expert)


def test_distributions_differ_in_load_and_runs() -> None:
    found = {
        name: described(sample(dataclasses.replace(CASE, distribution=name)).expert, 16)
        for name in ("random", "runs", "skewed")
    }
    assert found["random"]["run_mean"] < 1.2
    assert found["runs"]["run_mean"] > 20
    assert found["random"]["load_cv"] < 0.1
    assert found["skewed"]["load_cv"] > 0.3
    assert found["skewed"]["load_max"] > 2 * found["skewed"]["load_min"]
