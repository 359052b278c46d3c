"""Splits a component's source into training and held-out documents, and makes mixtures that read a component only once.

    mixture = Mixture({"web": Component(source, validation_tokens=2_000_000)}, {"web": 1.0}, ...)
    with Loader(held_out_mixture(mixture, "web", sequence_length=4096, batch_size=64)) as validation:
        for batch in validation.iterate(): ...      # each held-out token once, in order; the last batch is padded

held_out.py chooses the held-out documents. Its choice depends only on the source and on the number of tokens to hold
out, so no seed, mixture or sequence length can move a held-out document into training.
"""

from __future__ import annotations

from datakit.errors import LoaderError
from datakit.loader.mixture.config import Component, Mixture, Shuffle, SimulatedEpochs
from datakit.loader.sources.held_out import held_out, kept, remaining
from datakit.loader.sources.token_source import RangeSource, TokenSource


def training_source(component: Component, name: str, simulate: SimulatedEpochs | None = None) -> TokenSource:
    """Return a component's source without its held-out documents. If `simulate` is given, the rest is reduced to about
    as many tokens as `simulate` keeps. Raises LoaderError if no choice of whole documents leaves tokens both to hold
    out and to train on.
    """
    source = component.source
    if component.validation_tokens:
        source = remaining(source, held_out(source, component.validation_tokens, "validation", name))
    if simulate is not None and (tokens := simulate.kept(source.tokens)) < source.tokens:
        source = RangeSource(source, kept(source, tokens, "simulated epochs", name))
    return source


def validation_source(component: Component, name: str) -> TokenSource:
    """Return the held-out documents of a component. Raises LoaderError if there are none."""
    if not component.validation_tokens:
        raise LoaderError(f"component {name!r} has no held-out documents: its validation_tokens is 0")
    return RangeSource(component.source, held_out(component.source, component.validation_tokens, "validation", name))


def held_out_mixture(mixture: Mixture, name: str, *, sequence_length: int, batch_size: int) -> Mixture:
    """Make a mixture that reads a component's held-out documents once, in order. Raises LoaderError if none exist."""
    component = mixture.components[name]
    in_order = Shuffle("none", block_tokens=component.shuffle.block_tokens)
    held = Component(validation_source(component, name), shuffle=in_order)
    return one_pass(mixture, name, held, sequence_length=sequence_length, batch_size=batch_size)


def one_pass(mixture: Mixture, name: str, component: Component, *, sequence_length: int, batch_size: int) -> Mixture:
    """Make a mixture that reads `component` once, under the name `name`, and pads the last batch. The new mixture takes
    `memory_bytes` and `pad_id` from `mixture`.
    """
    return Mixture(
        {name: component},
        {name: 1.0},
        sequence_length=sequence_length,
        batch_size=batch_size,
        stop="first_exhausted",
        final_batch="pad",
        memory_bytes=mixture.memory_bytes,
        pad_id=mixture.pad_id,
    )
