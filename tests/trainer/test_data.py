"""The data of a run file are checked before anything is trained."""

from __future__ import annotations

import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import LoaderError, RecipeError, TokenizerError, UsageError
from datakit.loader import load_mixture
from datakit.loader.mixture.toml_file import ComponentTable, MixtureTable
from datakit.toml_config import names_of
from datakit.trainer.data import EvaluationTable, Resolved, open_data, record_caches, recorded_caches
from datakit.trainer.load_run import load_run

pytest.importorskip("pyarrow")
from datakit.pipeline.run_packing import pack_mixture
from tests.support.caches import make_cache, trained
from tests.support.partitions import words
from tests.support.run_files import write_run_file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of two sources and a run file."""
    return write_run_file(tmp_path_factory.mktemp("data")).parent


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (["model.vocabulary=200"], UsageError, "model.vocabulary is 200, but the caches need at least 400"),
        (["data.components.web.sauce=1"], LoaderError, r"component 'web': unknown key 'sauce'; did you mean 'source'"),
        (["data.components.web.source=wbe"], LoaderError, "no source 'wbe'"),
        (["data.components.web.cache=nowhere"], LoaderError, "nowhere holds no finished token cache"),
        (["data.batchsize=1"], LoaderError, "did you mean 'batch_size'"),
        (["data.evaluation.x.cash=1"], LoaderError, "did you mean 'cache'"),
        (["data.mixture=mix.toml"], RecipeError, "batch_size, components, .*cannot be combined with `mixture`"),
        (["data={}"], RecipeError, "no data"),
        (["data.steps=5"], RecipeError, "steps has no effect here; set the run's steps at the top"),
        (["data.components.code.source=web"], LoaderError, r"'code' and 'web' read the same tokens.* 0 and 400"),
        (['data.components.code={cache="cache"}'], LoaderError, r"'code' would train on documents that 'web' holds"),
        (['data.evaluation={"web/x"={cache="cache"}}'], UsageError, "'web' is the parent of 'web/x'"),
        (["data.evaluation.ema.cache=cache"], UsageError, "evaluation 'ema': eval/ema/"),
        (["nonsense"], UsageError, "does not have the form key=value"),
        (["steps.x=1"], UsageError, "'steps' is a value, not a table"),
    ],
)
def test_mistakes_are_named(root: Path, changes: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_run(root / "run.toml", str(root), changes)


def test_caches_of_two_tokenizers_do_not_mix(root: Path, tmp_path: Path) -> None:
    make_cache(tmp_path, {"code": words(1, 20)}, tokenizer=trained(300))
    with pytest.raises(TokenizerError, match="was made with the tokenizer whose sha256 is"):
        load_run(root / "run.toml", str(root), [f'data.components.code.cache="{tmp_path}/cache"'])


def test_evaluations_grow_with_the_sequences(root: Path) -> None:
    changes = ["data.sequence_length=[[0, 32], [3, 64]]", "data.batch_size=[[0, 8], [4, 16]]"]
    _, data = load_run(root / "run.toml", str(root), changes)
    for step, shape in ((0, (8, 32)), (3, (8, 32)), (4, (8, 64)), (5, (16, 64)), (6, (16, 64))):
        shapes = {next(iter(batches())).tokens.shape for batches in data.evaluations(step).values()}
        assert shapes == {shape}


def test_the_other_lengths_have_the_shape_of_their_first_batch(root: Path) -> None:
    changes = ["data.sequence_length=[[0, 32], [3, 64]]", "data.batch_size=[[0, 8], [4, 16]]"]
    _, data = load_run(root / "run.toml", str(root), changes)
    for step, length in ((0, 64), (3, 64), (4, 32)):
        ((found, sets),) = data.other_lengths(step).items()
        assert found == length
        assert {next(iter(batches())).tokens.shape for batches in sets.values()} == {(8, length)}


DATA = """
[data]
sequence_length = 32
batch_size = 8
stop = "first_exhausted"
[data.components.web]
cache = "cache"
source = "web"
shuffle = { block_tokens = 256 }
[data.components.code]
cache = "cache"
source = "code"
[data.evaluation.exams]
cache = "cache"
source = "code"
[[data.stages]]
weights = { web = 0.75, code = 0.25 }
"""
EXAMS = '[evaluation.exams]\ncache = "cache"\nsource = "code"\n'
KEYS = [
    ("sequence_length", 16),
    ("batch_size", 4),
    ("seed", 1),
    ("block", 64),
    ("stop", "all_exhausted"),
    ("memory_bytes", 40_000),
    ("simulate", {"run_tokens": 1, "target_tokens": 2}),
    ("final_batch", "pad"),
    ("pad_id", 7),
    ("stages", [{"weights": {"web": 0.5, "code": 0.5}}]),
    ("stages", [{"weights": {"web": 0.75, "code": 0.25}}, {"start_slot": 8, "weights": {"code": 1.0}}]),
    ("components.code.packing", "split"),
    ("components.code.source", "web"),
    ("components.code.cache", "other"),
    ("components.web.shuffle", "none"),
    ("components.web.validation_tokens", 400),
    ("components.web.max_epochs", 1),
    ("evaluation.exams.cache", "other"),
    ("evaluation.exams.source", "web"),
    ("mixture", "mix.toml"),
]


@pytest.fixture(scope="module")
def keys_root(root: Path) -> Path:
    """The folder with a second cache, a mixture file, and the packing counts of one mixture."""
    make_cache(root / "more", {"code": [words(start, 1, 60)[0] for start in range(2000, 2120)]})
    (root / "more/cache").rename(root / "other")
    (root / "mix.toml").write_text(DATA.replace("[data]", "").replace("data.", "").replace(EXAMS, ""))
    packed = (root / "mix.toml").read_text().replace('"code"', '"code"\npacking = "split"')
    (root / "packed.toml").write_text(packed)
    pack_mixture(load_mixture(root / "packed.toml"), str(root), workers=1)
    (root / "mix.toml").write_text((root / "mix.toml").read_text().replace("0.75", "0.6"))
    return root


def served(root: Path, changes: dict[str, Any]) -> list[Any]:
    """All that a run reads: the arrays of the batches, and of the evaluations."""
    table = tomllib.loads(DATA)["data"]
    for key, value in changes.items():
        *path, last = key.split(".")
        place = reduce(lambda inner, name: inner[name], path, table)
        place[last] = value
    if "mixture" in changes:
        table = {name: table[name] for name in ("mixture", "evaluation")}
    data = open_data(table, root / "run.toml", str(root))
    with data.loader() as loader:
        batches = [loader[step] for step in range(min(200, loader.steps or 200))]
    sets = [(tag, batch) for tag, of in sorted(data.evaluations(0).items()) for batch in of()]
    return [[array.tolist() for array in batch.arrays().values()] for batch in batches] + [
        (tag, batch.tokens.tolist()) for tag, batch in sets
    ]


@pytest.mark.parametrize(("key", "value"), KEYS)
def test_each_key_of_the_data_changes_what_a_run_reads(keys_root: Path, key: str, value: Any) -> None:
    beside = {"components.web.max_epochs": {"stop": "restart"}}.get(key, {})
    usual = served(keys_root, beside)
    assert served(keys_root, beside) == usual
    assert served(keys_root, {**beside, key: value}) != usual


def test_packed_data_need_no_stored_counts(root: Path) -> None:
    _, data = load_run(root / "run.toml", str(root), ["data.components.code.packing=truncate"])
    with data.loader() as loader:
        assert loader[0].tokens.shape == (8, 32)
        assert 32 in loader.packing_report()["code"]


def test_every_key_of_the_data_is_tested() -> None:
    tested = {key for key, _ in KEYS}
    top = {name for name in names_of(MixtureTable) if name not in ("steps", "exclusions")}  # sources/test_exclusions.py
    assert {key for key in tested if "." not in key} | {"components"} == top | {"mixture"}
    names = {key.split(".")[2] for key in tested if key.startswith("components.") and key.count(".") == 2}
    assert names == {*names_of(ComponentTable)}
    assert {key.split(".")[2] for key in tested if key.startswith("evaluation.")} == {*names_of(EvaluationTable)}


def test_the_vocabulary_defaults_to_the_tokenizer_s(root: Path) -> None:
    run, data = load_run(root / "run.toml", str(root))
    assert data.vocabulary == run.model.vocabulary == 512
    assert data.token_bytes is not None


def test_recorded_paths_hold_in_a_root_behind_a_link(tmp_path: Path) -> None:
    """The run is stored through the link, and its caches are named by their real paths, or the other way round."""
    real, link = tmp_path / "real", tmp_path / "a" / "deep" / "link"
    cache = real / "shelf" / "tokenize-000000000001"
    cache.mkdir(parents=True)
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    for base, other in ((link, real), (real, link)):
        run = f"{base}/model/train-000000000001"
        Path(run).mkdir(parents=True, exist_ok=True)
        record_caches(run, {f"{other}/shelf": Resolved(f"{other}/shelf/{cache.name}", "x")})
        assert recorded_caches(run).keys() == {f"{other}/shelf"}
        for reached in (real, link):
            (found,) = recorded_caches(f"{reached}/model/train-000000000001").values()
            assert Path(found.cache).resolve() == cache
