"""Describes what a run reads, and refuses to resume the run if the batches before the checkpoint would have been
different. The description is stored in the run's checkpoints.

Many settings determine the batches before the checkpoint's step: the seed, sources, held-out documents, block sizes,
windows and packing, and the stages, lengths, batch sizes and exclusions in effect until then. If any of these differed,
the resumed run would silently read some tokens twice and never read others, so an error that states the difference is
raised.
Settings that only determine where the run ends may differ if the end does not affect the batches before the checkpoint.
Settings that take effect at the checkpoint's step or later may also differ. To change a mixture on purpose, add a
stage. All permitted changes are returned for the caller to log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from datakit.errors import MixtureChangedError
from datakit.loader.mixture.schedule import Schedule, SlotAxis
from datakit.loader.sources.exclusions import describe_exclusions

if TYPE_CHECKING:
    from datakit.loader.mixture.sequence_order import SequenceOrder

FORMAT = "datakit.mixture/1"
TIMED = ("sequence_length", "batch_size", "stages", "exclusions")
ENDING = ("stop", "final_batch", "max_epochs")  # these only determine where the run ends
HINTS = {"window_blocks": " (derived from memory_bytes and the components; set the old value in the Shuffle)"}


def describe(order: SequenceOrder) -> dict[str, Any]:
    """Return a description, as JSON values, of what a run with this sequence order reads. Descriptions are equal if the
    mixtures and the contents of their sources are equal.
    """
    mixture, simulate = order.mixture, order.mixture.simulate
    stages = [[slot, {n: float(w) for n, w in sorted(weights.items()) if w > 0}] for slot, weights in order.stages]
    settings: dict[str, Any] = {
        "seed": mixture.seed,
        "block": mixture.block,
        "stop": mixture.stop,
        "final_batch": mixture.final_batch,
        "simulate": None if simulate is None else [simulate.run_tokens, simulate.target_tokens],
        "sequence_length": [list(pair) for pair in order.lengths.changes()],
        "batch_size": [list(pair) for pair in mixture.batches.changes()],
        "stages": stages,
        "components": {name: _component(order, i, name) for i, name in enumerate(order.names)},
    }
    if mixture.exclusions:  # without any, the description is that of a version that had no exclusions
        settings["exclusions"] = describe_exclusions(mixture.exclusions)
    return {"format": FORMAT, "fingerprint": fingerprint_of(settings), "slots": order.slots, **settings}


def fingerprint_of(settings: Mapping[str, Any]) -> str:
    """Return the hash of the settings' canonical JSON: 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(dict(settings), order="sorted"))


def verify(saved: Mapping[str, Any], current: Mapping[str, Any], step: int) -> list[str]:
    """Return a line for each permitted change. Raises MixtureChangedError if batches before `step` would differ."""
    if saved.get("format") != FORMAT:
        raise MixtureChangedError(f"the checkpoint's mixture has format {saved.get('format')!r}, not {FORMAT!r}")
    past, future = _differences(saved, current, step)
    if past:
        lines = "\n  ".join(past)
        raise MixtureChangedError(
            f"the checkpoint is at step {step:,}, but with this mixture, different tokens would have been read by then:"
            f"\n  {lines}\n"
            "Restore these settings; to change the mixture on purpose, add a stage that starts at this step or later."
        )
    return future


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any], step: int) -> tuple[list[str], list[str]]:
    """Return (differences before `step`, differences from `step` on)."""
    past, future = _end_differences(saved, current, step), []
    for name in sorted((set(saved) | set(current)) - {"format", "fingerprint", "components", "slots"}):
        if saved.get(name) == current.get(name):
            continue
        if name in ENDING and "slots" in saved:
            future.append(f"{name}: {saved.get(name)} -> {current.get(name)}")
            continue
        if name not in TIMED:
            past.append(f"{name}: {saved.get(name)} -> {current.get(name)}")
            continue
        unit, limit = ("slot", _slot(saved, step)) if name == "stages" else ("step", step)
        before, after = _until(saved.get(name, []), limit), _until(current.get(name, []), limit)
        if before != after:
            past.append(f"{name} until {unit} {limit:,}: {before} -> {after}")
        else:
            future.append(f"{name}: {_from(saved.get(name, []), limit)} -> {_from(current.get(name, []), limit)}")
    served = {name for _, weights in _until(saved["stages"], _slot(saved, step)) for name in weights}
    for name in sorted(set(saved["components"]) | set(current["components"])):
        before, after = saved["components"].get(name), current["components"].get(name)
        for key, line in _component_differences(name, before, after):
            only_the_end = key in ENDING and "slots" in saved
            (past if name in served and not only_the_end else future).append(line)
    return past, future


def _end_differences(saved: Mapping[str, Any], current: Mapping[str, Any], step: int) -> list[str]:
    """Return a list of one line if the runs end differently and this affects batches before `step`: the new run is too
    short, or the saved run's last batch was padded. Otherwise, return an empty list.
    """
    needed, before, now = _slot(saved, step), saved.get("slots"), current["slots"]
    if before == now:
        return []
    if before is not None and before < needed:
        return [f"the run ended with a padded batch after {before:,} sequences -> {now if now is None else f'{now:,}'}"]
    if now is not None and now < needed and "slots" in saved:
        return [f"the run ends after {now:,} sequences, but {needed:,} were read"]
    return []


def _component_differences(name: str, saved: Any, current: Any) -> list[tuple[str, str]]:
    """Return a component's (setting, difference) pairs; the setting is "" if the component is new or missing."""
    if saved is None or current is None:
        return [("", f"component {name!r} is {'new' if saved is None else 'missing'}")]
    keys = [key for key in sorted(set(saved) | set(current)) if saved.get(key) != current.get(key)]
    place = f"component {name!r}"
    return [(key, f"{place}, {key}: {saved.get(key)} -> {current.get(key)}{HINTS.get(key, '')}") for key in keys]


def _until(entries: list[list[Any]], limit: int) -> list[list[Any]]:
    return [entry for entry in entries if entry[0] < limit]


def _from(entries: list[list[Any]], limit: int) -> list[list[Any]]:
    return [entry for entry in entries if entry[0] >= limit]


def _slot(saved: Mapping[str, Any], step: int) -> int:
    return SlotAxis(Schedule(tuple((a, b) for a, b in saved["batch_size"]))).first_slot(step)


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
