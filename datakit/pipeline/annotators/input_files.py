"""Checks, when a run or a plan begins, the files and packages that the annotators of a recipe need besides models. So
an empty list, a missing package or a misspelt column of an evaluation set is reported before any stage runs, and not by
the first task. Lists are read, which takes 1 to 2 CPU-seconds per million entries. Of an evaluation set, only the
schema or the first records are read, unless a column is missing.
"""

from __future__ import annotations

from datakit.annotate import stage as annotate
from datakit.annotate.tables import TABLES, annotator_of, heading
from datakit.errors import RefusedError
from datakit.pipeline.configuration.settings import Settings
from datakit.storage.fingerprint import config_of


def refused_inputs(settings: Settings, place: str) -> list[RefusedError]:
    """Return an error for each annotator that cannot use its files. settings: those of the annotate stage. place: the
    recipe's, for the messages. Raises ChangedInputError if a file has another sha256 than the recipe says, or has
    changed since the recipe was checked.
    """
    refused = list[RefusedError]()
    for name, values in annotate.with_files(settings.content["annotators"], settings.operations).items():
        annotator = annotator_of(name, values)
        if annotator is None or not hasattr(TABLES[annotator].kind, "check"):
            continue
        try:
            config_of(values, TABLES[annotator].kind).check(heading(name, values))
        except RefusedError as error:
            refused.append(RefusedError(f"{place}, {error}"))
    return refused
