"""A mixture file means the same as the mixture in Python; mistakes are named with their place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import (
    Component,
    Exclusion,
    Loader,
    Mixture,
    Packing,
    Schedule,
    Shuffle,
    Stage,
    load_mixture,
    load_mixture_file,
    open_source,
)
from datakit.loader.mixture.run_file import data_settings, mixture_of_run
from tests.support.loader.mixture_files import cache, changed, mixture

__all__ = ["cache", "mixture"]  # fixtures


def test_file_gives_the_same_mixture_as_python(cache: Path, mixture: Path) -> None:
    by_hand = Mixture(
        {
            "web": Component(open_source(str(cache), "web"), validation_tokens=2_000),
            "code": Component(
                open_source(str(cache), "code"),
                packing=Packing("split", 6),
                max_epochs=40,
                validation_tokens=1_000,
                shuffle=Shuffle(block_tokens=512),
            ),
        },
        [Stage({"web": 0.9, "code": 0.1}), Stage({"web": 1, "code": 1}, start_step=30)],
        seed=5,
        sequence_length=Schedule(((0, 64), (40, 128))),
        batch_size=8,
    )
    with Loader(load_mixture(mixture)) as loader, Loader(by_hand) as expected:
        assert loader.record() == expected.record()
        for step in (0, 29, 30, 45):
            assert np.array_equal(loader[step].tokens, expected[step].tokens)


def test_all_mistakes_are_named_together(mixture: Path) -> None:
    wrong = changed(mixture, "seed = 5", "sed = 5")
    text = wrong.read_text().replace("max_epochs = 40", "max_epoch = 40").replace("{ web = 0.9,", "{ wbe = 0.9,")
    wrong.write_text(text.replace("start_step = 30", "start_stp = 30"))
    with pytest.raises(LoaderError, match="4 mistakes") as caught:
        load_mixture(wrong)
    for part in ("'sed'", "component 'code': unknown key 'max_epoch'", "no component 'wbe'", "key 'start_stp'"):
        assert part in str(caught.value)


def test_file_accepts_every_setting(mixture: Path) -> None:
    more = (
        'block = 64\nstop = "first_exhausted"\nmemory_bytes = 1_000_000\nfinal_batch = "pad"\npad_id = 3\n'
        "simulate = { run_tokens = 1, target_tokens = 2 }\nbatch_size = [[0, 8], [10, 16]]\n"
    )
    found = load_mixture_file(changed(mixture, "batch_size = 8\nseed = 5\nsteps = 60\n", more))
    assert found.steps is None
    assert (found.mixture.block, found.mixture.stop) == (64, "first_exhausted")
    assert (found.mixture.memory_bytes, found.mixture.final_batch, found.mixture.pad_id) == (1_000_000, "pad", 3)
    assert found.mixture.simulate is not None
    assert found.mixture.batches.pairs == ((0, 8), (10, 16))
    assert found.mixture.components["code"].packing == Packing("split", 6)
    words_only = load_mixture(changed(mixture, '{ too_long = "split", max_documents = 6 }', '"drop"'))
    assert words_only.components["code"].packing == Packing("drop")


def test_a_run_file_adds_exclusions_to_those_of_its_mixture_file(mixture: Path) -> None:
    changed(mixture, "steps = 60", 'exclusions = [{ documents = ["a"] }]')
    settings = {"mixture": "changed.toml", "exclusions": [{"start_step": 7, "documents": ["b", "c"]}]}
    found = mixture_of_run(data_settings(settings, mixture, "root"), mixture, None)
    assert found.mixture.exclusions == (Exclusion(["a"], 0), Exclusion(["b", "c"], 7))
    wrong = {**settings, "exclusions": [{"start_step": 7}]}
    with pytest.raises(LoaderError, match="exclusion 0: 'documents' is missing"):
        mixture_of_run(wrong, mixture, None)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seed = 5", "sed = 5", "unknown key 'sed'; did you mean 'seed'?"),
        ("max_epochs = 40", "max_epoch = 40", "component 'code': unknown key 'max_epoch'; did you mean 'max_epochs'?"),
        ("start_step = 30", "start_stp = 30", "stage 1: unknown key 'start_stp'; did you mean 'start_step'?"),
        ("max_documents = 6", "most = 6", "component 'code', packing: unknown key 'most'"),
        ("block_tokens = 512", "blocks = 512", "component 'code', shuffle: unknown key 'blocks'"),
        ('too_long = "split"', 'too_long = "cut"', "component 'code': too_long is 'cut'"),
        ("weights = { web = 0.9,", "weights = { wbe = 0.9,", "there is no component 'wbe'; did you mean 'web'?"),
        ("web = 0.9,", "web = -0.9,", "stage 0: the weight of 'web' is -0.9"),
        ("web = 0.9,", "web = nan,", "stage 0: the weight of 'web' is nan"),
        ("web = 0.9,", 'web = "much",', "weights"),
        ("{ web = 0.9, code = 0.1 }", "{ web = 0, code = 0 }", "stage 0: no component has a weight above 0"),
        ("start_step = 30", "start_step = 0", "list stages in ascending order"),
        ("[[0, 64], [40, 128]]", "[[5, 64]]", "a schedule must start at step 0"),
        ("[[0, 64], [40, 128]]", '"long"', "sequence_length: Expected"),
        ("steps = 60", "steps = 0", "steps is 0"),
        ("steps = 60", "exclusions = [{ start_stp = 1, documents = ['a'] }]", "unknown key 'start_stp'"),
        ("steps = 60", "exclusions = [{ start_step = 1 }]", "exclusion 0: 'documents' is missing"),
        ("steps = 60", "exclusions = [{ documents = [] }]", "the list of documents from step 0 on is empty"),
        ('source = "web"', 'source = "wob"', "component 'web': "),
        ('cache = "cache"\nsource = "web"\n', 'source = "web"\n', "component 'web': 'cache' is missing"),
        ('cache = "cache"\nsource = "web"', 'cache = "nowhere"', "nowhere holds no finished token cache"),
        ("seed = 5", "seed = ", "is not valid TOML"),
    ],
)
def test_mistakes_are_named_with_their_place(mixture: Path, old: str, new: str, says: str) -> None:
    other = changed(mixture, old, new)
    with pytest.raises(LoaderError) as caught:
        load_mixture(other)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(other))
