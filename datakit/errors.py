"""Every error that datakit raises on purpose, in one hierarchy.

A message names the thing, the place and the next step. It never contains document text: logs are shared more widely
than corpora.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DatakitError(Exception):
    """The base class. `exit_code` is the exit code of a command that ends with this error."""

    exit_code = 1


class InputError(DatakitError):
    """Something the user provided is unusable."""

    exit_code = 2


class UsageError(InputError):
    """An invalid flag or command."""


class RecipeError(InputError):
    """A recipe with an impossible or unknown setting."""


class NoInputError(InputError):
    """A source without files."""


class EmptyStageError(InputError):
    """A stage without output records."""


class ColumnError(InputError):
    """A missing column, or two files whose columns do not match."""


class UnreadableError(InputError):
    """An input file that cannot be opened or decoded."""


class ChangedInputError(InputError):
    """An input file that changed after it was listed."""


class RootError(InputError):
    """An output root that has no write permission or space, or that the nodes do not share."""


class TokenizerError(InputError):
    """A tokenizer that cannot be loaded, or that is not the one the cache was made with."""


class LoaderError(InputError):
    """An invalid mixture, schedule or packing. The message names the mixture component and the setting."""


class MixtureChangedError(LoaderError):
    """A resumed run whose mixture, as it is now, would have given different data from those already read."""


class StorageError(DatakitError):
    """A failing disk or object store."""


class NoSpaceError(StorageError):
    """A full disk: the one that holds the root, or the one for temporary files."""


class NotFoundError(StorageError):
    """A missing file."""


class CorruptError(StorageError):
    """Bytes that do not match their checksum, or a file written by datakit that cannot be parsed."""


class DivergentOutputError(StorageError):
    """A nondeterministic task: run twice, it wrote different outputs. The first output is kept."""


class TaskError(DatakitError):
    """A task function that refuses its input; the message gives the reason."""


class StepFailedError(DatakitError):
    """A step that cannot continue: all of its tasks fail with the same error, or none can run."""


class CheckpointError(DatakitError):
    """A checkpoint that is missing, unreadable, or from another run."""


class DivergedError(DatakitError):
    """A training run whose loss or gradient is NaN or infinite. Its last good checkpoint is kept."""

    exit_code = 4


class PartialError(DatakitError):
    """Some tasks of a step failed. The others are done and kept, and the next run retries only the failed ones."""

    exit_code = 3


def suggestion(name: str, known: Iterable[str]) -> str:
    """Write a clause for an error message: the closest known name, or all known names.

    >>> suggestion("treshold", ["threshold", "bands"])
    "did you mean 'threshold'?"
    """
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known names are {', '.join(choices)}" if choices else "no names are known here"
