"""Defines the options of decontamination, and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from datakit.annotate.contamination.annotator import ContaminationAnnotator
from datakit.annotate.contamination.evaluation_sets import EvaluationSet, list_files
from datakit.annotate.contamination.index_file import IndexRules, open_index
from datakit.toml_config import key

LONGEST_NGRAM = 64  # the lengths of short passages are bits of a uint64


@dataclass(frozen=True)
class Config:
    """The parameters of decontamination."""

    sets: Annotated[tuple[EvaluationSet, ...], key("The evaluation sets.", [{"name": "mmlu", "path": "mmlu.jsonl"}])]
    ngram: Annotated[int, key("The number of consecutive words that count as a match.", 13)] = 13
    min_words: Annotated[
        int,
        key("A passage with fewer than `ngram` words matches as a whole if it has at least this many words; set it to "
            "the value of `ngram` to leave such passages out.", 8),
    ] = 8  # fmt: skip
    min_characters: Annotated[
        int, key("A passage with fewer than `ngram` words needs at least this many characters in its words.", 16)
    ] = 16
    max_hits: Annotated[
        int, key("The maximum number of items reported per document, those with the largest overlap first.", 100)
    ] = 100  # fmt: skip
    index_folder: Annotated[
        str, key("A local folder in which the index is kept, so that all processes share its memory; does not change "
                 "the output. Without it, each process builds the index.", "cache/contamination")
    ] = ""  # fmt: skip

    def __post_init__(self) -> None:
        if not self.sets:
            raise ValueError("sets is empty; name at least one evaluation set")
        names = [one.name for one in self.sets]
        if len(set(names)) < len(names):
            raise ValueError("two evaluation sets have the same name; give each its own")
        if not 2 <= self.ngram <= LONGEST_NGRAM:
            raise ValueError(f"ngram is {self.ngram}; it must be from 2 to {LONGEST_NGRAM}")
        if not 1 <= self.min_words <= self.ngram:
            raise ValueError(f"min_words is {self.min_words}; it must be from 1 to ngram ({self.ngram})")
        if self.min_characters < 0:
            raise ValueError(f"min_characters is {self.min_characters}; it must not be negative")
        if not 1 <= self.max_hits <= 10_000:
            raise ValueError(f"max_hits is {self.max_hits}; it must be from 1 to 10000")

    def annotator(self) -> ContaminationAnnotator:
        """Hash the evaluation sets, open or build their index, and return the annotator. A process that is forked
        after the first call shares the index. Raises the errors of `list_files` and `read_passages`, and CorruptError.
        """
        files = tuple(tuple(list_files(one)) for one in self.sets)
        rules = IndexRules(self.ngram, self.min_words, self.min_characters)
        index = open_index(self.sets, files, rules, self.index_folder)
        return ContaminationAnnotator(self.sets, files, rules, self.max_hits, index)
