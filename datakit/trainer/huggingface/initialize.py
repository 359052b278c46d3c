"""Starts a run from a model of the hub, which `initialize_from = "hf:<folder>"` names: takes the model's settings and
weights from the folder, and compares the folder's tokenizer with that of the run's caches.

    initialize_from = "hf:models/OLMoE-1B-7B"     # relative to the run file

    [model]                                       # config.json has the settings; the run may choose only these:
    remat = "none"                                # settings of memory and speed,
    capacity_factor = 1.25                        # and those in TRAINING

The fingerprint of such a run covers the contents of the folder's files, not the folder's path. So a folder may be
moved, and a changed folder makes another run. Cost: each start of the run reads the folder's files once, to hash them,
and a fresh start reads them once more. Memory on the host: one fp32 copy of the weights and one tensor.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from datakit.errors import UsageError
from datakit.trainer.huggingface.folder import HubFolder, open_folder
from datakit.trainer.huggingface.import_checkpoint import arrays_from_hub, config_from_hub
from datakit.trainer.huggingface.tokenizer_ids import compare_tokenizers
from datakit.trainer.models import KIND, load_model
from datakit.trainer.models.experts.capacity import CAPACITY
from datakit.trainer.models.protocol import operation_settings
from datakit.trainer.models.weights import Tree

PREFIX = "hf:"
# Settings that concern the training of a model, not what it computes: losses, precision, and what training drops.
# `window` and `rope_theta` are not among them, although the weights would have the same shapes: they change the model.
TRAINING = frozenset(("balance_loss", "compute", "router_z_loss", "z_loss", *CAPACITY))
SETTING = "initialize_from"


def folder_of(setting: object, base: Path | None = None) -> Path | None:
    """Return the folder that a value of `initialize_from` names; None if it names no folder of the hub. A
    relative path is relative to `base`, or to the working directory.
    """
    if not isinstance(setting, str) or not setting.startswith(PREFIX):
        return None
    path = Path(setting.removeprefix(PREFIX)).expanduser()
    return (base or Path()).joinpath(path).absolute()


def opened(path: Path) -> HubFolder:
    """Open a folder, or return it if it is already open and unchanged, so that it is hashed only once."""
    files = sorted(path.iterdir()) if path.is_dir() else []
    status = [(file.name, file.stat()) for file in files if file.exists()]
    return _opened(path, tuple((name, found.st_size, found.st_mtime_ns) for name, found in status))


@lru_cache(maxsize=4)
def _opened(path: Path, status: tuple[tuple[str, int, int], ...]) -> HubFolder:
    return open_folder(path)


def content_of(setting: str | None) -> str | None:
    """Return what stands for a folder of the hub in a run's fingerprint: `hf:` and the hash of its contents; None if
    the value of `initialize_from` names no such folder.
    """
    path = folder_of(setting)
    return None if path is None else PREFIX + opened(path).digest


def model_table(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the complete `[model]` table of a run that starts from a folder: the settings in config.json and, from
    `table`, those that a run may choose. Raises UsageError if the table contradicts config.json.
    """
    base = config_from_hub(opened(path).description)
    kind = type(base).__module__.rpartition(".")[2]
    if table.get("kind", kind) != kind:
        raise UsageError(
            f'{SETTING} = "{PREFIX}{path}": this model is one of kind = "{kind}", but [model] has kind = '
            f'"{table["kind"]}"; change or remove `kind`'
        )
    chosen = {name: value for name, value in table.items() if name != "kind"}
    given = dataclasses.asdict(base)
    _require_equal(path, {name: (value, given[name]) for name, value in chosen.items() if name in given}, base)
    return {"kind": kind, **given, **chosen}


def check_model(path: Path, kind: str, config: Any) -> None:
    """Raise UsageError if a model has other settings than a folder's config.json, apart from those of training."""
    base = config_from_hub(opened(path).description)
    if not isinstance(config, type(base)):
        fits = ", ".join(name for name in KIND.built_in if load_model(name).Config is type(base))
        raise UsageError(f"{path} has a model of kind {fits!r}, but the run has kind {kind!r}; use the former")
    given = dataclasses.asdict(base)
    _require_equal(path, {name: (value, given[name]) for name, value in dataclasses.asdict(config).items()}, base)


def _require_equal(path: Path, pairs: Mapping[str, tuple[Any, Any]], base: Any) -> None:
    free = (TRAINING & {field.name for field in dataclasses.fields(base)}) | operation_settings(base).keys()
    plain = {name: (tuple(own) if isinstance(own, list) else own, given) for name, (own, given) in pairs.items()}
    different = {name: pair for name, pair in plain.items() if pair[0] != pair[1] and name not in free}
    if different:
        listed = ", ".join(f"model.{name} is {own!r} instead of {given!r}" for name, (own, given) in different.items())
        raise UsageError(
            f"{path / 'config.json'} describes another model: {listed}; remove these settings (a run may choose only "
            f"{', '.join(sorted(free))})"
        )


def load_weights(path: Path, params: Tree, config: Any) -> tuple[Tree, dict[str, Any]]:
    """Return a folder's weights, placed like `params`, and the folder's record for the manifest. The arrays in `params`
    are replaced one by one, so that the devices never hold two copies. Raises UsageError and CheckpointError.
    """
    folder = opened(path)
    return _placed(arrays_from_hub(folder.tensors, config), params), {"by": SETTING, **folder.record}


def _placed(host: Tree, params: Tree) -> Tree:
    """Move arrays to the devices of the arrays that they replace; both trees are emptied on the way."""
    placed: Tree = {}
    for name in list(host):
        array, old = host.pop(name), params.pop(name)
        if isinstance(array, dict):
            placed[name] = _placed(array, old)
            continue
        shape, sharding = old.shape, old.sharding
        old.delete()
        placed[name] = jax.make_array_from_callback(shape, sharding, lambda index, array=array: array[index])
    return placed


def check_tokenizer(path: Path, tokenizer: bytes, place: str) -> tuple[str, ...]:
    """Compare a folder's tokenizer.json with the tokenizer of the run's caches, which is at `place`; return warnings.
    Raises TokenizerError if an id stands for different tokens in the two.
    """
    theirs = opened(path).tokenizer
    if theirs is None:
        return (f"warning: {path} has no tokenizer.json, so it is unknown whether the caches' token ids fit the model",)
    if hashlib.sha256(theirs).digest() == hashlib.sha256(tokenizer).digest():
        return ()
    return compare_tokenizers(theirs, str(path / "tokenizer.json"), tokenizer, place)
