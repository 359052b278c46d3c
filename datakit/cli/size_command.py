"""Implements `datakit size`: the options, their defaults, and the printing of a run sized for a compute budget."""

from __future__ import annotations

from datakit.cli.console import note, say, say_json
from datakit.cli.parameters import Flag


def size(
    *,
    flops: float,
    hidden: int,
    vocabulary: int = 128_256,
    sequence: int = 4096,
    beta2_base: float = 0.999,
    json: Flag = False,
) -> int:
    """Size a training run for a compute budget: model, batch, steps, learning rates and expected loss.

    Examples:
      datakit size --flops 1e19 --hidden 1024
      datakit size --flops 3e18 --hidden 768 --vocabulary 50304 --json

    Parameters
    ----------
    flops
        Compute budget in floating-point operations, forward and backward passes together.
    hidden
        Width of the model; its other dimensions are derived from the width.
    vocabulary
        Number of tokens in the vocabulary.
    sequence
        Sequence length in tokens.
    beta2_base
        Decay of the optimizer's second moment for a batch of 32 sequences. A sweep made after the default was chosen
        favors 0.998.
    json
        Print one JSON object.
    """
    from datakit.trainer import require_jax

    require_jax()
    from datakit.trainer.scaling import size as plan

    found = plan(flops, hidden, vocabulary=vocabulary, sequence=sequence, beta2_base=beta2_base)
    if json:
        say_json(found.document())
        return 0
    for line in found.lines():
        (note if line.startswith("warning") else say)(line)
    return 0
