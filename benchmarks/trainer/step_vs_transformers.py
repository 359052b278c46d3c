"""Compare the speed of a full training step of OLMoE with that of `transformers`, at the same shapes.

    python -m benchmarks.trainer.step_vs_transformers --python /path/to/python     # one that has transformers and torch
    python -m benchmarks.trainer.step_vs_transformers --python /path/to/python --device cuda

Both sides compute forward, backward, clipping and AdamW, with the loss that balances the experts; on a CPU in fp32.
`transformers` uses its experts implementation `grouped_mm`, its attention implementation `sdpa` and the fused AdamW of
PyTorch. The two take turns of a few steps, so a busy machine slows both. The results are the ratios of the median rates
by wall time and by CPU time; the latter says nothing about how well a side uses several cores, but is steadier under
load.

--devices 2: this trainer divides the rows over two devices, each with a copy of the weights, which share the cores.

--device cuda: both use one GPU and compute in bf16, and the default sizes are larger. This trainer keeps fp32 weights
and moments beside the bf16 ones, as always; `transformers` keeps bf16 ones only, which is less work. Only the wall time
counts. JAX reserves half of the GPU's memory, the rest is for PyTorch; XLA_PYTHON_CLIENT_MEM_FRACTION changes that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.engine.freed_memory import keep_all_freed_memory
from datakit.trainer.models import olmoe
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import BATCH, make_mesh, parameter_count
from datakit.trainer.optimizers import adamw
from datakit.trainer.step import Trainer


class Sizes(NamedTuple):
    """Sizes of the model and its batch. The defaults are close to those of `train_text.toml`."""

    vocabulary: int = 8192
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    width: int = 128
    experts: int = 16
    choices: int = 2
    rows: int = 16
    length: int = 256
    threads: int = 2
    devices: int = 1
    device: str = "cpu"  # or cuda
    dtype: str = "float32"  # or bfloat16


GPU_SIZES = Sizes(
    vocabulary=50_304,
    hidden=1024,
    heads=8,
    kv_heads=8,
    width=512,
    experts=64,
    choices=8,
    rows=8,
    length=2048,
    device="cuda",
    dtype="bfloat16",
)
SCRIPT = Path(__file__).with_name("step_of_transformers.py")
PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}  # a device's name in PyTorch -> in JAX


class Spent(NamedTuple):
    """Seconds of one turn, and its last loss."""

    wall: float
    cpu: float
    loss: float


class Ours:
    """This trainer's compiled step and its state."""

    def __init__(self, sizes: Sizes) -> None:
        config = olmoe.Config(
            vocabulary=sizes.vocabulary,
            hidden=sizes.hidden,
            layers=sizes.layers,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_width=sizes.hidden // sizes.heads,
            experts=sizes.experts,
            experts_per_token=sizes.choices,
            expert_width=sizes.width,
            compute="bfloat16" if sizes.dtype == "bfloat16" else "float32",
            remat="none",
        )
        settings = adamw.Config(learning_rate=1e-4, weight_decay=0.1)
        mesh = make_mesh(sizes.devices, jax.devices()[: sizes.devices])
        self.trainer = Trainer(olmoe, config, settings.constants(), mesh)
        self.parameters = parameter_count(self.trainer.table)
        self.rates = {group: jnp.float32(1e-4) for group in self.trainer.rates_like()}
        tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (sizes.rows, sizes.length)).astype(np.int32)
        ones = np.ones(tokens.shape, np.int32)
        rows = NamedSharding(mesh, P(BATCH))
        self.batch = Tokens(*(jax.device_put(x, rows) for x in (tokens, ones, ones.astype(bool))))
        with jax.set_mesh(mesh):
            self.state = self.trainer.fresh(0)
            self.step = self.trainer.compile(self.state, self.batch, watch=False)

    def turn(self, steps: int) -> Spent:
        """Take `steps` steps."""
        wall, cpu, results = time.perf_counter(), time.process_time(), dict[str, Any]()
        for _ in range(steps):
            self.state, results = self.step(self.state, self.batch, self.rates)
        loss = float(results["cross_entropy_loss"])
        return Spent(time.perf_counter() - wall, time.process_time() - cpu, loss)


class Theirs:
    """The process that takes the steps of `transformers`."""

    def __init__(self, python: Path, sizes: Sizes) -> None:
        self.process = subprocess.Popen([python, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._ask(json.dumps(sizes._asdict()))

    def turn(self, steps: int) -> Spent:
        """Take `steps` steps."""
        return Spent(**self._ask(str(steps)))

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the process of transformers ended with exit code {self.process.wait()}; see its error")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def compare(python: Path, sizes: Sizes, rounds: int, steps: int) -> dict[str, Any]:
    """Tokens per second of both sides by their median turns, and the ratios. Prints the sizes."""
    if jax.devices()[0].platform != PLATFORMS[sizes.device]:
        raise SystemExit(f"JAX computes on {jax.devices()[0].device_kind}, not on {sizes.device}")
    theirs, ours = Theirs(python, sizes), Ours(sizes)
    print(f"{sizes}\nparameters: {ours.parameters:,} and {theirs.about['parameters']:,}; {theirs.about}", flush=True)
    for side in (ours, theirs):
        side.turn(2)  # warm up
    turns = [(ours.turn(steps), theirs.turn(steps)) for _ in range(rounds)]
    theirs.close()
    row: dict[str, Any] = {"device_kind": jax.devices()[0].device_kind, **sizes._asdict(), "about": theirs.about}
    tokens = sizes.rows * sizes.length * steps
    for kind in ("wall", "cpu"):
        mine, other = (np.array([getattr(turn[side], kind) for turn in turns]) for side in (0, 1))
        rates = {"ours": tokens / float(np.median(mine)), "theirs": tokens / float(np.median(other))}
        ratio, fastest = rates["ours"] / rates["theirs"], float(other.min() / mine.min())
        row[kind] = {**rates, "ratio": ratio, "ratio_of_fastest": fastest}
    return {**row, "losses": [turns[-1][0].loss, turns[-1][1].loss]}


def described(row: dict[str, Any]) -> str:
    """The result as lines of text."""
    lines = [
        f"{kind:5} tokens/s: {found['ours']:9,.0f} and {found['theirs']:9,.0f}; "
        f"ratio {found['ratio']:.2f} (of the fastest turns {found['ratio_of_fastest']:.2f})"
        for kind, found in ((kind, row[kind]) for kind in ("wall", "cpu"))
    ]
    return "\n".join([*lines, f"last losses {row['losses'][0]:.3f} and {row['losses'][1]:.3f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="a Python that has transformers and torch")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4, help="steps per turn")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    for name, value in Sizes()._asdict().items():
        choices = {"device": PLATFORMS, "dtype": ("float32", "bfloat16")}.get(name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), choices=choices)
    options = vars(parser.parse_args())
    given = {name: options[name] for name in Sizes._fields if options[name] is not None}
    sizes = (GPU_SIZES if options["device"] == "cuda" else Sizes())._replace(**given)
    if sizes.device == "cuda":
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    jax.config.update("jax_num_cpu_devices", sizes.devices)
    keep_all_freed_memory()  # as `datakit train` does
    row = compare(options["python"], sizes, options["rounds"], options["steps"])
    print(f"{described(row)}; load {os.getloadavg()[0]:.1f}")
    if options["json"]:
        options["json"].write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
