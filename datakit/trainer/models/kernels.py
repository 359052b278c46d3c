"""Names the implementations that a model's experts and attention use on this machine, for the message that a run prints
when it starts. The choice itself is made by `experts/experts.py` and `attention/attention.py`.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax

from datakit.trainer.models.attention import attention
from datakit.trainer.models.experts import experts


def kernels(config: Any) -> dict[str, str]:
    """Return the implementation of each part of a model that has a choice, e.g. {"experts": "tiles"}."""
    chosen = {"experts": (experts.resolve, "moe_backend"), "attention": (attention.resolve, "attention_backend")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compiling the step warns about the same fallback
        found = {
            part: resolve(getattr(config, setting))
            for part, (resolve, setting) in chosen.items()
            if hasattr(config, setting)
        }
    return {part: name for part, name in found.items() if part != "experts" or getattr(config, "experts", 1)}


def lines(config: Any) -> list[str]:
    """Return the implementations as lines of text. A line that begins with "warning" names a fallback."""
    found, platform = kernels(config), jax.default_backend()
    said = [f"kernels on {platform}: {', '.join(f'{part} by {name}' for part, name in found.items())}"] if found else []
    if platform == "gpu" and found.get("experts") == "tiles" and config.moe_backend == "auto":
        said.append(f"warning: {experts.NO_TOKAMAX}")
    if platform not in {"cpu", "gpu"} and found.get("attention") == "blocked" and config.attention_backend == "auto":
        said.append(f"warning: {attention.NO_KERNEL.format(platform=platform)}")
    return said
