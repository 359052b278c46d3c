"""Compare bf16 gradients with fp32 gradients on real text, weight by weight.

    python -m benchmarks.trainer.bf16_gradients [--steps 20] [--rows 8] [--length 512] [--json out.json]

Trains a Grug model in fp32 for a few steps on speeches, tokenized by GPT-2's tokenizer. Then it computes the gradients
of the next batch in fp32 and in bf16. The columns are relative L2 errors in percent:

    fixed    bf16 with the experts that the fp32 run chose. At most 2 % for the embedding and the norm gains, and 5 %
             for every other weight; otherwise the exit code is 1.
    free     bf16 with its own choice of experts. Near ties, another expert is trained, which is not an error of sums.
    summed   what bf16 sums over a mesh of as many devices as there are rows add to the gradients of matrices; each
             device has a row, and the devices are added one after the other, which is the worst order
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from datakit.trainer.accumulation import training_loss
from datakit.trainer.models import grug, router, weights
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import Tree, leaves
from datakit.trainer.optimizers import adamh
from datakit.trainer.optimizers.schedules import learning_rates
from datakit.trainer.optimizers.update import groups_of, initial_moments, update
from tests.support.data import data_dir

CONFIG = grug.Config(
    vocabulary=50_304,
    hidden=128,
    layers=4,
    heads=4,
    kv_heads=2,
    head_width=32,
    experts=16,
    experts_per_token=2,
    expert_width=64,
    shared_width=128,
    gate_rank=32,
    window=512,
)
FP32_ONLY = ("embed", "blocks/router")  # summed in fp32 over a mesh, as are the norm gains
LIMITS = {"embeddings and norms": 0.02, "other": 0.05}


@dataclasses.dataclass(frozen=True)
class Row:
    """Relative L2 errors of one weight's gradient."""

    weight: str
    norm: float
    fixed: float
    free: float
    summed: float

    @property
    def limit(self) -> float:
        """The largest error allowed with fixed routing."""
        return LIMITS["embeddings and norms" if is_gain(self.weight) or self.weight == "embed" else "other"]


def is_gain(name: str) -> bool:
    """Return True for the gains of norms, which are vectors."""
    return name.endswith("_norm")


def batches(data: Path, rows: int, length: int) -> Iterator[Tokens]:
    """Yield batches of whole rows of text; a row may hold several documents."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(data / "tokenizers/gpt2.json"))
    ids, numbers = np.zeros(0, np.int32), np.zeros(0, np.int32)
    with gzip.open(data / "text/nltk-state_union.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            found = np.array(tokenizer.encode(json.loads(line)["text"]).ids, np.int32)
            ids, numbers = np.append(ids, found), np.append(numbers, np.full(len(found), number + 1, np.int32))
            while len(ids) >= rows * length:
                tokens, segments = (jnp.asarray(x[: rows * length].reshape(rows, length)) for x in (ids, numbers))
                yield Tokens(tokens, segments, jnp.ones(tokens.shape, bool))
                ids, numbers = ids[rows * length :], numbers[rows * length :]


def route(routing: tuple[Any, Any], tokens: Any, parameters: Any) -> tuple[Any, Any]:
    """Stand in for `router.on_own_tokens`: return the experts chosen in place of the thresholds.

    The state of a layer is the experts to take, or else an ordinary bias.
    """
    (x_TD, valid_T), (router_DE, state) = tokens, parameters
    logits_TE = router.router_logits(x_TD, router_DE)
    taken_TK = state if state.ndim == 2 else router.sigmoid_route(logits_TE, state, CONFIG.experts_per_token).expert
    share_TK = jax.nn.sigmoid(router._pick(logits_TE, taken_TK))
    chosen_TK = taken_TK.astype(jnp.float32)  # the type of thresholds
    return (router.Routing(taken_TK, share_TK), None), (chosen_TK, router.router_sums(logits_TE, taken_TK, valid_T))


@contextmanager
def open_routing() -> Iterator[None]:
    """Let a model's state be the experts of each layer and token."""
    with mock.patch.object(grug, "on_own_tokens", route):
        yield


