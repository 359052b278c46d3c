"""Implements `datakit size`, which prints the model, batch and other settings of a run sized for a compute budget."""

from __future__ import annotations

from datakit.cli.console import note, say, say_json
from datakit.cli.parameters import Flag
from datakit.errors import UsageError


def size(
    *,
    flops: float,
    hidden: int,
    vocabulary: int | None = None,
    sequence: int = 4096,
    kind: str = "grug",
    cache: str | None = None,
    beta2_base: float = 0.999,
    toml: Flag = False,
    json: Flag = False,
) -> int:
    """Size a training run for a compute budget: model, batch, steps, learning rates and expected loss.

    Examples:
      datakit size --flops 1e19 --hidden 1024
      datakit size --flops 3e18 --hidden 768 --vocabulary 50304 --json
      datakit size --flops 1e18 --hidden 512 --cache data/books --toml > books.toml
      datakit size --flops 1e18 --hidden 512 --kind olmoe

    Parameters
    ----------
    flops
        Compute budget in floating-point operations, forward and backward passes together.
    hidden
        Width of the model; its other dimensions are derived from the width.
    vocabulary
        Number of tokens in the vocabulary; by default that of the cache or, without a cache, 128,256.
    sequence
        Sequence length in tokens.
    kind
        The model: dense, grug, latent_moe, olmoe, or the file (mine.py) or import path of your own model that defines
        `of_width`.
    cache
        The token cache, or dataset, to train on; needed for --toml.
    beta2_base
        Decay of the optimizer's second moment for a batch of 32 sequences. A sweep made after the default was chosen
        favors 0.998.
    toml
        Print a run file for `datakit train` instead of the plan.
    json
        Print one JSON object.
    """
    if toml and (cache is None or json):
        raise UsageError("--toml prints a run file, so it needs --cache and cannot be combined with --json")
    if cache is not None and vocabulary is not None:
        raise UsageError("--vocabulary would contradict the vocabulary of --cache; give only one of the two")
    from datakit.trainer import require_jax

    require_jax()
    from datakit.trainer.sizes import run_file, scaling

    settings = {"kind": kind, "sequence": sequence, "beta2_base": beta2_base}
    if cache is None:
        found = scaling.size(flops, hidden, vocabulary=vocabulary or scaling.APRIL.vocabulary, **settings)
    else:
        found, text = run_file.sized(flops, hidden, cache, **settings)
        if toml:
            say(text.rstrip("\n"))
            return 0
    if json:
        say_json(found.document())
        return 0
    for line in found.lines():
        (note if line.startswith("warning") else say)(line)
    return 0
