"""Defines the settings of the annotator `contamination`. Kernels and the index are loaded by `annotator` only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from datakit.annotate.contamination.suites import columns_of
from datakit.annotate.input_files import check_optional_sha256
from datakit.toml_config import key

if TYPE_CHECKING:
    from datakit.annotate.contamination.annotator import ContaminationAnnotator
    from datakit.annotate.contamination.evaluation_sets import EvaluationSet

QUESTION = ("question",)  # the columns of a set without columns and suite
LONGEST_NGRAM = 64  # the lengths of short passages are bits of a uint64


@dataclass(frozen=True)
class EvaluationFiles:
    """The files of one evaluation set, and the columns that hold the texts of an item. If there are no columns, those
    of the suite take their place or, without a suite, `question`.
    """

    path: Annotated[
        str,
        key("A local file (JSON lines, Parquet or Arrow), relative to the recipe's file, or a pattern with `*`.",
            "evals/mmlu*.jsonl.gz"),
    ]  # fmt: skip
    columns: Annotated[
        tuple[str, ...],
        key("The columns with texts or lists of texts; each text is a passage. `a.b` is the field `b` of the column "
            "`a`. By default, the columns of `suite` or, without it, `question`.", ["question", "choices.text"]),
    ] = ()  # fmt: skip
    suite: Annotated[
        str, key("A known suite, which names the columns; docs/annotate/contamination.md lists all.", "mmlu")
    ] = ""
    sha256: Annotated[
        str,
        key("If given, files with another sha256 are refused.",
            "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"),
    ] = ""  # fmt: skip

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path is empty; give the path of an evaluation set")
        known = columns_of(self.suite) if self.suite else QUESTION
        if not all(self.columns) or len(self.columns) != len(set(self.columns)):
            raise ValueError("columns must name no column twice, and none that is empty")
        object.__setattr__(self, "columns", tuple(self.columns) or known)
        check_optional_sha256(self.sha256)


@dataclass(frozen=True)
class Config:
    """The settings of the annotator `contamination`. sets: the evaluation sets by name; their order has no effect."""

    VERSION: ClassVar[int] = 1
    kinds: ClassVar[tuple[str, ...]] = ("evaluation",)  # of spans; that of annotator.py, which is not loaded here

    sets: dict[str, EvaluationFiles]
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
        str, key("A local folder, relative to the recipe's file, in which the index is kept, so that all processes "
                 "share its memory; does not change the output. Without it, each fork server builds the index in "
                 "memory.", "cache/contamination")
    ] = ""  # fmt: skip

    def __post_init__(self) -> None:
        if not self.sets or not all(self.sets):
            raise ValueError("sets is empty; add at least one table such as [annotate.contamination.sets.mmlu]")
        if not 2 <= self.ngram <= LONGEST_NGRAM:
            raise ValueError(f"ngram is {self.ngram}; it must be from 2 to {LONGEST_NGRAM}")
        if not 1 <= self.min_words <= self.ngram:
            raise ValueError(f"min_words is {self.min_words}; it must be from 1 to ngram ({self.ngram})")
        if self.min_characters < 0:
            raise ValueError(f"min_characters is {self.min_characters}; it must not be negative")
        if not 1 <= self.max_hits <= 10_000:
            raise ValueError(f"max_hits is {self.max_hits}; it must be from 1 to 10000")

    def check(self, _place: str) -> None:
        """Look for the columns of each set in its files, without reading these further than needed. Raises the errors
        of `require_columns`.
        """
        from datakit.annotate.contamination.evaluation_sets import require_columns

        for one in self._sets():
            require_columns(one)

    def _sets(self) -> tuple[EvaluationSet, ...]:
        from datakit.annotate.contamination.evaluation_sets import EvaluationSet

        return tuple(EvaluationSet(name, one.path, one.columns, one.sha256) for name, one in sorted(self.sets.items()))

    def annotator(self) -> ContaminationAnnotator:
        """Find and hash the evaluation sets, open or build their index, and return the annotator with its kernels
        loaded. A process that is forked after the first call shares the index. Raises the errors of `list_files` and
        `read_passages`, and CorruptError.
        """
        from datakit.annotate.contamination.annotator import ContaminationAnnotator
        from datakit.annotate.contamination.evaluation_sets import list_files
        from datakit.annotate.contamination.index_file import IndexRules, open_index
        from datakit.annotate.warming import warmed

        sets = self._sets()
        files = tuple(tuple(list_files(one)) for one in sets)
        rules = IndexRules(self.ngram, self.min_words, self.min_characters)
        index = open_index(sets, files, rules, self.index_folder)
        return warmed(ContaminationAnnotator(sets, files, rules, self.max_hits, index))
