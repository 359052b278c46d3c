"""Compare the speed of a full training step of OLMoE with that of `transformers` on the CPU, at the same shapes.

    python -m benchmarks.trainer.step_vs_transformers --python /path/to/python     # one that has transformers and torch

Both sides compute in fp32: forward, backward, clipping, AdamW, with the loss that balances the experts. `transformers`
uses its experts implementation `grouped_mm`, its attention implementation `sdpa` and the fused AdamW of PyTorch. The
two take turns of a few steps, so a busy machine slows both. The results are the ratios of the median rates by wall
time and by CPU time; the latter says nothing about how well a side uses several cores, but is steadier under load.

--devices 2: this trainer divides the rows over two devices, each with a copy of the weights, which share the cores.
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
            compute="float32",
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
        script = str(Path(__file__).with_name("step_of_transformers.py"))
        self.process = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="a Python that has transformers and torch")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4, help="steps per turn")
    for name, value in Sizes()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    options = vars(parser.parse_args())
    sizes = Sizes(*(options[name] for name in Sizes._fields))
    jax.config.update("jax_num_cpu_devices", sizes.devices)
    keep_all_freed_memory()  # as `datakit train` does
    theirs, ours = Theirs(options["python"], sizes), Ours(sizes)
    print(f"{sizes}\nparameters: {ours.parameters:,} and {theirs.about['parameters']:,}; {theirs.about}")
    for side in (ours, theirs):
        side.turn(2)  # warm up
    turns = [(ours.turn(options["steps"]), theirs.turn(options["steps"])) for _ in range(options["rounds"])]
    theirs.close()
    tokens = sizes.rows * sizes.length * options["steps"]
    for kind in ("wall", "cpu"):
        mine, other = (np.array([getattr(turn[side], kind) for turn in turns]) for side in (0, 1))
        print(
            f"{kind:5} tokens/s: {tokens / np.median(mine):9,.0f} and {tokens / np.median(other):9,.0f}; "
            f"ratio {np.median(other) / np.median(mine):.2f} (of the fastest turns {other.min() / mine.min():.2f})"
        )
    print(f"last losses {turns[-1][0].loss:.3f} and {turns[-1][1].loss:.3f}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
