"""Caches train on a machine with only numpy, TensorStore and the trainer's libraries."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from datakit.loader import Loader, load_mixture
from datakit.pipeline.run_packing import pack_mixture
from tests.support.caches import make_cache
from tests.support.faults.bare_machine import on_bare_machine, refused
from tests.support.partitions import words
from tests.support.run_files import MODEL

MIXTURE = """
sequence_length = 32
batch_size = 8
seed = 3
[components.web]
cache = "cache"
source = "web"
validation_tokens = 400
[components.code]
cache = "cache"
source = "code"
packing = { too_long = "split", max_documents = 6 }
[[stages]]
weights = { web = 0.5, code = 0.5 }
"""
LOAD = """
import hashlib, sys
from datakit.loader import Loader, load_mixture
with Loader(load_mixture(sys.argv[1], sys.argv[2])) as loader:
    for batch in loader.iterate(0, 20):
        print(*(hashlib.sha256(array.tobytes()).hexdigest() for array in batch.arrays().values()))
"""
LOOK = """
import json, sys
from datakit import open_cache
from datakit.validate.intact import require_intact
cache = open_cache(sys.argv[1])
rows = range(0, cache.documents_count, 50)
print(json.dumps([require_intact(cache), [cache.position_of(row) for row in rows], cache.row_at(cache.tokens - 1)]))
"""
COMMAND = "import sys; from datakit.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files from another machine: a cache of two sources, a mixture, the counts of its packed component."""
    folder = tmp_path_factory.mktemp("machine")
    texts = {
        name: [words(start + i, 1, 20 + i % 60)[0] for i in range(200)] for start, name in ((0, "code"), (1000, "web"))
    }
    make_cache(folder, texts, bits=1)
    (folder / "mix.toml").write_text(MIXTURE)
    pack_mixture(load_mixture(folder / "mix.toml"), str(folder), workers=1)
    return folder


def test_the_pipeline_s_libraries_are_missing() -> None:
    assert {"pyarrow", "duckdb", "tokenizers", "fastokens", "ray", "numba"} <= refused()
    with pytest.raises(AssertionError, match="No module named 'pyarrow'"):
        on_bare_machine("import pyarrow")


def test_batches_are_the_same(root: Path) -> None:
    mixture = str(root / "mix.toml")
    with Loader(load_mixture(mixture, str(root))) as loader:
        batches = list(loader.iterate(0, 20))
    assert any((np.diff(batch.segments, axis=1) > 0).any() for batch in batches)
    expected = [[hashlib.sha256(array.tobytes()).hexdigest() for array in one.arrays().values()] for one in batches]
    assert [line.split() for line in on_bare_machine(LOAD, mixture, str(root)).splitlines()] == expected


def test_a_cache_is_validated_and_read_by_position(root: Path) -> None:
    from datakit import open_cache
    from datakit.validate.intact import require_intact

    cache = open_cache(str(root / "cache"))
    positions = [cache.position_of(row) for row in range(0, cache.documents_count, 50)]
    expected = [require_intact(cache), positions, cache.documents_count - 1]
    assert json.loads(on_bare_machine(LOOK, str(root / "cache"))) == expected


def test_a_command_names_its_missing_library(root: Path) -> None:
    with pytest.raises(AssertionError, match=r"No module named 'tokenizers'; .*pip install datakit"):
        on_bare_machine(COMMAND, "cache", "show", str(root / "cache"), "--step", "0")


def test_a_model_is_trained_and_evaluated(root: Path) -> None:
    pytest.importorskip("jax")
    (root / "run.toml").write_text(MODEL + '[data]\nmixture = "mix.toml"\n')
    place = [str(root / "run.toml"), "--root", str(root), "--json"]
    trained = json.loads(on_bare_machine(COMMAND, "train", *place))
    lines = [json.loads(line) for line in (Path(trained["directory"]) / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["train/loss"] < lines[0]["train/loss"]
    evaluated = json.loads(on_bare_machine(COMMAND, "eval", *place))
    assert evaluated["figures"]["eval/web/bpb"] > 0


ALLOWED = """
import importlib, importlib.abc, pkgutil, sys

class Absent(importlib.abc.MetaPathFinder):
    names = {"jaxtyping", "beartype", "pyarrow", "duckdb", "numba", "tokenizers", "fastokens", "fsspec", "rich",
             "cyclopts", "orjson", "zstandard", "isal", "psutil", "scipy", "ray", "matplotlib", "safetensors"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"no {name} on a training machine", name=name)

sys.meta_path.insert(0, Absent())
import datakit.trainer
for module in pkgutil.walk_packages(datakit.trainer.__path__, "datakit.trainer."):
    importlib.import_module(module.name)
"""


def test_the_trainer_imports_without_other_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOWED], capture_output=True, text=True, check=False)
    # jax and orbax import some of these themselves if installed; they must do without them
    assert done.returncode == 0, done.stderr
