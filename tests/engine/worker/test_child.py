"""A child starts clean, with the preloads and nothing else."""

from __future__ import annotations

from datakit.engine.executor import Cause
from tests.support.engine import engine_tasks
from tests.support.engine.runs import (
    run_task,
)


def test_child_is_clean() -> None:
    facts = run_task("look_around").result
    assert facts is not None
    modules = facts.details["modules"]
    assert not {"ray", "jax", "datakit.cli", "pytest", "_pytest"} & set(modules)
    assert facts.details["main"] is None  # not pytest's, not the fork server's
    assert facts.details["threads"] == 1
    assert facts.details["arrow"] == 1 and facts.details["rayon"] == "1"


def test_failing_preload_is_reported_with_its_reason() -> None:
    outcome = run_task("look_around", preloads=(engine_tasks.BAD_PRELOAD,))
    assert outcome.cause is Cause.REFUSED
    assert outcome.message == "the tokenizer has no vocabulary"
