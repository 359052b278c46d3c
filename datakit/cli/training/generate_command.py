"""Implements `datakit generate`, which prints a trained model's continuation of a prompt while it is computed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from datakit.cli.console import note, say, say_json
from datakit.cli.parameters import Flag, Settings
from datakit.printable import printable

if TYPE_CHECKING:
    import tokenizers

    from datakit.trainer.trained.find import TrainedRun


def generate(
    run: str,
    /,
    *,
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True)],
    tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    checkpoint: str | None = None,
    ema: Flag = False,
    root: str = "./data",
    set_: Settings = (),
    json: Flag = False,
) -> int:
    """Let a trained model continue a text.

    Ends at the model's end-of-text token or after --tokens tokens. The same seed gives the same text.

    Examples:
      datakit generate data/demo-train/train-0123456789ab --prompt "The license"
      datakit generate my-run.toml --prompt "Once upon a time" --temperature 0 --tokens 50
      datakit generate my-run.toml --prompt - < question.txt

    Parameters
    ----------
    run
        The directory of a finished run, a run file (TOML), or the name of a built-in run.
    prompt
        The text to continue; - reads it from standard input.
    tokens
        Maximum number of tokens to generate.
    temperature
        Divides the logits: 0 always takes the likeliest token, 1 draws from the model's own distribution.
    top_k
        Draw only from this number of likeliest tokens.
    seed
        Seed of the draws.
    checkpoint
        Directory of a checkpoint; by default the run's newest checkpoint.
    ema
        Use the averaged weights.
    root
        The directory that holds the runs, if a run file is given.
    set_
        Override a value of the run file. Can be repeated.
    json
        Print one JSON object at the end, instead of the text as it comes.
    """
    from datakit.trainer import require_jax

    require_jax()
    from datakit.trainer.trained.generate import Sampling

    sampling = Sampling(tokens, temperature, top_k, seed)
    from datakit.trainer.trained.find import find_trained

    found = find_trained(run, root, set_, checkpoint, note)
    text = sys.stdin.read() if prompt == "-" else prompt
    return _continue(found, text, sampling, ema, json)


def _continue(run: TrainedRun, prompt: str, sampling: object, averaged: bool, json: bool) -> int:
    """Generate the continuation, and print it."""
    import jax

    from datakit.trainer.models.weights import make_mesh
    from datakit.trainer.trained import generate as generation

    assert isinstance(sampling, generation.Sampling)
    tokenizer = _tokenizer(run)
    ids = generation.framed_prompt(tokenizer.encode(prompt, add_special_tokens=False).ids, run.contract)
    mesh = make_mesh(1, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params, state, restored = run.restore(mesh, averaged)
        stream = generation.TextStream(lambda some: tokenizer.decode(some, skip_special_tokens=False), ids)
        made, text, started = list[int](), "", time.perf_counter()
        for token in generation.generate(run.model, run.config, params, state, ids, sampling, run.contract):
            made.append(token)
            text += _shown(stream.add(token), json)
        text += _shown(stream.rest(), json)
    ended = "end" if len(made) < sampling.tokens else "length"
    if json:
        say_json({"prompt": prompt, "prompt_tokens": ids, "text": text, "tokens": made, "ended_by": ended,
                  "checkpoint": str(restored.path), "step": restored.marker.step})  # fmt: skip
        return 0
    say()
    why = "the end-of-text token" if ended == "end" else f"the limit of --tokens {sampling.tokens}"
    note(f"{len(made)} tokens in {time.perf_counter() - started:.1f} s, ended by {why}")
    note(f"step {restored.marker.step:,} of {restored.path}")
    return 0


def _tokenizer(run: TrainedRun) -> tokenizers.Tokenizer:
    """Return the tokenizer of the run's caches. It treats special tokens' strings as the caches' contract says."""
    from datakit.cache.contract import AS_TEXT

    found = run.caches[0].tokenizer
    found.encode_special_tokens = run.contract.special_strings == AS_TEXT
    return found


def _shown(text: str, quiet: bool) -> str:
    """Print a piece of text without control characters, unless `quiet` is set; return it as it is."""
    if text and not quiet:
        sys.stdout.write(printable(text))
        sys.stdout.flush()
    return text
