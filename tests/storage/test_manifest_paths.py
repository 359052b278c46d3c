"""A manifest whose paths lead out of the step is refused wherever it is read, and none is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datakit.errors import CorruptError
from datakit.storage import manifest as manifests
from datakit.storage.manifest import InputReference, Manifest, Partition, Quarantine, StepFile, Totals

OUTSIDE = ("../secret", "/etc/passwd", "data/../../secret", "data//x", ".", "", "nul\0")


def made(**changes: Any) -> Manifest:
    return Manifest(**{"stage": "normalize", "dataset": "d", "fingerprint": "f" * 32, "identity": "f" * 32,
                       "parameters": {}, "inputs": [], "schema": [], "partitions": [], "totals": Totals(0, 0),
                       "counters": {}, "quarantine": Quarantine(0), "version": 1} | changes)  # fmt: skip


def crafted(directory: Path, manifest: Manifest) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").write_bytes(b"".join(manifests.pieces(manifests.sealed(manifest))))


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_of_the_step_are_refused(tmp_path: Path, path: str) -> None:
    for changes in (
        {"partitions": [Partition(path, "s", 0, 1, "x")]},
        {"partitions": [Partition("a//b", "s", 0, 1, "x", copy=path or "..")]},
        {"files": [StepFile(path, 1, "x")]},
        {"quarantine": Quarantine(1, f"{path}/")},
        {"inputs": [InputReference("normalize", f"{path}/manifest.json/x", "f" * 32)]},
        {"inputs": [InputReference("normalize", "/etc/manifest.json", "f" * 32)]},
        {"inputs": [InputReference("normalize", "../a/../../manifest.json", "f" * 32)]},
        {"inputs": [InputReference("normalize", "https://example.org/manifest.json", "f" * 32)]},
    ):
        crafted(tmp_path, made(**changes))
        with pytest.raises(CorruptError, match=r"manifest\.json names the (file|input) .* do not use the step"):
            manifests.read_manifest(str(tmp_path))
        with pytest.raises(CorruptError, match="do not use the step"):
            manifests.write_manifest(made(**changes), str(tmp_path / "written"))


def test_key_of_an_object_may_look_like_a_path_outside(tmp_path: Path) -> None:
    parts = [Partition("../up.txt", "s", 0, 1, "x", copy="hashed~/00")]
    above = InputReference("download", "../../sources/s/download-0/manifest.json", "f" * 32)
    crafted(tmp_path, made(partitions=parts, inputs=[above]))
    assert manifests.read_manifest(str(tmp_path)).partitions == parts
