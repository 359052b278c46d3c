"""A small Grug configuration that the model tests share."""

from __future__ import annotations

from datakit.trainer.models import grug

SMALL = grug.Config(
    vocabulary=97,
    hidden=32,
    layers=4,
    heads=4,
    kv_heads=2,
    head_width=8,
    experts=8,
    experts_per_token=2,
    expert_width=24,
    shared_width=32,
    gate_rank=8,
    window=64,
    compute="float32",
    remat="none",
    moe_backend="dense",  # compiles fastest
    init_scale=2.0,  # larger than in training, so that every part of the model matters
)
