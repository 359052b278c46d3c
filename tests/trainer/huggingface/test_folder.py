"""A model's folder is read file by file, and each contradiction between its files has an error of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save_file

from datakit.errors import CheckpointError, UsageError
from datakit.trainer.huggingface import folder
from datakit.trainer.huggingface.folder import INDEX, open_folder
from tests.support.hub_models.folders import DESCRIPTION, write_folder


@pytest.mark.parametrize("shards", [1, 3])
def test_all_tensors_are_found(shards: int, tmp_path: Path) -> None:
    expected = write_folder(tmp_path / "model", shards)
    found = open_folder(tmp_path / "model")
    assert (found.description, {*found.tensors}, len(found.tensors)) == (DESCRIPTION, {*expected}, len(expected))
    for name, array in expected.items():
        np.testing.assert_array_equal(found.tensors[name], array)
    assert len(found.record["files"]) == shards + 1


def test_the_digest_covers_contents_and_not_the_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_folder(tmp_path / name, 2)
    first, second = (open_folder(tmp_path / name) for name in ("a", "b"))
    assert first.digest == second.digest
    shard = next(iter(second.files.values())).path
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert open_folder(tmp_path / "b").digest != first.digest


def change_index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        index = json.loads((path / INDEX).read_text())
        change(index)
        (path / INDEX).write_text(json.dumps(index))

    return damage


def copy_tensor(path: Path) -> None:
    """Put a tensor of the second file into the first one, too."""
    first, second = sorted(path.glob("model-*"))
    stolen = load_file(second)
    name = sorted(stolen)[0]
    save_file(load_file(first) | {name: stolen[name]}, first)


def swap(index: dict[str, Any]) -> None:
    """Name the other file for the final norm."""
    names, weights = sorted({*index["weight_map"].values()}), index["weight_map"]
    weights["model.norm.weight"] = names[1 - names.index(weights["model.norm.weight"])]


FIRST = "model-00001-of-00002.safetensors"
DAMAGE = [
    (lambda path: (path / FIRST).unlink(), CheckpointError, f"{FIRST} is missing, although"),
    (copy_tensor, CheckpointError, "is in both model-00001-of-00002.safetensors and model-00002"),
    (change_index(lambda index: index["weight_map"].pop("lm_head.weight")), CheckpointError,
     "lacks tensors that are in the files: 1, such as 'lm_head.weight'"),
    (change_index(lambda index: index["weight_map"].update(x=FIRST)), CheckpointError,
     "names tensors that are in no file: 1, such as 'x'"),
    (change_index(swap), CheckpointError, "names the wrong file for tensors: 1, such as 'model.norm.weight'"),
    (change_index(lambda index: index["metadata"].update(total_size=7)), CheckpointError, "states a total_size of 7"),
    (change_index(lambda index: index["weight_map"].update(x="../x.safetensors")), CheckpointError,
     "is not a safetensors file in the same folder"),
    (change_index(lambda index: index["weight_map"].update(x="x.bin")), CheckpointError, "names 'x.bin', which is not"),
    (lambda path: (path / INDEX).write_text("{"), CheckpointError, f"{INDEX} cannot be read"),
    (lambda path: (path / "model-00009-of-00009.safetensors").write_bytes(b""), CheckpointError,
     "model-00009-of-00009.safetensors is not named in"),
    (lambda path: (path / FIRST).write_bytes((path / FIRST).read_bytes()[:-4]), CheckpointError,
     f"{FIRST} is not a valid safetensors file"),
    (lambda path: (path / "model.safetensors").write_bytes(b""), CheckpointError, "has both model.safetensors and"),
    (lambda path: (path / "config.json").unlink(), UsageError, "has no config.json"),
    (lambda path: (path / "config.json").write_text("[]"), UsageError, "config.json cannot be read"),
    (lambda path: (path / "config.json").write_text(json.dumps(DESCRIPTION | {"auto_map": {"AutoConfig": "x.Y"}})),
     UsageError, "`auto_map` names Python code in the folder, which datakit never runs"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "error", "message"), DAMAGE, ids=[message[:40] for _, _, message in DAMAGE])
def test_contradictions_are_named(damage: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "model", 2)
    damage(tmp_path / "model")
    with pytest.raises(error, match=message):
        open_folder(tmp_path / "model")


def test_pickles_and_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder; download the model first"):
        open_folder(tmp_path / "allenai/OLMoE-1B-7B")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"has neither model.safetensors nor"):
        open_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UsageError, match=r"only in pickle files \(such as pytorch_model.bin\)"):
        open_folder(tmp_path)


def test_an_enormous_config_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "model")
    monkeypatch.setattr(folder, "MOST_JSON_BYTES", 100)
    with pytest.raises(UsageError, match="has more than 100 bytes"):
        open_folder(tmp_path / "model")
