"""A run file is read strictly, and its content decides the fingerprint."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from datakit.errors import RecipeError, UsageError
from datakit.trainer.config import Evaluation, Run, parse_run
from datakit.trainer.models import grug, olmoe

TOML = """
name = "small"
steps = 20
expect = {"train/loss" = 3}
[model]
hidden = 64
layers = 2
[optimizer]
learning_rate = 0.02
ema = 0.99
[checkpoint]
load = true
[evaluation]
every = 10
[log]
watch = ["grad"]
"""


def test_a_run_from_toml() -> None:
    run = parse_run(tomllib.loads(TOML), "small.toml")
    assert isinstance(run, Run)
    assert isinstance(run.model, grug.Config)
    assert (run.model.hidden, run.optimizer.ema, run.checkpoint.load) == (64, 0.99, True)
    assert run.evaluation == Evaluation(every=10)
    assert (run.log.watch, run.expect) == (("grad",), {"train/loss": 3.0})
    family = parse_run({"name": "o", "steps": 1, "model": {"kind": "olmoe"}}, "o.toml")
    assert isinstance(family.model, olmoe.Config)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"stepz": 3}, "unknown key 'stepz'; did you mean 'steps'"),
        ({"model": {"hiden": 3}}, r"\[model\]: unknown key 'hiden'; did you mean 'hidden'"),
        ({"optimizer": {"learning_rate": "fast"}}, r"\[optimizer\]: learning_rate: Expected `float`"),
        ({"model": {"kind": "grugg"}}, "no model 'grugg'; did you mean 'grug'"),
        ({"steps": 0}, "steps is 0"),
        ({"name": "../x"}, "use letters, digits"),
        ({"replicas": 0}, "replicas is 0"),
        ({"norm_band": [5.0, 0.2]}, "the first value must be between 0 and 1, and the second above 1"),
        ({"peak_flops": -1.0}, "peak_flops is -1.0"),
        ({"model": {"hidden": -3}}, "model.hidden is -3"),
        ({"model": {"kind": "olmoe", "layers": 0}}, "model.layers is 0"),
        ({"optimizer": {"learning_rate": float("nan")}}, "learning_rate is nan"),
        ({"optimizer": {"router_learning_rate": -1.0}}, "router_learning_rate is -1.0"),
        ({"checkpoint": {"interval_minutes": -1.0}}, "interval_minutes is -1.0"),
        ({"checkpoint": {"keep_temporary": 0}}, "keep_temporary must be at least 1"),
        ({"checkpoint": {"keep_every": 0}}, "keep_every is 0"),
        ({"evaluation": {"every": 0}}, "evaluation.every is 0"),
        ({"log": {"profile": [5, 2]}}, r"log.profile is \[5, 2\]"),
        ({"log": 3}, r"\[log\] must be a table"),
    ],
)
def test_mistakes_in_toml_are_named(broken: dict[str, Any], message: str) -> None:
    with pytest.raises((RecipeError, UsageError), match=message):
        parse_run({"name": "x", "steps": 1} | broken, "x.toml")


def test_operation_does_not_change_the_fingerprint() -> None:
    run = parse_run(tomllib.loads(TOML), "small.toml")
    mixture = {"fingerprint": "a"}
    other = parse_run(tomllib.loads(TOML.replace("ema = 0.99", "ema = 0.98")), "small.toml")
    logged = parse_run(tomllib.loads(TOML.replace("every = 10", "every = 5")), "small.toml")
    assert run.fingerprint(mixture) == logged.fingerprint(mixture)
    assert len({run.fingerprint(mixture), other.fingerprint(mixture), run.fingerprint({"fingerprint": "b"})}) == 3
