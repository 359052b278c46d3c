"""Every variant of the layer computes what the oracle computes, and a row says what was measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest

from datakit.errors import DatakitError, UsageError
from datakit.trainer.bench import measure as measuring
from datakit.trainer.bench.case import Case
from datakit.trainer.bench.measure import Settings, difference, measure, mesh_of
from datakit.trainer.models.weights import current_mesh

TINY = Case(tokens=32, hidden=8, width=8, experts=4, choices=2)
ONCE = Settings(rounds=2, warmup=1)
GROUPED: dict[str, Any] = {"implementation": "fused", "backend": "ragged"}
DROPPING: dict[str, Any] = {"policy": "drop", "capacity": 0.75, "backend": "tiles"}
VARIANTS: list[dict[str, Any]] = [
    {"backend": "tiles", "shared": 8},
    {"implementation": "baseline", "shared": 8},
    {"implementation": "preweight", "distribution": "skewed"},
    {"implementation": "fused_preweight", "packing": "argsort"},
    {"implementation": "scatter", "packing": "tuple_sort", "distribution": "runs"},
    {**GROUPED, "packing": "score_sort", "shared": 8, "shared_fused": True},
    {**GROUPED, "passes": "forward", "queue": "prequeue"},
    {**GROUPED, "remat": "expert_mlp"},
    {**GROUPED, "remat": "combine"},
    {**GROUPED, "quantization": "int8_all", "shared": 8},
    {"quantization": "int8_weights", "backend": "tiles"},
    {**GROUPED, "policy": "pad", "capacity": 1.0},
    DROPPING,
    {"parallel": "data", "devices": 2, "backend": "tiles"},
    {"parallel": "staged", "devices": 2, "backend": "tiles", "exchange": "ring"},
    {
        "parallel": "staged",
        "devices": 4,
        "backend": "tiles",
        "exchange": "all_to_all",
        "capacity": 1.0,
        "policy": "drop",
    },
    {"parallel": "overlapped", "devices": 2, "backend": "tiles"},
    {"parallel": "overlapped", "devices": 4, "expert_parallel": 2, "backend": "tiles"},
    {
        "parallel": "staged",
        "devices": 8,
        "expert_parallel": 2,
        "backend": "tiles",
        "exchange": "all_to_all",
        "capacity": 1.0,
        "policy": "drop",
    },
]


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(map(str, options.values())))
def test_every_variant_computes_what_the_oracle_computes(options: dict[str, Any]) -> None:
    assert difference(dataclasses.replace(TINY, **options)) < 1e-5


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = measuring.oracle
    monkeypatch.setattr(measuring, "oracle", lambda case: lambda *given: wrong(case)(*given) + 1)
    with pytest.raises(DatakitError, match=r"differs from the oracle's by .*; it is not timed"):
        measure(dataclasses.replace(TINY, passes="forward"), ONCE)


def test_a_row_says_what_was_measured() -> None:
    case = dataclasses.replace(TINY, **GROUPED, passes="forward", stages=True, policy="drop", capacity=0.5)
    row = measure(case, dataclasses.replace(ONCE, trace=True))
    assert row["seconds_p10"] <= row["seconds"] <= row["seconds_p90"]
    assert row["tokens_per_second"] == pytest.approx(32 / row["seconds"])
    assert row["tflops_per_device"] == pytest.approx(case.flops / row["seconds"] / 1e12)
    assert row["percent_of_peak"] == pytest.approx(100 * row["tflops_per_device"] / row["peak_tflops"])
    assert row["share_of_roofline"] == pytest.approx(row["roofline_seconds"] / row["seconds"])
    assert row["dropped"] >= 0.5
    assert all(row[f"seconds_{stage}"] > 0 for stage in ("sort", "pack", "up", "down", "combine"))
    shares = [row[f"share_{part}"] for part in ("compute", "communication", "copy", "host")]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert (row["backend_used"], row["device"], row["rounds"]) == ("ragged", "cpu", 2)


def test_a_trace_shows_what_an_exchange_takes() -> None:
    """Each device gathers tokens and scatters sums, and does not compute meanwhile. Alone, it exchanges nothing."""
    larger = dataclasses.replace(TINY, tokens=256, hidden=64, backend="tiles")
    traced = dataclasses.replace(ONCE, trace=True)
    row = measure(dataclasses.replace(larger, parallel="staged", devices=2), traced)
    assert row["share_communication"] > 0.05
    assert 0 <= row["share_overlapped"] <= row["share_compute"]
    assert measure(larger, traced)["share_communication"] == 0


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"parallel": "data"}, (8, 1)),
        ({"parallel": "staged"}, (1, 8)),
        ({"parallel": "staged", "expert_parallel": 2}, (4, 2)),
        ({"parallel": "overlapped", "expert_parallel": 4}, (2, 4)),
    ],
)
def test_as_many_devices_share_the_experts_as_the_case_says(options: dict[str, Any], shape: tuple[int, int]) -> None:
    with mesh_of(Case(devices=8, **options)):
        mesh = current_mesh()
        assert (mesh.shape["data"], mesh.shape["expert"]) == shape


def test_missing_devices_are_named() -> None:
    with pytest.raises(UsageError, match="16 devices are needed, but this machine has 8"):
        measure(Case(tokens=32, experts=16, parallel="staged", devices=16), ONCE)


def test_quantization_changes_the_result() -> None:
    plain, rounded = TINY, dataclasses.replace(TINY, quantization="int8_routed")
    results = [measuring.prepared(case) for case in (plain, rounded)]
    (one, _), (other, _) = (function(*inputs) for inputs, function in results)
    assert 0 < abs(float(one) - float(other)) < 0.1 * float(jnp.abs(one))


def test_only_some_tokens_are_compared_with_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[int]()

    def difference(case: Case) -> float:
        compared.append(case.tokens)
        return 1.0

    monkeypatch.setattr(measuring, "CHECKED_TOKENS", 10)
    monkeypatch.setattr(measuring, "difference", difference)
    for case in (TINY, dataclasses.replace(TINY, parallel="data", devices=4), dataclasses.replace(TINY, tokens=8)):
        with pytest.raises(DatakitError, match="it is not timed"):
            measure(case, ONCE)
    assert compared == [10, 8, 8]
