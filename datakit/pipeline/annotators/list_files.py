"""Reads the lists of a recipe's annotators when a run or a plan begins, so that an empty or damaged list is refused
before any stage runs, and not when the first task loads it. Takes 1 to 2 CPU-seconds per million entries.
"""

from __future__ import annotations

from datakit.annotate import stage as annotate
from datakit.annotate.input_files import with_paths
from datakit.annotate.tables import TABLES
from datakit.errors import RefusedError
from datakit.pipeline.configure import Settings
from datakit.storage.fingerprint import config_of


def refused_lists(settings: Settings, place: str) -> list[RefusedError]:
    """Return an error for each annotator whose lists cannot be used. settings: those of the annotate stage. place: the
    recipe's, for the messages. Raises ChangedInputError if a list has changed since the recipe was checked.
    """
    refused = list[RefusedError]()
    chosen = with_paths(settings.content["annotators"], settings.operations.get(annotate.PATHS, {}))
    for name, values in chosen.items():
        if name not in TABLES or not hasattr(TABLES[name].kind, "check"):
            continue
        try:
            config_of(values, TABLES[name].kind).check()
        except RefusedError as error:
            refused.append(RefusedError(f"{place}, {error}"))
    return refused
