"""The data of a run file are checked before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import LoaderError, RecipeError, TokenizerError, UsageError
from datakit.trainer.commands import load_run

pytest.importorskip("pyarrow")
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
        (["model.vocabulary=200"], UsageError, "model.vocabulary is 200, but the caches need 400"),
        (["data.components.web.sauce=1"], LoaderError, r"component 'web': unknown key 'sauce'; did you mean 'source'"),
        (["data.components.web.source=wbe"], LoaderError, "no source 'wbe'"),
        (["data.components.web.cache=nowhere"], LoaderError, "nowhere holds no finished token cache"),
        (["data.batchsize=1"], LoaderError, "did you mean 'batch_size'"),
        (["data.evaluation.x.cash=1"], LoaderError, "did you mean 'cache'"),
        (["data.mixture=mix.toml"], RecipeError, "batch_size, components, .*cannot be combined with `mixture`"),
        (["data={}"], RecipeError, "no data"),
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


def test_the_vocabulary_defaults_to_the_tokenizer_s(root: Path) -> None:
    run, data = load_run(root / "run.toml", str(root))
    assert data.vocabulary == run.model.vocabulary == 512
    assert data.token_bytes is not None
