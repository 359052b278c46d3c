"""Splits select files as the library `datasets` does, and every file is in one split."""

from __future__ import annotations

import pytest

from datakit.errors import NoInputError, RecipeError
from datakit.normalize.settings.splits import patterns_of, split_of_files, split_patterns
from datakit.storage.globs import matcher

USUAL = split_patterns(["train", "validation", "test"])


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-00000-of-00008.parquet", "train"),
        ("train.jsonl", "train"),
        ("train/a.jsonl.gz", "train"),
        ("en/training/a.csv", "train"),
        ("my_train_file.csv", "train"),
        ("validation.jsonl", "validation"),
        ("data/valid-1.parquet", "validation"),
        ("dev/x.txt", "validation"),
        ("val_2/deep/er/x.txt", "validation"),
        ("test.csv", "test"),
        ("a-eval.csv", "test"),
        ("retrained/a.csv", None),
        ("contest.csv", None),
        ("README.md", None),
    ],
)
def test_usual_names_are_recognized(path: str, split: str | None) -> None:
    assert [name for name, patterns in USUAL.items() if matcher(patterns).fullmatch(path)] == ([split] if split else [])


def test_another_name_stands_for_itself() -> None:
    splits = split_patterns(["train_sft"])
    assert split_of_files("web", ["data/train_sft-00000-of-00003.parquet", "x"], splits) == {
        "data/train_sft-00000-of-00003.parquet": "train_sft"
    }


def test_patterns_of_the_recipe_are_taken_as_they_are() -> None:
    splits = split_patterns({"a": ["x/**"], "b": ["y/*.csv", "z/**"]})
    assert patterns_of(splits) == ("x/**", "y/*.csv", "z/**")
    assert split_of_files("web", ["x/1.csv", "y/2.csv", "z/3"], splits) == {"x/1.csv": "a", "y/2.csv": "b", "z/3": "b"}


def test_a_file_in_two_splits_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"train/test-1\.csv is in the splits 'train' and 'test'"):
        split_of_files("web", ["train/test-1.csv"], USUAL)


def test_a_split_without_files_is_refused() -> None:
    with pytest.raises(NoInputError, match="source 'web': splits: no file is in the split 'validation'"):
        split_of_files("web", ["train.csv", "test.csv"], USUAL)


@pytest.mark.parametrize("wrong", [["a/*"], {"a": []}, {"": ["x"]}, {"a": [""]}])
def test_impossible_splits_are_refused(wrong: list[str] | dict[str, list[str]]) -> None:
    with pytest.raises(RecipeError, match="splits"):
        split_patterns(wrong)
