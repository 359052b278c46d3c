"""Parses `splits`: which files belong to which split of a dataset, in the layout that datasets on the Hugging Face Hub
have.

Given only names, the split of a file follows from its path, by the patterns of the library `datasets`: a folder or a
file name that contains the name of the split, or another usual word for it, between letters that belong to no word
(`data/train-00000-of-00008.parquet`, `validation/a.jsonl`, `my_test.csv`). If the patterns of two splits fit a file,
`datasets` would prefer folders to file names; here it is an error. A table gives the patterns themselves. The `configs`
in a dataset's card are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from datakit.errors import NoInputError, RecipeError, suggestion
from datakit.printable import one_line
from datakit.storage.globs import matcher

COLUMN = "split"  # the column that holds the name of each record's split
WORDS = {  # the words by which `datasets` recognizes its three usual splits
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_BORDER = "[-._ 0-9]"  # what `datasets` accepts beside such a word
_PATTERNS = (  # `datasets` has the same, for file names and for folders
    "**/{word}" + _BORDER + "*", "**/*" + _BORDER + "{word}" + _BORDER + "*",
    "**/{word}/**", "**/{word}" + _BORDER + "*/**", "**/*" + _BORDER + "{word}/**",
    "**/*" + _BORDER + "{word}" + _BORDER + "*/**",
)  # fmt: skip
Splits = Mapping[str, Sequence[str]]  # the name of each split -> the patterns of its files, in the order of the recipe


def split_patterns(splits: Sequence[str] | Splits) -> dict[str, tuple[str, ...]]:
    """Return the patterns of each split. Raises RecipeError for a split without a name or without a pattern."""
    if not isinstance(splits, Mapping):
        splits = {name: _usual(name) for name in splits}
    for name, patterns in splits.items():
        if not name or not patterns or not all(patterns):
            raise RecipeError(f"splits: the split {name!r} needs a name and at least one pattern of files")
    return {name: tuple(patterns) for name, patterns in splits.items()}


def _usual(name: str) -> tuple[str, ...]:
    if any(letter in name for letter in "*?[]/"):
        raise RecipeError(
            f'splits: {name!r} is not the name of a split; write patterns as a table: splits = {{ train = ["{name}"] }}'
        )
    return tuple(pattern.replace("{word}", word) for word in WORDS.get(name, (name,)) for pattern in _PATTERNS)


def patterns_of(splits: Splits) -> tuple[str, ...]:
    """Return the patterns of all splits, which select the files of the source."""
    return tuple(dict.fromkeys(pattern for patterns in splits.values() for pattern in patterns))


def split_of_files(source: str, paths: Iterable[str], splits: Splits) -> dict[str, str]:
    """Return the split of each file. Raises RecipeError if a file is in several splits, and NoInputError if a split has
    no file.
    """
    matchers = {name: matcher(patterns) for name, patterns in splits.items()}
    found: dict[str, str] = {}
    for path in paths:
        names = [name for name, pattern in matchers.items() if pattern.fullmatch(path)]
        if len(names) > 1:
            raise RecipeError(
                f"source {source!r}: splits: {one_line(path)} is in the splits {names[0]!r} and {names[1]!r}; give the "
                f'patterns of each split: splits = {{ {names[0]} = ["{names[0]}/**"] }}'
            )
        found |= {path: names[0]} if names else {}
    for name in splits:
        if name not in found.values():
            there = suggestion(name, set(found.values()))
            raise NoInputError(
                f"source {source!r}: splits: no file is in the split {name!r}; {there}; `datakit inspect` lists files"
            )
    return found
