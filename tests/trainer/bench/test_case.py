"""A case whose options contradict each other, or one of which would have no effect, is refused; FLOPs are as stated."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from datakit.errors import UsageError
from datakit.trainer.bench.case import Case, matrix

FORWARD: dict[str, Any] = {"passes": "forward", "implementation": "fused"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "triton"}, "backend is 'triton'; use one of auto, tiles"),
        ({"tokens": 0}, "tokens is 0; use at least 1"),
        ({"choices": 9}, "choices must be at most experts"),
        ({"implementation": "fused", "backend": "tiles"}, "implementation fused needs the backend ragged or tokamax"),
        ({"packing": "argsort"}, "packing argsort has no effect with the implementation production"),
        ({"shared_fused": True}, "shared_fused has no effect"),
        ({"shared": 8, "shared_fused": True}, "shared_fused has no effect"),
        ({"queue": "prequeue", "implementation": "fused"}, "queue prequeue needs passes forward"),
        ({"passes": "forward", "remat": "expert_mlp"}, "remat expert_mlp has no effect on a forward pass"),
        ({"remat": "combine"}, "remat combine has no effect with the implementation production"),
        ({"capacity": 1.0}, "capacity and policy have an effect only together"),
        ({"policy": "drop"}, "capacity and policy have an effect only together"),
        ({"policy": "pad", "capacity": 1.0}, "policy pad needs the implementation fused"),
        ({"quantization": "int8_all"}, "has the effect of int8_routed without shared"),
        ({"stages": True}, "stages needs passes forward"),
        ({"devices": 2}, "devices and parallel have an effect only together"),
        ({"parallel": "staged"}, "devices and parallel have an effect only together"),
        ({"parallel": "data", "devices": 2, **FORWARD}, "parallel data needs the implementation production"),
        ({"exchange": "ring"}, "exchange ring has no effect with parallel none"),
        ({"parallel": "staged", "devices": 3}, "needs a number of experts that devices divides"),
        ({"expert_parallel": -1}, "must not be negative"),
        ({"expert_parallel": 2}, "expert_parallel 2 has no effect with parallel none"),
        (
            {"parallel": "data", "devices": 4, "expert_parallel": 2},
            "expert_parallel 2 has no effect with parallel data",
        ),
        ({"parallel": "staged", "devices": 4, "expert_parallel": 1}, "nothing to exchange; use parallel data"),
        ({"parallel": "staged", "devices": 4, "expert_parallel": 8}, r"must be a divisor of devices \(4\)"),
        (
            {"parallel": "staged", "devices": 6, "tokens": 6, "expert_parallel": 3},
            "needs a number of experts that expert_parallel divides",
        ),
        ({"parallel": "overlapped", "devices": 2, "tokens": 6}, "tokens must be a multiple of 4"),
    ],
)
def test_an_option_without_effect_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Case(**options)


def test_the_experts_need_not_be_shared_by_all_devices() -> None:
    """With 4 experts, 8 devices can measure expert parallelism of 2 and of 4."""
    cases = matrix({"experts": [4], "parallel": ["staged"], "devices": [8], "expert_parallel": [2, 4]})
    assert [case.expert_devices for case in cases] == [2, 4]
    assert Case(parallel="staged", devices=8).expert_devices == 8
    assert Case(parallel="data", devices=8).expert_devices == Case().expert_devices == 1


def test_a_matrix_has_every_combination_and_refuses_it_if_one_is_impossible() -> None:
    cases = matrix({"choices": [1, 2], "distribution": ["random", "runs"]})
    assert [(case.choices, case.distribution) for case in cases] == [
        (1, "random"),
        (1, "runs"),
        (2, "random"),
        (2, "runs"),
    ]
    with pytest.raises(UsageError, match="packing argsort has no effect"):
        matrix({"implementation": ["fused", "production"], "packing": ["argsort"]})


def test_flops_are_those_of_the_useful_products() -> None:
    """The published seed row: 32,768 tokens at 619,304 tokens/s are 192.87 TF/s on all devices together."""
    case = Case(32768, 2048, 1408, 60, 2, shared=5632, dtype="bfloat16")
    forward = dataclasses.replace(case, passes="forward")
    assert forward.flops == 6 * 32768 * 2048 * (1408 * 2 + 5632)
    assert case.flops == 3 * forward.flops
    assert case.flops * 619_304 / 32768 == pytest.approx(192.87e12, rel=1e-3)
    padded = dataclasses.replace(forward, shared=0, implementation="fused", capacity=2.0, policy="pad")
    assert padded.flops == 6 * 2048 * 1408 * 60 * padded.per_expert >= 2 * 6 * 2048 * 1408 * 32768 * 2
