"""What a run reads, as plain values for its checkpoints, and the check that a resumed run has the same past.

The past is what the batches before the checkpoint's step were made of: seed, sources, held-out documents, block sizes
and windows, packing, and the stages, lengths and batch sizes that had begun. If any of it differs, the run would read
some tokens twice and others never, in silence: that is an error which spells out the difference. What begins at the
step or later may differ: a new stage for the annealing is how a mixture is changed on purpose, and the change is
returned, so that it is written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from datakit.errors import MixtureChangedError
from datakit.loader.mixture.schedule import Schedule, SlotAxis

if TYPE_CHECKING:
    from datakit.loader.mixture.sequence_order import SequenceOrder

FORMAT = "datakit.mixture/1"
TIMED = ("sequence_length", "batch_size", "stages")
HINTS = {"window_blocks": " (it follows from memory_bytes and the components; name the old one in the Shuffle)"}


def describe(order: SequenceOrder) -> dict[str, Any]:
    """JSON values; the same mixture over the same content gives the same ones."""
    mixture, simulate = order.mixture, order.mixture.simulate
    settings: dict[str, Any] = {
        "seed": mixture.seed,
        "block": mixture.block,
        "stop": mixture.stop,
        "final_batch": mixture.final_batch,
        "simulate": None if simulate is None else [simulate.run_tokens, simulate.target_tokens],
        "sequence_length": [list(pair) for pair in order.lengths.changes()],
        "batch_size": [list(pair) for pair in mixture.batches.changes()],
        "stages": [[slot, _exact(weights)] for slot, weights in order.stages],
        "components": {name: _component(order, i, name) for i, name in enumerate(order.names)},
    }
    return {"format": FORMAT, "fingerprint": fingerprint_of(settings), **settings}


def fingerprint_of(settings: Mapping[str, Any]) -> str:
    """32 hex digits over the canonical form."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(dict(settings), order="sorted"))


def verify(saved: Mapping[str, Any], current: Mapping[str, Any], step: int) -> list[str]:
    """Raises MixtureChangedError if the batches before `step` differ; else what will differ from there on."""
    if saved.get("format") != FORMAT:
        raise MixtureChangedError(f"the checkpoint's mixture has format {saved.get('format')!r}, this is {FORMAT!r}")
    past, future = _differences(saved, current, step)
    if past:
        lines = "\n  ".join(past)
        raise MixtureChangedError(
            f"the checkpoint is at step {step:,}, but until then this mixture would read other tokens:\n  {lines}\n"
            "Restore these settings; to change the mixture on purpose, add a stage that starts at this step or later."
        )
    return future


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any], step: int) -> tuple[list[str], list[str]]:
    past, future = [], []
    for name in sorted(set(saved) | set(current)):
        if name in ("format", "fingerprint", "components") or saved.get(name) == current.get(name):
            continue
        if name not in TIMED:
            past.append(f"{name}: {saved.get(name)} -> {current.get(name)}")
            continue
        limit = step if name != "stages" else _slot(saved, step)
        before, after = _until(saved[name], limit), _until(current[name], limit)
        if before != after:
            past.append(f"{name} until {'step' if name != 'stages' else 'slot'} {limit:,}: {before} -> {after}")
        else:
            future.append(f"{name}: {_from(saved[name], limit)} -> {_from(current[name], limit)}")
    served = {name for _, weights in _until(saved["stages"], _slot(saved, step)) for name in weights}
    for name in sorted(set(saved["components"]) | set(current["components"])):
        lines = _component_differences(name, saved["components"].get(name), current["components"].get(name))
        (past if name in served else future).extend(lines)
    return past, future


def _component_differences(name: str, saved: Any, current: Any) -> list[str]:
    if saved is None or current is None:
        return [f"component {name!r} is {'new' if saved is None else 'gone'}"]
    keys = [key for key in sorted(set(saved) | set(current)) if saved.get(key) != current.get(key)]
    return [f"component {name!r}, {key}: {saved.get(key)} -> {current.get(key)}{HINTS.get(key, '')}" for key in keys]


def _until(entries: list[list[Any]], limit: int) -> list[list[Any]]:
    """What had begun before `limit`."""
    return [entry for entry in entries if entry[0] < limit]


def _from(entries: list[list[Any]], limit: int) -> list[list[Any]]:
    return [entry for entry in entries if entry[0] >= limit]


def _slot(saved: Mapping[str, Any], step: int) -> int:
    return SlotAxis(Schedule(tuple((a, b) for a, b in saved["batch_size"]))).first_slot(step)


def _exact(weights: Mapping[str, float]) -> dict[str, float]:
    return {name: float(weight) for name, weight in sorted(weights.items()) if weight > 0}


def _component(order: SequenceOrder, number: int, name: str) -> dict[str, Any]:
    component, stream = order.mixture.components[name], order.streams[number]
    shuffle = component.shuffle
    return {
        "identity": stream.source.identity,
        "tokens": stream.source.tokens,
        "validation_tokens": component.validation_tokens,
        "packing": None if component.packing is None else component.packing.counts_name(0).removeprefix("packing-0-"),
        "shuffle": shuffle.kind,
        "block_tokens": shuffle.block_tokens,
        "window_blocks": stream.settings.window_blocks if shuffle.kind == "block" else None,
        "max_epochs": component.max_epochs,
    }
