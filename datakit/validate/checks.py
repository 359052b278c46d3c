"""Lists every check: what it proves, what it costs, for which stages it is made, and the function that makes it.

A check's function takes the step and the result to fill in. The function's module is imported when the check runs, so a
machine without pyarrow, or without the trainer's libraries, can make the checks that do not need them. To add a check,
add an entry to CHECKS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from datakit.validate.finding import Result
from datakit.validate.subject import Subject, is_installed

WITH_DOCUMENTS = ("normalize", "consolidate")
WITH_IDS = ("signatures", "rules", "dedup", "passages", "select")
PARQUET = (*WITH_DOCUMENTS, *WITH_IDS)  # all files of such a step have the same columns
CACHE, CONTRACT, RUN = ("tokenize",), ("contract",), ("train",)


@dataclass(frozen=True)
class Check:
    """A check. stages: the stages whose steps it checks, or () for all. needs: the libraries without which it is
    skipped.
    """

    name: str
    proves: str
    cost: str
    function: str
    stages: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def applies(self, stage: str) -> bool:
        """Return True if steps of this stage are checked."""
        return not self.stages or stage in self.stages

    def run(self, step: Subject) -> Result:
        """Check a step."""
        result = Result(self.name)
        missing = [name for name in self.needs if not is_installed(name)]
        if missing:
            result.skip(f"{', '.join(missing)} is not installed")
            return result
        module, _, name = self.function.partition(":")
        check: Callable[[Subject, Result], None] = getattr(import_module(f"datakit.validate.{module}"), name)
        with result.reading(step.manifest_url):  # a forged manifest may hold anything
            check(step, result)
        return result


ARROW = ("pyarrow",)
CHECKS = (
    Check("manifest", "a manifest's statements agree", "none", "inside.manifest_claims:check"),
    Check("files", "every file has its size and checksum", "reads every byte", "inside.files:compare"),
    Check("unlisted", "no other file lies in the step's directory", "one listing", "inside.files:unlisted"),
    Check("columns", "all files have the same columns", "a footer per file", "inside.columns:check", PARQUET, ARROW),
    Check(
        "documents", "each id is its text's hash, ids ascend, and the sums are right", "decodes every text",
        "inside.documents:check_texts", WITH_DOCUMENTS, ARROW,
    ),
    Check(
        "ids", "ids ascend, within their partition's range, and the sums are right", "decodes every id",
        "inside.documents:check_ids", WITH_IDS, ARROW,
    ),
    Check(
        "origins", "origins and duplicates match the documents", "decodes every id twice", "inside.origins:check",
        ("normalize",), ARROW,
    ),
    Check(
        "contract", "the tokenizer fulfills the contract", "loads the tokenizer", "inside.contract_claims:check",
        (*CONTRACT, *CACHE),
    ),
    Check(
        "lists", "lengths, ids and sums agree", "reads the lists of documents", "inside.token_cache:check_lists", CACHE,
    ),
    Check("tokens", "tokens fulfill the contract", "decodes every token", "inside.token_cache:check_tokens", CACHE),
    Check("inputs", "the inputs are those that the manifest names", "a manifest per input", "between.inputs:check"),
    Check(
        "conservation", "no record is lost: all counters add up", "decodes two small columns",
        "between.conservation:check", (), ARROW,
    ),
    Check(
        "alignment", "the step has exactly its inputs' documents", "decodes every id", "between.alignment:check",
        ("signatures", "rules", "dedup", "select", "consolidate", "tokenize"), ARROW,
    ),
    Check(
        "attributes", "each row of a table belongs to a document of its partition", "decodes every id",
        "between.attributes:check", ("annotate",), ARROW,
    ),
    Check(
        "passages", "spans lie in documents that stay, do not overlap, and are all counted", "decodes every id",
        "between.passages:check", ("passages",), ARROW,
    ),
    Check(
        "edits", "texts are edited exactly where spans were found", "decodes texts of sources with edits",
        "between.edits:check", ("select",), ARROW,
    ),
    Check(
        "final", "final rules and buckets apply to the documents as listed", "decodes the attributes that they read",
        "between.final.check:check", ("select",), ARROW,
    ),
    Check(
        "values", "documents keep their other columns", "decodes these columns twice", "between.kept_values:check",
        ("consolidate",), ARROW,
    ),
    Check(
        "removals", "each removed document is represented by a retained one", "decodes every id",
        "between.removals:check", ("dedup",), ARROW,
    ),
    Check(
        "similarity", "the stated similarities are right", "a sample of the removals; all of them with --deep",
        "between.similarity:check", ("dedup",), ARROW,
    ),
    Check(
        "encoding", "the reference tokenizer gives the same tokens", "a sample of the texts", "between.encoding:check",
        CACHE, (*ARROW, "tokenizers", "fastokens"),
    ),
    Check(
        "checkpoints", "every checkpoint matches its checksums", "reads every byte", "training.checkpoints:check",
        RUN, ("etils",),
    ),
    Check(
        "metrics", "no logged step is missing or contradicted", "reads the metrics", "training.metrics:check", RUN,
    ),
    Check(
        "batches", "a logged batch can be made again from the caches", "reads one batch", "training.batches:check", RUN,
    ),
)  # fmt: skip


def checks_of(stage: str) -> list[Check]:
    """Return the checks of a stage's steps, in the order in which they are made."""
    return [check for check in CHECKS if check.applies(stage)]
