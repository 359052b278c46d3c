"""No limit is exceeded, however many tasks share it; what was not used is given back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from datakit.annotate.model_server import spending
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.request_body import most_tokens
from datakit.annotate.model_server.spending import FOLDER, UNIT, Allowance, Ledger, SpentError, cost_of


def config(**more: float) -> ModelServerConfig:
    return ModelServerConfig("https://host/v1", "m", "{text}", number=(0, 5), **more)  # pyright: ignore[reportArgumentType]


def allowance(folder: Path, settings: ModelServerConfig, documents: int = 100) -> Allowance:
    return Allowance("quality", settings, str(folder), documents)


def totals(folder: Path) -> spending.Account:
    return Ledger(f"{folder}/{FOLDER}").totals()


def take_all(one: Allowance) -> int:
    taken = 0
    with pytest.raises(SpentError):
        while True:
            one.take()
            taken += 1
    return taken


def test_tasks_at_the_same_time_never_exceed_the_budget(tmp_path: Path) -> None:
    tasks = [allowance(tmp_path, config(max_requests=300)) for _ in range(6)]
    with ThreadPoolExecutor(12) as pool:
        taken = list(pool.map(take_all, [*tasks, *tasks]))
    assert sum(taken) == 300 == totals(tmp_path).requests


def test_unused_requests_are_given_back(tmp_path: Path) -> None:
    first = allowance(tmp_path, config(max_requests=70))
    for _ in range(3):
        first.take()
    first.close()
    assert totals(tmp_path).requests == 3
    assert take_all(allowance(tmp_path, config(max_requests=70))) == 67


def test_request_that_was_taken_but_not_sent_is_given_back(tmp_path: Path) -> None:
    settings = config(price_per_1k_input_tokens=0.1, price_per_1k_output_tokens=1.0)
    one = allowance(tmp_path, settings)
    for _ in range(3):
        one.take()
    one.give_back()
    one.settle(100, 10)
    one.settle(100, 10)
    one.close()
    assert totals(tmp_path) == spending.Account(requests=2, cost=2 * cost_of(settings, 100, 10))


def test_budget_that_just_suffices_is_not_split_in_vain(tmp_path: Path) -> None:
    first, second = (allowance(tmp_path, config(max_requests=20), documents=10) for _ in range(2))
    for one in (first, second):
        for _ in range(10):
            one.take()
    with pytest.raises(SpentError, match=r"annotate.model_server.quality: 20 requests .* max_requests is 20; raise"):
        first.take()


def test_killed_task_gives_nothing_back(tmp_path: Path) -> None:
    allowance(tmp_path, config(max_requests=70)).take()
    assert totals(tmp_path).requests == spending.BLOCK
    assert take_all(allowance(tmp_path, config(max_requests=70))) == 70 - spending.BLOCK


def test_raised_budget_goes_on_where_it_stopped(tmp_path: Path) -> None:
    assert take_all(allowance(tmp_path, config(max_requests=5))) == 5
    assert take_all(allowance(tmp_path, config(max_requests=8))) == 3


def test_highest_cost_is_reserved_and_the_true_cost_remains(tmp_path: Path) -> None:
    settings = config(price_per_1k_input_tokens=0.1, price_per_1k_output_tokens=1.0)
    bound = cost_of(settings, most_tokens(settings), settings.max_tokens)
    limited = config(price_per_1k_input_tokens=0.1, price_per_1k_output_tokens=1.0, max_cost=2.5 * bound / UNIT)
    one = allowance(tmp_path, limited)
    assert take_all(one) == 2 and totals(tmp_path).cost == 2 * bound
    one.settle(100, 10)
    one.settle(None, None)  # unknown: the highest cost remains
    one.close()
    assert totals(tmp_path).cost == bound + cost_of(limited, 100, 10) == bound + round(0.02 * UNIT)
    with pytest.raises(SpentError, match=r"another one may cost up to .*, and max_cost is .*; raise max_cost"):
        allowance(tmp_path, config(price_per_1k_input_tokens=0.1, max_cost=bound / UNIT)).take()


def test_rate_limit_is_shared(tmp_path: Path) -> None:
    """Whoever takes the requests, they are a tenth of a second apart."""
    tasks = [allowance(tmp_path, config(requests_per_minute=600)) for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        moments = sorted(pool.map(lambda number: tasks[number % 3].take(), range(200)))
    gaps = [after - before for before, after in pairwise(moments)]
    assert min(gaps) > 0.09


def test_without_a_rate_limit_nobody_waits(tmp_path: Path) -> None:
    assert allowance(tmp_path, config()).take() == 0.0


def test_costs_are_rounded_up() -> None:
    assert cost_of(config(price_per_1k_input_tokens=1e-9), 1, 0) == 1
    assert cost_of(config(), 1000, 1000) == 0
