"""The checks that need a GPU, as far as a CPU can run them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from benchmarks.trainer import gpu_check, grouped_products, step_vs_transformers, training_speed
from benchmarks.trainer.moe_layer import Shape
from datakit.errors import UsageError
from tests.support.trainer.expert_backends import SMALL, install_broken_tokamax


def test_the_gpu_check_goes_on_after_an_unusable_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_broken_tokamax(tmp_path, monkeypatch)
    found = gpu_check.check_backends(["tokamax", "tiles"], SMALL)
    assert "needed_by_tokamax" in found["tokamax"]["failed"]
    assert found["tiles"]["error"] < 6e-2
    assert found["tiles"]["dense_buffers"] == []


def test_the_gpu_check_compares_attention_with_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpu_check.check_attention(length=128, heads=2, kv_heads=1, width=16)
    assert found["backend"] == "blocked"
    assert 0 < found["error"] < 6e-2
    assert "failed" not in found

    def refuse(*_: Any) -> None:
        raise NotImplementedError("no kernel for this width")

    monkeypatch.setattr(gpu_check, "attention", refuse)
    assert gpu_check.check_attention()["failed"] == "no kernel for this width"


@pytest.mark.soak
def test_the_gpu_check_measures_training_speed() -> None:
    """Measure a few steps of the sized model as `make gpu-check` does."""
    found = training_speed.train_speed(sequences=8, length=32, steps=3, flops=1e14, hidden=128)
    assert found["model"]["experts"] == 64
    assert found["tokens_per_second"] == pytest.approx(8 * 32 / found["seconds"])
    assert found["mfu"] is None  # a CPU has no agreed peak
    assert training_speed.described(found).split()[:2] == ["1e+14", "128"]
    assert sum(found["shares"].values()) == pytest.approx(1, abs=0.01)


TINY = Shape(tokens=64, hidden=32, width=16, experts=4, choices=2)


def test_grouped_products_are_measured_beside_dense_ones(capsys: pytest.CaptureFixture[str]) -> None:
    rows = gpu_check.checked_products(TINY, rounds=3, backend="ragged", dtype="float32")
    assert [(row["product"], row["pass"], row["goal"]) for row in rows] == [
        (which, *goal) for which in ("in", "out") for goal in [("forward", 0.92), ("dlhs", 0.85), ("drhs", 0.85)]
    ]
    for row in rows:
        assert row["of_dense"] == pytest.approx(row["dense_milliseconds"] / row["milliseconds"])
        assert row["error"] < 1e-4
    assert capsys.readouterr().out.count("of dense (goal") == 6


def test_a_grouped_product_and_its_dense_one_have_equal_flops() -> None:
    for product in grouped_products.products_of(TINY).values():
        given = grouped_products.arrays_of(product, TINY.experts, "float32")
        for name, (left, right) in given.items():
            other = right if name == "drhs" else right[0]
            multiplied = left.shape[0] * left.shape[1] * other.shape[1 if name != "dlhs" else 0]
            assert 2 * multiplied == product.flops
            assert grouped_products.DENSE[name](left, other).ndim == 2


def test_a_product_with_wrong_results_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend like a kernel that gives an expert without rows the gradient of other rows."""
    true = grouped_products.passes_of("ragged")
    wrong = {**true, "drhs": lambda *given: true["drhs"](*given).at[1].add(1.0)}
    monkeypatch.setattr(grouped_products, "passes_of", lambda _: wrong)
    rows = grouped_products.measure_products(TINY, "ragged", "float32", rounds=1)
    failed = {(row["product"], row["pass"]) for row in rows if "failed" in row}
    assert failed == {("in", "drhs"), ("out", "drhs")}
    assert "differs from a loop over experts" in grouped_products.described(rows[2])


def test_a_product_that_has_no_kernel_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise NotImplementedError("no kernel\nat all")

    monkeypatch.setattr(grouped_products, "measure_products", refuse)
    assert gpu_check.checked_products(TINY, 1)[0]["failed"] == "NotImplementedError: no kernel"


def test_sizes_that_do_not_fit_are_rows_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    errors = {2: JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), 3: UsageError("needs 90 GB of 60 GB")}
    good = {"parameters": 2e9, "batch": [2, 4], "seconds": 0.5, "tokens_per_second": 16.0, "mfu": 41.0}
    good |= {"shares": {"compute": 0.9, "host": 0.1}, "peak_memory_gib": 3.0}

    def measure(flops: float, hidden: int) -> dict[str, Any]:
        if hidden in errors:
            raise errors[hidden]
        return {"flops": flops, "hidden": hidden, **good}

    rows = training_speed.speeds([(1e18, 1), (1e19, 2), (1e20, 3)], measure)
    assert [row.get("failed") for row in rows] == [None, *map(str, errors.values())]
    printed = capsys.readouterr().out.splitlines()
    lines = printed[:3]
    assert printed[3:] == [training_speed.HEADER, *lines]
    assert ["41.0 %" in lines[0], "RESOURCE" in lines[1], "90 GB" in lines[2]] == [True] * 3
    assert len(training_speed.SIZES) >= 3


def test_the_gpu_check_fails_if_a_product_is_wrong_or_nothing_trains() -> None:
    good = {"default": "tokamax", "backends": {"tokamax": {}}, "attention": {}, "layers": [], "products": [{}]}
    assert gpu_check.passed({**good, "training": [{"failed": "memory"}, {}]})
    assert not gpu_check.passed({**good, "training": [{"failed": "memory"}]})
    assert not gpu_check.passed({**good, "training": [{}], "products": [{}, {"failed": "wrong"}]})


def test_without_a_peer_the_comparison_is_left_out() -> None:
    assert "--python" in gpu_check.beside_transformers(None)["left_out"]


PEER = """
import json, sys
sizes = json.loads(input())
assert (sizes["device"], sizes["dtype"]) == ("cpu", "float32"), sizes
print(json.dumps({"parameters": 1}), flush=True)
for line in sys.stdin:
    print(json.dumps({"wall": 1.0, "cpu": 2.0, "loss": float(line)}), flush=True)
"""


def test_a_step_is_compared_with_that_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for `transformers` takes a second for each turn."""
    (tmp_path / "peer.py").write_text(PEER)
    monkeypatch.setattr(step_vs_transformers, "SCRIPT", tmp_path / "peer.py")
    sizes = step_vs_transformers.Sizes(
        vocabulary=64, hidden=16, layers=1, heads=2, width=8, experts=4, rows=2, length=8
    )
    row = step_vs_transformers.compare(Path(sys.executable), sizes, rounds=2, steps=3)
    assert row["wall"]["theirs"] == 2 * 8 * 3
    assert row["wall"]["ratio"] == pytest.approx(row["wall"]["ours"] / 48)
    assert row["losses"][1] == 3
    assert "ratio" in step_vs_transformers.described(row)


def test_without_a_gpu_the_comparison_on_cuda_is_refused(tmp_path: Path) -> None:
    sizes = step_vs_transformers.GPU_SIZES
    with pytest.raises(SystemExit, match="not on cuda"):
        step_vs_transformers.compare(tmp_path, sizes, 1, 1)
