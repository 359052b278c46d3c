"""Writes the run file of a plan, for `datakit train --flops` and `datakit size --toml`.

    plan, text = sized(1e18, 512, "data/books")

The file is complete and can be edited: it states all sizes of the model, so the run stays the same when defaults
change. The run trains on one cache, and holds out up to 1 % of it, at most a million tokens, for validation.
"""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from datakit.cache.reader import Cache, open_cache
from datakit.errors import UsageError
from datakit.storage import urls
from datakit.trainer.models import full_name
from datakit.trainer.models.protocol import operation_settings
from datakit.trainer.plugins import SUFFIX
from datakit.trainer.sizes.scaling import Plan, rounded_vocabulary, size

HELD_OUT_SHARE, HELD_OUT_TOKENS = 100, 1_000_000
EVALUATIONS = 20  # number of evaluations in a run


def sized(
    flops: float,
    hidden: int,
    cache: str,
    *,
    kind: str = "grug",
    sequence: int = 4096,
    beta2_base: float | None = None,
    folder: Path | None = None,
) -> tuple[Plan, str]:
    """Plan a run on a cache, or on a dataset, which stands for its current cache. Return the plan, and the run file as
    TOML. If `kind` is the path of a file, it is relative to the working directory. In the run file, this path is
    relative to `folder`, in which the run file will be, or absolute without it. Raises UsageError, as `size` does, and
    the errors of `open_cache`.
    """
    place = urls.absolute(cache)
    opened = open_cache(place)
    vocabulary = rounded_vocabulary(opened.contract.vocabulary_size)
    plan = size(flops, hidden, kind=kind, vocabulary=vocabulary, sequence=sequence, beta2_base=beta2_base)
    return plan, run_file(plan, place, opened, folder)


def run_file(plan: Plan, place: str, cache: Cache, folder: Path | None = None) -> str:
    """Return the TOML of the run that a plan describes, on the cache at `place`. folder: as in `sized`."""
    component = _plain(urls.name(place))
    held_out = min(HELD_OUT_TOKENS, cache.tokens // HELD_OUT_SHARE)
    budget = f"{plan.flops:.6g}".replace("+", "")
    suffix = "" if plan.kind == "grug" else f"-{_plain(Path(plan.kind).name.removesuffix(SUFFIX))}"
    operation = operation_settings(plan.model)
    model = {name: value for name, value in dataclasses.asdict(plan.model).items() if name not in operation}
    tables: dict[str, dict[str, Any]] = {
        "": {"name": f"{component}-{budget}-{plan.model.hidden}{suffix}", "steps": plan.steps},
        "[model]": {"kind": _kind_from(folder, plan.kind)} | model,
        "[optimizer]": _changed(plan.optimizer),
        "[evaluation]": {"every": -(-plan.steps // EVALUATIONS)} if held_out else {},
        "[data]": {"sequence_length": plan.sequence, "batch_size": plan.batch},
        f"[data.components.{toml(component)}]": {"cache": place, "validation_tokens": held_out or None},
        "[[data.stages]]": {"weights": {component: 1.0}},
    }
    epochs = plan.tokens / max(cache.tokens, 1)
    head = [
        f"# Sized for {budget} FLOPs: {plan.tokens:.4g} tokens, which is {epochs:.2g} times the cache.",
        *(line for warning in plan.warnings for line in _comment(f"Warning: {warning}.")),
    ]
    parts = ["\n".join(head), *(_table(title, table) for title, table in tables.items() if table)]
    return "\n\n".join(parts) + "\n"


def write(text: str, path: Path) -> None:
    """Write a run file. An equal file is left as it is, so that repeating a command resumes the run. Raises UsageError
    if the file exists with other contents.
    """
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        raise UsageError(
            f"{path} exists with other settings; train it with `datakit train {path}`, or choose another file with "
            "--output"
        )


def default_path(text: str) -> Path:
    """Return the file in the current directory for a run file with this text: its run's name, with the ending .toml."""
    return Path(f"{tomllib.loads(text)['name']}.toml")


def _plain(text: str) -> str:
    """Return a text as a part of a run's name."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text)


def _kind_from(folder: Path | None, kind: str) -> str:
    """Return the name of a model as a run file in `folder` has to state it; None: a run file in any folder."""
    if folder is None or not kind.endswith(SUFFIX):
        return full_name(kind)
    return os.path.relpath(full_name(kind), folder.resolve())


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="#   ")


def _changed(settings: Any) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    return {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != field.default
    }


def _table(title: str, settings: dict[str, Any]) -> str:
    lines = [f"{name} = {toml(value)}" for name, value in settings.items() if value is not None]
    return "\n".join([title, *lines] if title else lines)


def toml(value: Any) -> str:
    """Return a string, number, boolean, list or dict as TOML.
    >>> toml({"a": [1, 2.5, True]})
    '{ "a" = [1, 2.5, true] }'
    """
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{toml(name)} = {toml(entry)}' for name, entry in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
