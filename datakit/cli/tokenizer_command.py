"""Implements `datakit tokenizer train`, which trains on text files or on the documents that stay in a dataset."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from datakit.cli.console import note, say, say_json
from datakit.cli.parameters import Flag

if TYPE_CHECKING:
    from datakit.recipe import Recipe


def train(
    inputs: Annotated[tuple[str, ...], Parameter(negative="")],
    /,
    *,
    output: str = "tokenizer.json",
    vocabulary: int = 32_768,
    special: Annotated[tuple[str, ...], Parameter(negative="")] = ("<|endoftext|>",),
    root: str | None = None,
    workers: int | None = None,
    json: Flag = False,
) -> int:
    """Train a byte-level BPE tokenizer.

    Trains on text files of any supported format, or on the documents that stay in a recipe's dataset. A document that
    occurs several times in one input or source is used only once. The same input always gives the same file.

    Examples:
      datakit tokenizer train texts/ more.jsonl.gz --vocabulary 16384
      datakit tokenizer train books.toml --root data --output books-tokenizer.json

    Parameters
    ----------
    inputs
        Either texts (files, folders or URLs) or one recipe (a TOML file or a name in the catalog).
    output
        The file to write (tokenizer.json). An existing file is never overwritten.
    vocabulary
        Maximum number of tokens in the vocabulary.
    special
        A special token to include in the vocabulary. Can be repeated.
    root
        The root in which to keep intermediate steps; by default they are removed at the end.
    workers
        Number of tasks to run at a time; by default one per usable CPU.
    json
        Print one JSON object.
    """
    from datakit.engine.observe.progress import view_for_terminal
    from datakit.errors import UsageError
    from datakit.pipeline.running import run
    from datakit.storage import atomic, stale_files, urls

    if not inputs:
        raise UsageError("nothing to train on; give text files, folders or a recipe")
    if urls.exists(urls.absolute(output)):
        raise UsageError(f"{output} already exists and is never overwritten; choose another --output")
    with nullcontext(root) if root else stale_files.scratch_directory() as scratch:
        with view_for_terminal() as view:
            recipe = training_recipe(inputs, vocabulary, special)
            result = run(recipe, str(scratch), workers=workers, until="train-tokenizer", observer=view)
        (trained,) = result.steps_of("train-tokenizer")
        atomic.commit_bytes(urls.read_bytes(urls.join(trained.directory, "tokenizer.json")), urls.absolute(output))
    tokens = trained.manifest.totals.rows
    if json:
        say_json({"tokenizer": str(output), "vocabulary": tokens, "counters": trained.manifest.counters})
        return 0
    say(output)
    note(f"{tokens:,} tokens; to use it in a recipe, set tokenizer = {output!r} in [tokenize]")
    return 0


def training_recipe(inputs: tuple[str, ...], vocabulary: int, special: tuple[str, ...]) -> Recipe:
    """Return the recipe whose dataset the tokenizer is trained on: the recipe that was given, or a new one with one
    source per input. It has no consolidate step, since training does not read its output.
    """
    from dataclasses import replace

    from datakit.recipe import Recipe, Source, absolute, catalog_names, load_recipe

    settings = {"tokenizer": "train", "train": {"vocabulary": vocabulary, "special": list(special)}}
    unpublished = {"write": False}
    first = inputs[0]
    if len(inputs) == 1 and (first.endswith(".toml") or (first in catalog_names() and not Path(first).exists())):
        return replace(load_recipe(first), tokenize=settings, consolidate=unpublished)
    sources = tuple(Source(f"input-{number}", absolute(url, Path.cwd())) for number, url in enumerate(inputs, start=1))
    return Recipe("tokenizer", sources, tokenize=settings, consolidate=unpublished)