def loss(params: Tree, state: Tree, batch: Tokens, config: grug.Config, counted: float) -> Any:
    """The training loss of these rows' share of a batch with `counted` predictions."""
    total, (_, output) = training_loss(grug, config, state, batch, params)
    return jnp.sum(output.weights) / counted * total


def trained(config: grug.Config, found: list[Tokens]) -> tuple[Tree, Tree]:
    """Return parameters and router biases after a step per batch, in fp32."""
    table, settings = grug.weights(config), adamh.Config(warmup=0.0, schedule="constant")
    params, state = weights.initialize(table, jax.random.key(0)), grug.initial_state(config)
    moments = initial_moments(params, table, settings)
    rates = learning_rates(settings, groups_of(table), 0, max(len(found), 1))

    @jax.jit
    def step(params: Tree, state: Tree, moments: Tree, batch: Tokens, number: Any) -> Any:
        gradients, (_, output) = jax.grad(partial(training_loss, grug, config, state, batch), has_aux=True)(params)
        after, moments, _ = update(gradients, moments, params, number, rates, table, settings)
        return after, output.state, moments

    for number, batch in enumerate(found):
        params, state, moments = step(params, state, moments, batch, jnp.int32(number))
    return params, state


def measure(config: grug.Config, params: Tree, state: Tree, batch: Tokens) -> list[Row]:
    """Return the errors of each weight's gradient."""
    exact, rounded = (dataclasses.replace(config, compute=compute) for compute in ("float32", "bfloat16"))
    counted = float(jnp.sum(batch.segments[:, 1:] == batch.segments[:, :-1]))
    with open_routing():
        chosen = jax.jit(partial(grug.encode, config=exact))(params, state, batch)[1][0].astype(jnp.int32)
        gradient = {
            config.compute: jax.jit(jax.grad(partial(loss, config=config, counted=counted)))
            for config in (exact, rounded)
        }
        fp32 = gradient["float32"](params, {"router_bias": chosen}, batch)
        fixed = gradient["bfloat16"](params, {"router_bias": chosen}, batch)
        free = gradient["bfloat16"](params, state, batch)
        per_row = chosen.reshape(config.layers, *batch.tokens.shape, -1)
        parts = [
            gradient["bfloat16"](params, {"router_bias": per_row[:, row]}, Tokens(*(x[row : row + 1] for x in batch)))
            for row in range(len(batch.tokens))
        ]
    summed = jax.tree.map(lambda *terms: added(terms, jnp.bfloat16), *parts)
    whole = jax.tree.map(lambda *terms: added(terms, jnp.float32), *parts)
    trees = [leaves(tree) for tree in (fp32, fixed, free, whole, summed)]
    return [
        Row(
            name,
            float(jnp.linalg.norm(value)),
            error(trees[1][name], value),
            error(trees[2][name], value),
            0.0 if name in FP32_ONLY or is_gain(name) else error(trees[4][name], trees[3][name]),
        )
        for name, value in trees[0].items()
    ]


def added(terms: tuple[Any, ...], dtype: Any) -> Any:
    """Add arrays one after the other in this type."""
    total = terms[0].astype(dtype)
    for term in terms[1:]:
        total = total + term.astype(dtype)
    return total.astype(jnp.float32)


def error(ours: Any, exact: Any) -> float:
    """The relative L2 error; gradients that are zero everywhere are exact."""
    return float(jnp.linalg.norm(ours - exact) / jnp.maximum(jnp.linalg.norm(exact), 1e-30))


def main() -> int:
    """Print the table; return 1 if an error is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps before the comparison")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = list(islice(batches(data_dir(), options.rows, options.length), options.steps + 1))
    params, state = trained(dataclasses.replace(CONFIG, compute="float32"), found[:-1])
    rows = measure(CONFIG, params, state, found[-1])
    print(f"{'weight':30}{'norm':>12}{'fixed %':>10}{'limit %':>10}{'free %':>10}{'summed %':>10}")
    for row in rows:
        errors = "".join(f"{100 * value:10.2f}" for value in (row.fixed, row.limit, row.free, row.summed))
        print(f"{row.weight:30}{row.norm:12.3e}{errors}{'' if row.fixed <= row.limit else '  above the limit'}")
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    return int(any(row.fixed > row.limit for row in rows))


if __name__ == "__main__":
    sys.exit(main())
