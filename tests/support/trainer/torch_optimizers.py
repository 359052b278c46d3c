"""Runs optimizers of PyTorch, which is too heavy for this project's own environment.

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch numpy
    DATAKIT_TORCH=/tmp/torch/bin/python python -m pytest tests/trainer/optimizers

Without the variable, these tests are skipped with this hint.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

VARIABLE = "DATAKIT_TORCH"
PROGRAM = """
import json, sys
import numpy as np, torch
place, settings = sys.argv[1], json.loads(sys.argv[2])
torch.Tensor.bfloat16 = torch.Tensor.float  # Muon rounds its products to bf16, which would hide other differences
arrays = np.load(place)
params = {name: torch.nn.Parameter(torch.from_numpy(arrays[name])) for name in settings["names"]}
optimizer = getattr(torch.optim, settings["optimizer"])(list(params.values()), lr=1.0, **settings["arguments"])
for step, rate in enumerate(settings["rates"]):
    for group in optimizer.param_groups:
        group["lr"] = rate
    for name, value in params.items():
        value.grad = torch.from_numpy(arrays[f"{name}@{step}"])
    if settings["clip"]:
        torch.nn.utils.clip_grad_norm_(list(params.values()), settings["clip"])
    optimizer.step()
np.savez(sys.argv[3], **{name: value.detach().numpy() for name, value in params.items()})
"""


def stepped(  # noqa: PLR0917
    optimizer: str,
    arguments: dict[str, Any],
    params: dict[str, Any],
    gradients: list[dict[str, Any]],
    rates: list[float],
    folder: Path,
    *,
    clip: float = 0.0,
) -> dict[str, np.ndarray]:
    """Return the parameters after one step of `torch.optim.<optimizer>` per entry of `gradients`. `clip`: the largest
    norm of all gradients together; 0: no limit. Skips the test if PyTorch is not installed.
    """
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} names no Python with torch and numpy")
    steps = {f"{name}@{step}": np.asarray(g[name]) for step, g in enumerate(gradients) for name in params}
    start, end = folder / "start.npz", folder / "end.npz"
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in params.items()} | steps
    np.savez(start, **arrays)
    settings = {"optimizer": optimizer, "arguments": arguments, "rates": rates, "clip": clip, "names": [*params]}
    command = [python, "-c", PROGRAM, str(start), json.dumps(settings), str(end)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    with np.load(end) as loaded:
        return dict(loaded)
