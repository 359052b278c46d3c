"""Reads a run file: finds it, applies the overrides, and decodes all tables except `[data]` to a `Run`.

    file = read_run_file("run.toml", ["steps=20"])           # or a built-in run's name, or the directory of a run
    run = file.run(vocabulary=50_304)

Relative paths in a run file are relative to its folder. A model of the hub, which `initialize_from` may name, gives the
defaults of the model's settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.toml_config import assigned, check_keys, convert, decoded, load_toml, names_of
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.config import Evaluation, Log, Run
from datakit.trainer.huggingface import initialize
from datakit.trainer.models import full_name, load_model
from datakit.trainer.optimizers import DEFAULT, load_optimizer
from datakit.trainer.run_directory.named_run import with_absolute_places
from datakit.trainer.run_directory.run_code import without_code
from datakit.trainer.run_directory.run_record import is_run, read_run_record

RUNS = Path(__file__).with_name("runs")
TABLES: dict[str, type] = {"checkpoint": Checkpoints, "evaluation": Evaluation, "log": Log}


@dataclass(frozen=True)
class RunFile:
    """A run file with its overrides applied."""

    path: Path
    run_tables: dict[str, Any]
    data_table: dict[str, Any]

    def run(self, vocabulary: int) -> Run:
        """Return the run; `vocabulary` is the default of `model.vocabulary`. If the run starts from a model of the hub,
        config.json gives the defaults of all settings of the model. Raises RecipeError or UsageError.
        """
        tables, own, folder = self.run_tables, self.run_tables.get("model", {}), self.path.resolve().parent
        model = {"vocabulary": vocabulary, **own}
        hub = initialize.folder_of(tables.get("initialize_from"), folder)
        if hub is not None:
            model = initialize.model_table(hub, own)
            tables = {**tables, "initialize_from": f"{initialize.PREFIX}{hub}"}
        else:
            tables = with_absolute_places(tables, folder)
        return parse_run({**tables, "model": model}, str(self.path), folder)


def read_run_file(name_or_path: str | Path, overrides: Iterable[str] = ()) -> RunFile:
    """Read the run file at this path, that of the built-in run with this name, or the settings recorded in a run's
    directory. Raises RecipeError or UsageError, also if only the directory names code (see `run_code.py`).
    """
    if is_run(name_or_path):
        directory, overrides = os.fspath(name_or_path), list(overrides)
        path, record = read_run_record(directory)
        tables = without_code(directory, path, record.run, overrides)
        document = assigned({**tables, "data": record.data}, overrides)
        return RunFile(path, document, document.pop("data"))
    missing = "no training run {!r}: neither a TOML file nor a known name"
    path, document = load_toml(name_or_path, RUNS, missing, "give the TOML file of a training run", overrides)
    data = document.pop("data", {})
    return RunFile(path, document, data)


def parse_run(document: dict[str, Any], place: str, folder: Path | None = None) -> Run:
    """Decode all tables of a run file except `[data]`. Raises RecipeError for an unknown key at any level.

    folder: the run file's folder, which the paths of model and optimizer files are relative to; None: the working
    directory.
    """
    check_keys(document, (name for name in names_of(Run) if name != "kind"), place)
    model = dict(document.get("model", {}))
    kind = str(model.pop("kind", "grug"))
    optimizer = dict(document.get("optimizer", {}))
    rule = load_optimizer(optimizer.pop("kind", DEFAULT), folder)
    tables = {**document, "model": model, "optimizer": optimizer}
    types = {**TABLES, "model": load_model(kind, folder).Config, "optimizer": rule}
    decoded_tables = {name: decoded(tables.get(name, {}), table, f"{place}, [{name}]") for name, table in types.items()}
    return convert({**document, **decoded_tables, "kind": full_name(kind, folder)}, Run, place)
