"""Implements `datakit bench moe`, which measures a mixture-of-experts layer for each combination of options."""

from __future__ import annotations

from pathlib import Path

from datakit.cli.console import note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import UsageError


def bench_moe(
    *,
    tokens: str = "4096",
    hidden: str = "256",
    mlp_dim: str = "512",
    experts: str = "8",
    top_k: str = "2",
    shared_expert_dim: str = "0",
    shared_fused: Flag = False,
    dtype: str = "float32",
    backend: str = "auto",
    implementation: str = "production",
    distribution: str = "random",
    bench_pass: str = "forward_backward",
    parallel: str = "none",
    devices: str = "1",
    expert_parallel: str = "0",
    exchange: str = "auto",
    packing: str = "counts",
    queue: str = "full",
    remat: str = "none",
    quantization: str = "none",
    capacity_factor: str = "0",
    capacity_policy: str = "none",
    stage_timing: Flag = False,
    trace: Flag = False,
    rounds: int = 20,
    output: str | None = None,
    json: Flag = False,
) -> int:
    """Measure a mixture-of-experts layer: milliseconds, TF/s per device, share of the peak and of the roofline.

    Options take one value, or several separated by commas; each combination gives a row. Every row is checked against
    an oracle before it is timed. An option that would have no effect in a combination is refused.

    Examples:
      datakit bench moe --top-k 1,2,4 --distribution random,skewed
      datakit bench moe --tokens 32768 --hidden 2048 --mlp-dim 1408 --experts 60 --dtype bfloat16 --output rows.jsonl

    Parameters
    ----------
    tokens
        Number of tokens in a call, on all devices together.
    hidden
        Width of the model.
    mlp_dim
        Width of each expert.
    experts
        Number of experts.
    top_k
        Number of experts per token.
    shared_expert_dim
        Width of the expert that all tokens share; 0 for none.
    shared_fused
        Compute the shared expert's gate and up projections as one product.
    dtype
        float32 or bfloat16.
    backend
        auto, tiles, ragged, tokamax or dense.
    implementation
        production (the trainer's own), baseline, fused, preweight, fused_preweight or scatter.
    distribution
        random, runs or skewed: how experts are chosen.
    bench_pass
        forward or forward_backward.
    parallel
        none, data (each device has all experts), staged (devices share the experts) or overlapped (the same in two
        halves, so that one half's exchange can overlap the other's products). All but none need the implementation
        production.
    devices
        Number of devices.
    expert_parallel
        Number of devices that share one copy of the experts, with parallel staged or overlapped. It must be a divisor
        of devices and experts; 0 for all devices.
    exchange
        auto, ring, all_to_all or ragged_all_to_all: how tokens reach the experts of other devices.
    packing
        counts, argsort, tuple_sort or score_sort: how assignments are sorted by expert.
    queue
        full, or prequeue: sort the assignments before the timed part.
    remat
        none, expert_mlp or combine: what the backward pass computes again.
    quantization
        none, int8_weights, int8_routed or int8_all: round to int8 values and back.
    capacity_factor
        Assignments that an expert accepts, as a multiple of an even load; 0 for all.
    capacity_policy
        none, drop, or pad: every expert computes a full buffer.
    stage_timing
        Also time the parts of the layer one by one.
    trace
        Also trace a few calls, and divide their time into computation, communication, copies and waiting. Rows of the
        output file without these shares are measured again.
    rounds
        Number of timed calls. Rows of the output file with another number are measured again.
    output
        File of JSON lines to which rows are appended. Rows that it already holds are not measured again, unless they
        lack the trace, or have another number of rounds.
    json
        Print one JSON object with all rows.
    """
    from datakit.trainer import require_jax

    require_jax()
    from datakit.trainer.bench.case import matrix
    from datakit.trainer.bench.measure import Settings
    from datakit.trainer.bench.rows import run_matrix, stages_of, table_of, traces_of

    numbers = {"tokens": tokens, "hidden": hidden, "width": mlp_dim, "experts": experts, "choices": top_k}
    numbers |= {"shared": shared_expert_dim, "devices": devices, "expert_parallel": expert_parallel}
    words = {"dtype": dtype, "backend": backend, "implementation": implementation, "distribution": distribution}
    words |= {"passes": bench_pass, "parallel": parallel, "exchange": exchange, "packing": packing, "queue": queue}
    words |= {"remat": remat, "quantization": quantization, "policy": capacity_policy}
    axes: dict[str, list[object]] = {
        name: [_number(name, part) for part in _parts(text)] for name, text in numbers.items()
    }
    axes |= {name: list(_parts(text)) for name, text in words.items()}
    axes |= {"capacity": [float(part) for part in _parts(capacity_factor)]}
    axes |= {"shared_fused": [shared_fused], "stages": [stage_timing]}
    if rounds < 1:
        raise UsageError(f"--rounds is {rounds}; use at least 1")
    rows = run_matrix(matrix(axes), Settings(rounds, trace=trace), Path(output) if output else None, note)
    if json:
        say_json({"rows": rows})
        return 0
    say(table(*table_of(rows)))
    if stage_timing:
        say(table(*stages_of(rows)))
    if trace:
        say(table(*traces_of(rows)))
    note(
        f"{rows[0]['device']}; all rows and columns: {output}"
        if output
        else "keep all columns with --output rows.jsonl"
    )
    return 0


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{name}: {text!r} is not a whole number") from error
