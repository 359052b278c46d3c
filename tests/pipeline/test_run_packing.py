"""Packing steps are reused, shared by mixtures, and stored next to the datasets of a root."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from datakit.storage.manifest import computed_fingerprint, read_manifest
from tests.support.loader.mixture_files import MIXTURE, cache, called, mixture
from tests.support.paths import FIXTURES
from tests.support.small_shelf import changes, step, tree

__all__ = ["cache", "mixture"]  # fixtures
OTHER_WEIGHTS_AND_SEED = MIXTURE.replace("{ web = 0.9, code = 0.1 }", "{ web = 0.2, code = 0.8 }").replace(
    "seed = 5", "seed = 6"
)


def test_packing_is_reused_and_shared(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = mixture.parent / "root"
    assert called("mixture", "pack", str(mixture), "--root", str(root), "--workers", "2") == 0
    before = changes(root)
    other = mixture.with_name("other.toml")
    other.write_text(OTHER_WEIGHTS_AND_SEED)
    for file in (mixture, other):
        capsys.readouterr()
        assert called("mixture", "pack", str(file), "--root", str(root), "--json") == 0
        assert json.loads(capsys.readouterr().out)["reused"] is True
    assert changes(root) == before
    assert called("mixture", "preview", str(mixture), "--root", str(root)) == 0
    assert called("status", str(root)) == 0


def test_root_with_packing_still_shows_its_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(shutil.copytree(FIXTURES / "root-0.1" / "data", tmp_path / "root"))
    file = tmp_path / "mix.toml"
    file.write_text(
        f'steps = 4\nsequence_length = 64\n[components.all]\ncache = "{step(root, "shelf/tokenize-*")}"\n'
        'packing = "truncate"\n[[stages]]\nweights = { all = 1 }\n'
    )
    before = tree(root)
    assert called("mixture", "pack", str(file), "--root", str(root), "--workers", "1") == 0
    after = tree(root)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[0] for name in set(after) - set(before)} == {"packing"}
    manifest = read_manifest(str(step(root, "packing/packing-64-truncate-*")))
    assert computed_fingerprint(manifest) == manifest.fingerprint
    for directory, stage in ((root, "tokenize"), (step(root, "packing/packing-64-truncate-*"), "packing-64-truncate")):
        capsys.readouterr()
        assert called("inspect", str(directory), "--json") == 0
        assert json.loads(capsys.readouterr().out)["stage"] == stage
    assert called("gc", str(root)) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("0 leftovers")
