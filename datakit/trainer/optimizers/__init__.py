"""Optimizers: one file each (`adamh.py`, `adamw.py`, `muon.py`, `muonh.py`), found by name; your own by import path or
file. The other modules contain what optimizers share: settings, schedules, clipping and the update of all weights.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from datakit.errors import UsageError
from datakit.trainer.optimizers.protocol import Optimizer
from datakit.trainer.plugins import Kind, identity_of, load_plugin

DEFAULT = "adamh"
KIND = Kind("optimizer", __name__, ("adamh", "adamw", "muon", "muonh"), ("Config",), "trainer/optimizers/protocol.py")


def load_optimizer(name: str, folder: Path | None = None) -> type[Optimizer]:
    """Return the `Config` class of a built-in optimizer, or of your own by import path or `.py` file; a relative path
    starts at `folder`. Raises UsageError if there is no such module, or if it does not define an optimizer.
    """
    config = load_plugin(name, KIND, folder).Config
    wrong = f"optimizer {name!r}: Config"
    if not (isinstance(config, type) and issubclass(config, Optimizer) and dataclasses.is_dataclass(config)):
        raise UsageError(f"{wrong} is not a dataclass derived from Optimizer; see {KIND.explained}")
    missing = [method for method in ("moments", "update") if getattr(config, method) is getattr(Optimizer, method)]
    if missing:
        raise UsageError(f"{wrong} does not define {' and '.join(missing)}; see {KIND.explained}")
    return config


def record(optimizer: Optimizer) -> dict[str, Any]:
    """Return what identifies an optimizer in a run's fingerprint: its name as `kind`, all its settings and, unless it
    is built in, the hash of its `source`.
    """
    return identity(type(optimizer)) | dataclasses.asdict(optimizer)


def identity(config: type) -> dict[str, str]:
    """Return what names the code of a `Config` class in a fingerprint (see `plugins.identity_of`)."""
    return identity_of(sys.modules[config.__module__], KIND)
