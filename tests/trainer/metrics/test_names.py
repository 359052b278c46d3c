"""A run logs every metric whose name we promise, and docs/metrics.md explains each name that is logged."""

from __future__ import annotations

import re
from itertools import product

import pytest

from datakit.cache import contract
from datakit.trainer.commands import train_file
from datakit.trainer.metrics.json_lines import HISTOGRAMS, read_metrics
from tests.support.paths import REPOSITORY
from tests.support.run_files import write_run_file
from tests.support.trainer.trainer_runs import silent

SETTINGS = [
    "steps=2",
    "peak_flops=1e12",
    "norm_band=[0.9999,1.0001]",  # so narrow that the norms of some groups are soon outside
    "model.capacity_factor=0.5",
    "model.capacity_rows=4",
    "model.capacity_groups=2",
    "optimizer.ema=0.9",
    "evaluation.capacity_factors=[1.0]",
    'log.watch=["grad", "params", "updates", "opt_state"]',
    "log.watch_histograms=true",
    "log.watch_every=1",
]
PROMISED = """
    global_step run_progress log/every
    train/{loss, cross_entropy_loss, aux_loss_weighted, z_loss}
    train/router/{routing_entropy_mean, load_balancing_loss, router_z_loss, aux_loss_weighted}
    train/router/capacity_overflow_rate_mean
    train/router/layer_{0, 1}/{routing_entropy, load_balancing_loss, router_z_loss, capacity_overflow_rate}
    train/router/layer_{0, 1}/routing_hist
    optim/{learning_rate, grad_norm, params_norm}/{adam, adamh, adamh_expert} optim/params_norm/embed
    throughput/{duration, examples_per_second, tokens_per_second, total_tokens, gflops_per_second, total_gflops, mfu}
    throughput/{hook_time, loading_time, flops_per_token_analytic, flops_per_example_analytic, flops_per_example}
    throughput/{device_kind, theoretical_flops_per_device, theoretical_flops}
    mixture/stage mixture/weight/{web, code}
    eval/{loss, bpb, macro_loss, macro_bpb, loading_time, total_time}
    eval/ema/{loss, bpb, macro_loss, macro_bpb, loading_time, total_time}
    eval/{web, exams/code, ema/web, ema/exams/code, capacity_1/web}/{loss, bpb}
    eval/{exams, ema/exams}/{micro_loss, macro_loss, bpb, macro_bpb}
    data/{batch_xxh3, batch_rows, reads, bytes_read, hit_rate}
    data/tensorstore/cache/{hit_count, miss_count, evict_count, chunk_cache/reads}
    data/tensorstore/kvstore/file/{read, bytes_read}
    {grad, params, updates}/{norm, histogram}/embed opt_state/{norm, histogram}/{mu, nu}/embed
    {grad, params, updates}/norm/blocks/layer_{0, 1}/router {grad, params, updates}/histogram/blocks/router
    alarm/router
"""
ELSEWHERE = {"alarm/loss", "eval/length_<L>/…", "train/router/pooled_balance_loss"}  # in the runs of other tests


def expanded(names: str) -> set[str]:
    """Return the names for which a text with braces stands: `a/{b, c}` for `a/b` and `a/c`."""
    found = set[str]()
    for name in re.findall(r"(?:\{[^}]*\}|[^\s,{}])+", names):
        parts = [part[1:-1].split(", ") if part[0] == "{" else [part] for part in re.findall(r"\{.*?\}|[^{}]+", name)]
        found |= {"".join(choice) for choice in product(*parts)}
    return found


def documented() -> dict[str, re.Pattern[str]]:
    """Return the names in the first column of the table in docs/metrics.md, with a pattern that matches each."""
    text = (REPOSITORY / "docs/metrics.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    names = expanded(" ".join(re.findall("`([^`]*)`", " ".join(cells))))
    return {name: re.compile(re.sub("<[^>]*>|…", ".+", name)) for name in names}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all metrics of a short run on a compressed cache."""
    folder = tmp_path_factory.mktemp("names")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract, "SMALL_VOCABULARY", 0)  # store and compress the ids as those of a large vocabulary
        directory = train_file(write_run_file(folder), str(folder), SETTINGS, say=silent).directory
    return {name for file in ("metrics.jsonl", HISTOGRAMS) for row in read_metrics(directory, file) for name in row}


def test_a_run_logs_every_promised_name(logged: set[str]) -> None:
    assert expanded(PROMISED) - logged == set()


def test_every_logged_name_is_documented_and_every_documented_name_is_logged(logged: set[str]) -> None:
    names = documented()
    known = [*names.values()]
    assert {name for name in logged | expanded(PROMISED) if not any(one.fullmatch(name) for one in known)} == set()
    assert {name for name, one in names.items() if not any(map(one.fullmatch, logged))} == ELSEWHERE
